// The floor: what the reduction costs when nobody has to wait for anybody. worker_floor RANKS.
//
// One process per core, at most one per rank. The buffers of all ranks lie in memory that the processes share; each
// reduces its own slice of all of them in place, with the engine's kernel, and never looks whether the others are
// ready.
#include <sys/mman.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/cpu.hpp"
#include "collective/reduce_kernel.hpp"
#include "worker.hpp"

namespace {

constexpr std::size_t kLargest = std::size_t{256} << 20;  // bytes per rank
// A page more, as between the engine's arenas (src/heap/segment.cpp says why).
constexpr std::size_t kStride = kLargest + 4096;
constexpr std::size_t kLine = 128;

class FloorContender : public bench::Contender {
 public:
  FloorContender(std::byte* memory, int process, int processes, int leaves)
      : memory_(memory), process_(process), processes_(processes), leaves_(leaves) {}

  std::vector<bench::Buffer> prepare(std::size_t elements, bench::DType dtype) override {
    const std::size_t size = bench::size_of(dtype);
    if (elements * size > kLargest) throw std::invalid_argument("larger than the memory set aside");
    dtype_ = dtype == bench::DType::f32 ? lockstep::DType::f32 : lockstep::DType::bf16;

    // Slices begin on a line of their own, as the engine's do.
    const std::size_t per_line = kLine / size;
    const std::size_t lines = (elements + per_line - 1) / per_line;
    const auto border = [&](int process) {
      return std::min(elements,
                      lines * static_cast<std::size_t>(process) / static_cast<std::size_t>(processes_) * per_line);
    };
    const std::size_t first = border(process_);
    elements_ = border(process_ + 1) - first;

    std::vector<bench::Buffer> written;
    inputs_.clear();
    outputs_.clear();
    for (int leaf = 0; leaf < leaves_; ++leaf) {
      std::byte* buffer = memory_ + static_cast<std::size_t>(leaf) * kStride;
      inputs_.push_back(buffer + first * size);
      outputs_.push_back(buffer + first * size);
      if (leaf % processes_ == process_) written.push_back({buffer, leaf});
    }
    return written;
  }

  void all_reduce() override {
    if (elements_ == 0) return;
    lockstep::collective::reduce({.dtype = dtype_, .leaves = inputs_, .outputs = outputs_, .elements = elements_});
  }

 private:
  std::byte* memory_;
  int process_;
  int processes_;
  int leaves_;
  lockstep::DType dtype_ = lockstep::DType::f32;
  std::size_t elements_ = 0;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

void work(int argc, char** argv) {
  if (argc != 2) throw std::invalid_argument("usage: worker_floor RANKS");
  const int leaves = std::stoi(argv[1]);
  const int processes = std::min(leaves, lockstep::usable_cores());
  // Sparse: a page costs memory only when it is touched.
  void* memory = ::mmap(nullptr, static_cast<std::size_t>(leaves) * kStride, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  const int process = bench::fork_processes(processes);
  FloorContender contender(static_cast<std::byte*>(memory), process, processes, leaves);
  bench::serve(contender,
               {process, processes, leaves, std::string("kernel for ") + lockstep::collective::kernel_target()});
}

}  // namespace

int main(int argc, char** argv) { return bench::guarded_main("worker_floor", work, argc, argv); }
