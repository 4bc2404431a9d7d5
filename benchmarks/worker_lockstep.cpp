// Lockstep as a contender: worker_lockstep RANKS heap|own|many.
//
// heap: one tensor in the engine's shared memory. own: one tensor in the user's own memory. many: the tensor in the
// heap is cut into named pieces of 20 KB, submitted one by one in an order that is random and different on each rank,
// but the same in every step, as the gradients of a model are.
#include <sys/random.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "lockstep/lockstep.hpp"
#include "worker.hpp"

namespace {

constexpr std::size_t kHeapBytes = std::size_t{512} << 20;
constexpr std::size_t kPieceBytes = 20 << 10;

class LockstepContender : public bench::Contender {
 public:
  LockstepContender(lockstep::Engine& engine, const std::string& kind) : engine_(engine), kind_(kind) {
    if (kind != "heap" && kind != "own" && kind != "many") throw std::invalid_argument("heap, own or many?");
  }
  ~LockstepContender() override { release(); }

  std::vector<bench::Buffer> prepare(std::size_t elements, bench::DType dtype) override {
    release();
    const auto bytes = elements * bench::size_of(dtype);
    if (kind_ == "own") {
      data_ = own_.resize(bytes);
    } else {
      block_ = engine_.allocate(bytes);
      if (block_ == nullptr) throw std::runtime_error("the heap is full");
      data_ = static_cast<std::byte*>(block_);
    }
    cut(elements, dtype);
    return {{data_, engine_.rank()}};
  }

  void all_reduce() override {
    if (kind_ != "many") {
      engine_.all_reduce(views_.front(), views_.front());
      return;
    }
    engine_.begin_step();
    for (const auto& view : views_) engine_.all_reduce_async(view, view);
    engine_.end_step();
  }

 private:
  void cut(std::size_t elements, bench::DType dtype) {
    const std::size_t element_bytes = bench::size_of(dtype);
    const std::size_t piece = kind_ == "many" ? kPieceBytes / element_bytes : elements;
    views_.clear();
    for (std::size_t at = 0; at < elements; at += piece) {
      const auto extent = static_cast<std::int64_t>(std::min(piece, elements - at));
      lockstep::TensorView view{.data = data_ + at * element_bytes,
                                .dtype = dtype == bench::DType::f32 ? lockstep::DType::f32 : lockstep::DType::bf16,
                                .shape = {extent}};
      if (kind_ == "many") view.name = "tensor." + std::to_string(views_.size());
      views_.push_back(std::move(view));
    }
    std::shuffle(views_.begin(), views_.end(), std::mt19937(static_cast<unsigned>(engine_.rank()) + 1));
  }

  void release() {
    if (block_ != nullptr) engine_.deallocate(block_);
    block_ = nullptr;
  }

  lockstep::Engine& engine_;
  std::string kind_;
  bench::OwnMemory own_;
  void* block_ = nullptr;
  std::byte* data_ = nullptr;
  std::vector<lockstep::TensorView> views_;
};

void work(int argc, char** argv) {
  if (argc != 3) throw std::invalid_argument("usage: worker_lockstep RANKS heap|own|many");
  lockstep::Options options;
  options.size = options.local_size = std::stoi(argv[1]);
  options.job = "benchmark";
  options.heap_bytes = kHeapBytes;
  options.secret.resize(32);
  if (::getrandom(options.secret.data(), options.secret.size(), 0) != static_cast<ssize_t>(options.secret.size())) {
    throw std::runtime_error("no random bytes");
  }
  options.rank = options.local_rank = bench::fork_processes(options.size);
  lockstep::Engine engine(options);
  LockstepContender contender(engine, argv[2]);
  bench::serve(contender, {options.rank, options.size, options.size, std::string("Lockstep ") + lockstep::version()});
  engine.barrier();  // nobody leaves while another still works
}

}  // namespace

int main(int argc, char** argv) { return bench::guarded_main("worker_lockstep", work, argc, argv); }
