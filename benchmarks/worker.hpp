// What all contenders of the all-reduce benchmark share: the conversation with the driver, the contents of the buffers,
// the clock and the check. A contender only says where its buffers lie and how it reduces them.
//
// A worker is one process of a contender. It connects to the Unix socket `socket` in the folder that BENCH_FOLDER
// names, says who it is (hello PROCESS PROCESSES VERSION), and then sleeps in `read` until the driver has a command for
// it, so that a contender whose turn it is not costs no time. One line each:
//
//     run ELEMENTS DTYPE MODE WARM_UP REPETITIONS STEP   ->  times CORRECT NANOSECONDS...   (one per repetition)
//     probe                                              ->  probe NANOSECONDS              (one barrier)
//     idle SECONDS                                       ->  idle CPU_SECONDS               (used by this process)
//     quit
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bench {

enum class DType { f32, bf16 };

constexpr std::size_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

/// A buffer that this process writes before each call; `leaf` is the rank whose contribution it holds.
struct Buffer {
  std::byte* data = nullptr;
  int leaf = 0;
};

class Contender {
 public:
  virtual ~Contender() = default;

  /// Makes buffers of this size, and gives up the former ones. Returns those that this process has to write and check.
  virtual std::vector<Buffer> prepare(std::size_t elements, DType dtype) = 0;

  /// Sums all leaves, in place, in every leaf's buffer.
  virtual void all_reduce() = 0;

  /// Called after a measured call, or the last of several in a row, for what is no part of it.
  virtual void complete() {}
};

struct Place {
  int process = 0;
  int processes = 1;
  int leaves = 1;  ///< ranks whose buffers are summed; the floor serves several with one process
  std::string version;
};

/// Serves the driver until it says quit or goes away.
void serve(Contender& contender, const Place& place);

/// Makes `processes` processes of this one and returns which of them the caller is. The others die with process 0.
int fork_processes(int processes);

/// The main function of a worker: runs `body`, turns an exception into a message and exit code 1.
int guarded_main(const char* program, void (*body)(int argc, char** argv), int argc, char** argv);

/// The user's own memory: plain, page-aligned, of this process alone.
class OwnMemory {
 public:
  std::byte* resize(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* block) const;
  };
  std::unique_ptr<std::byte, Free> block_;
};

}  // namespace bench
