#include "worker.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace bench {
namespace {

[[noreturn]] void throw_errno(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

std::string folder() {
  const char* value = std::getenv("BENCH_FOLDER");
  if (value == nullptr) throw std::runtime_error("BENCH_FOLDER is not set: this program is started by all_reduce.py");
  return value;
}

// The line to the driver.
class Line {
 public:
  Line() : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (fd_ < 0) throw_errno("socket");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder() + "/socket";
    if (path.size() >= sizeof address.sun_path) throw std::runtime_error("the path of the socket is too long");
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) throw_errno("connect");
  }
  ~Line() { ::close(fd_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void say(const std::string& text) {
    const std::string line = text + "\n";
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t n = ::send(fd_, line.data() + done, line.size() - done, MSG_NOSIGNAL);
      if (n < 0) throw_errno("send");
      done += static_cast<std::size_t>(n);
    }
  }

  /// The next line; empty when the driver has gone.
  std::string hear() {
    for (;;) {
      if (const auto end = heard_.find('\n'); end != std::string::npos) {
        std::string line = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return line;
      }
      char bytes[512];
      const ssize_t n = ::read(fd_, bytes, sizeof bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno("read");
      if (n == 0) return {};
      heard_.append(bytes, static_cast<std::size_t>(n));
    }
  }

 private:
  int fd_;
  std::string heard_;
};

// Starts all processes of a contender together. It is the same for all contenders and is no part of the measured time.
// Its file is made by the driver, zeroed.
class Barrier {
 public:
  explicit Barrier(int processes) : processes_(static_cast<std::uint32_t>(processes)) {
    const int fd = ::open((folder() + "/barrier").c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) throw_errno("open barrier");
    void* memory = ::mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (memory == MAP_FAILED) throw_errno("mmap barrier");
    words_ = static_cast<Words*>(memory);
    cpu_set_t cores;
    crowded_ = ::sched_getaffinity(0, sizeof cores, &cores) == 0 && processes > CPU_COUNT(&cores);
  }
  ~Barrier() { ::munmap(words_, sizeof(Words)); }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  void wait() {
    const std::uint32_t generation = words_->generation.load(std::memory_order_acquire);
    if (words_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == processes_) {
      words_->arrived.store(0, std::memory_order_relaxed);
      words_->generation.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; words_->generation.load(std::memory_order_acquire) == generation; ++spins) {
      if (crowded_ || spins > kSpins) {
        ::sched_yield();
      } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
  }

 private:
  static constexpr int kSpins = 20'000;
  struct Words {
    std::atomic<std::uint32_t> arrived;
    alignas(128) std::atomic<std::uint32_t> generation;
  };
  std::uint32_t processes_;
  bool crowded_ = false;
  Words* words_ = nullptr;
};

// Contents repeat after a prime number of elements, so that a piece in the wrong place does not look right. They are
// small integers: every order of summation gives the same bits, in bf16 too.
class Contents {
 public:
  using Value = std::function<float(std::size_t)>;

  Contents(DType dtype, const Value& value) : size_(size_of(dtype)), period_(kPeriod * size_) {
    for (std::size_t i = 0; i < kPeriod; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(value(i));
      const auto upper = static_cast<std::uint16_t>(bits >> 16);
      const void* source = dtype == DType::f32 ? static_cast<const void*>(&bits) : &upper;
      std::memcpy(period_.data() + i * size_, source, size_);
    }
  }

  /// What one leaf contributes.
  static Contents of_leaf(DType dtype, int leaf) {
    return Contents(dtype, [leaf](std::size_t i) { return leaf_value(i, leaf); });
  }

  /// What all have after that many calls, each of which sums the results of the one before.
  static Contents of_sum(DType dtype, int leaves, int calls) {
    return Contents(dtype, [leaves, calls](std::size_t i) {
      float sum = 0;
      for (int leaf = 0; leaf < leaves; ++leaf) sum += leaf_value(i, leaf);
      for (int call = 1; call < calls; ++call) sum *= static_cast<float>(leaves);
      return sum;
    });
  }

  void write(std::byte* data, std::size_t elements, std::size_t step) const {
    each_piece(elements, step, [&](std::size_t at, const std::byte* piece, std::size_t bytes) {
      std::memcpy(data + at, piece, bytes);
      return true;
    });
  }

  bool equals(const std::byte* data, std::size_t elements, std::size_t step) const {
    return each_piece(elements, step, [&](std::size_t at, const std::byte* piece, std::size_t bytes) {
      return std::memcmp(data + at, piece, bytes) == 0;
    });
  }

 private:
  static constexpr std::size_t kPeriod = 4093;

  static float leaf_value(std::size_t i, int leaf) {
    return static_cast<float>((static_cast<std::uint32_t>(i) * 2654435761U >> 29) + (static_cast<unsigned>(leaf) & 1U));
  }

  template <typename Visit>
  bool each_piece(std::size_t elements, std::size_t step, const Visit& visit) const {
    const std::size_t total = elements * size_;
    std::size_t from = step % kPeriod * size_;
    for (std::size_t at = 0; at < total; from = 0) {
      const std::size_t bytes = std::min(period_.size() - from, total - at);
      if (!visit(at, period_.data() + from, bytes)) return false;
      at += bytes;
    }
    return true;
  }

  std::size_t size_;
  std::vector<std::byte> period_;
};

struct Run {
  std::size_t elements = 0;
  DType dtype = DType::f32;
  bool hot = false;
  int warm_up = 0;
  int repetitions = 0;
  std::size_t step = 0;
};

Run parse_run(std::istream& words) {
  Run run;
  std::string dtype;
  std::string mode;
  words >> run.elements >> dtype >> mode >> run.warm_up >> run.repetitions >> run.step;
  if (!words || (dtype != "f32" && dtype != "bf16") || (mode != "hot" && mode != "produced")) {
    throw std::runtime_error("a command that makes no sense");
  }
  run.dtype = dtype == "f32" ? DType::f32 : DType::bf16;
  run.hot = mode == "hot";
  return run;
}

class Server {
 public:
  Server(Contender& contender, const Place& place) : contender_(contender), place_(place), barrier_(place.processes) {
    if (!std::has_single_bit(static_cast<unsigned>(place.leaves))) {
      throw std::runtime_error("the number of ranks must be a power of two, for exact sums of sums");
    }
  }

  void serve() {
    std::ostringstream hello;
    hello << "hello " << place_.process << " " << place_.processes << " " << place_.version;
    line_.say(hello.str());
    for (;;) {
      std::istringstream words(line_.hear());
      std::string command;
      if (!(words >> command) || command == "quit") return;
      if (command == "run") {
        line_.say(measure(parse_run(words)));
      } else if (command == "probe") {
        line_.say("probe " + std::to_string(probe()));
      } else if (command == "idle") {
        double seconds = 0;
        words >> seconds;
        line_.say("idle " + std::to_string(cpu_seconds_during(seconds)));
      } else {
        throw std::runtime_error("an unknown command: " + command);
      }
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  // "produced": each process writes its buffer, as a backward pass does, then makes one call. "hot": many calls in a
  // row, so many that the sums of sums stay finite.
  std::string measure(const Run& run) {
    prepare(run);
    const int calls = run.hot ? 96 / std::max(1, std::countr_zero(static_cast<unsigned>(place_.leaves))) : 1;
    std::vector<Contents> sources;
    for (const auto& buffer : buffers_) sources.push_back(Contents::of_leaf(run.dtype, buffer.leaf));

    std::string times;
    std::size_t step = run.step;
    for (int repetition = -run.warm_up; repetition < run.repetitions; ++repetition) {
      ++step;
      for (std::size_t i = 0; i < buffers_.size(); ++i) sources[i].write(buffers_[i].data, run.elements, step);
      barrier_.wait();
      const auto began = Clock::now();
      for (int call = 0; call < calls; ++call) contender_.all_reduce();
      const auto ended = Clock::now();
      contender_.complete();
      // Nobody may rewrite a buffer that a slower process still reads.
      barrier_.wait();
      if (repetition >= 0) times.append(1, ' ').append(std::to_string(nanoseconds(ended - began) / calls));
    }
    return std::string("times ") + (is_correct(run, calls, step) ? "1" : "0") + times;
  }

  void prepare(const Run& run) {
    if (!buffers_.empty() && run.elements == elements_ && run.dtype == dtype_) return;
    buffers_ = contender_.prepare(run.elements, run.dtype);
    elements_ = run.elements;
    dtype_ = run.dtype;
  }

  bool is_correct(const Run& run, int calls, std::size_t step) const {
    const auto expected = Contents::of_sum(run.dtype, place_.leaves, calls);
    return std::ranges::all_of(buffers_,
                               [&](const Buffer& buffer) { return expected.equals(buffer.data, run.elements, step); });
  }

  double probe() {
    constexpr int kRounds = 2'000;
    barrier_.wait();
    const auto began = Clock::now();
    for (int round = 0; round < kRounds; ++round) barrier_.wait();
    return nanoseconds(Clock::now() - began) / kRounds;
  }

  static double cpu_seconds_during(double seconds) {
    const auto used = [] {
      rusage usage{};
      ::getrusage(RUSAGE_SELF, &usage);
      const auto in_seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
      };
      return in_seconds(usage.ru_utime) + in_seconds(usage.ru_stime);
    };
    const double before = used();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return used() - before;
  }

  static double nanoseconds(Clock::duration duration) {
    return std::chrono::duration<double, std::nano>(duration).count();
  }

  Contender& contender_;
  const Place& place_;
  Line line_;
  Barrier barrier_;
  std::vector<Buffer> buffers_;
  std::size_t elements_ = 0;
  DType dtype_ = DType::f32;
};

}  // namespace

void serve(Contender& contender, const Place& place) { Server(contender, place).serve(); }

int fork_processes(int processes) {
  const pid_t first = ::getpid();
  for (int process = 1; process < processes; ++process) {
    const pid_t child = ::fork();
    if (child < 0) throw_errno("fork");
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != first) std::_Exit(1);  // it died before the line above
      return process;
    }
  }
  return 0;
}

int guarded_main(const char* program, void (*body)(int argc, char** argv), int argc, char** argv) {
  try {
    body(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << program << ": " << error.what() << "\n";
    return 1;
  }
}

void OwnMemory::Free::operator()(std::byte* block) const { std::free(block); }

std::byte* OwnMemory::resize(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  block_.reset();
  block_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage)));
  if (!block_) throw std::bad_alloc();
  return block_.get();
}

namespace {

// A contender whose parts are functions: how programs in Python take part.
class CallbackContender : public Contender {
 public:
  using Allocate = void* (*)(std::size_t elements);
  using AllReduce = void (*)();

  CallbackContender(int leaf, Allocate allocate, AllReduce reduce)
      : leaf_(leaf), allocate_(allocate), reduce_(reduce) {}

  std::vector<Buffer> prepare(std::size_t elements, DType dtype) override {
    if (dtype != DType::f32) throw std::runtime_error("only f32 is compared with peers");
    return {{static_cast<std::byte*>(allocate_(elements)), leaf_}};
  }

  void all_reduce() override { reduce_(); }

 private:
  int leaf_;
  Allocate allocate_;
  AllReduce reduce_;
};

}  // namespace
}  // namespace bench

extern "C" [[gnu::visibility("default")]] int bench_serve(const char* version, int rank, int size,
                                                          void* (*allocate)(std::size_t), void (*all_reduce)()) {
  try {
    bench::CallbackContender contender(rank, allocate, all_reduce);
    bench::serve(contender, {rank, size, size, version});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "bench_serve: " << error.what() << "\n";
    return 1;
  }
}
