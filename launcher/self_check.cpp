#include "self_check.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "capture.hpp"
#include "lockstep/lockstep.h"

namespace lockstep::launcher {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kElements = 1 << 20;

/// The engine by its C interface, loaded at run time: the library is a part of its own, and may be what is wrong.
class EngineLibrary {
 public:
  explicit EngineLibrary(const std::string& path) : handle_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(::dlerror());
    take(version, "ls_version");
    take(last_error, "ls_last_error");
    take(start, "ls_engine_start");
    take(stop, "ls_engine_stop");
    take(rank, "ls_engine_rank");
    take(all_reduce, "ls_all_reduce");
  }

  void check(int status) const {
    if (status != LS_OK) throw std::runtime_error(last_error());
  }

  decltype(&ls_version) version;
  decltype(&ls_last_error) last_error;
  decltype(&ls_engine_start) start;
  decltype(&ls_engine_stop) stop;
  decltype(&ls_engine_rank) rank;
  decltype(&ls_all_reduce) all_reduce;

 private:
  template <typename Function>
  void take(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    if (function == nullptr) throw std::runtime_error(fmt::format("it has no function {}", name));
  }

  void* handle_;
};

void add_numbers(const EngineLibrary& library) {
  ls_engine* engine = nullptr;
  library.check(library.start(nullptr, &engine));
  const int rank = library.rank(engine);
  std::vector<float> values(static_cast<std::size_t>(kElements), static_cast<float>(rank + 1));
  ls_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.data = values.data();
  tensor.dtype = LS_F32;
  tensor.ndim = 1;
  tensor.shape = &kElements;
  tensor.name = "doctor";
  const auto began = Clock::now();
  library.check(library.all_reduce(engine, &tensor, &tensor, nullptr, nullptr));
  const std::chrono::duration<double, std::milli> took = Clock::now() - began;
  library.check(library.stop(engine));
  if (std::any_of(values.begin(), values.end(), [](float value) { return value != 3.0F; })) {
    throw std::runtime_error("the sum over two ranks is wrong");
  }
  if (rank == 0) fmt::print("added 4 MB in {:.1f} ms\n", took.count());
}

}  // namespace

int run_self_test_rank(const std::string& library) {
  try {
    add_numbers(EngineLibrary(library));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

std::string version_of_library(const std::string& path, std::string& error) {
  try {
    return EngineLibrary(path).version();
  } catch (const std::exception& caught) {
    error = caught.what();
    return {};
  }
}

Finding run_self_test(const std::string& program, const std::string& library, std::chrono::milliseconds at_most) {
  const auto began = Clock::now();
  BackgroundCommand command({program, "run", "--quiet", "-np", "2", program, kSelfTestRank, library});
  const CommandResult result = command.result(began + at_most);
  const std::chrono::duration<double> took = Clock::now() - began;
  if (result.ok()) {
    const std::size_t text = result.output.find("added");
    return {"self-test", Finding::Level::good,
            fmt::format("two ranks started, {}, and ended, in {:.2f} s",
                        text == std::string::npos ? "met" : result.output.substr(text, result.output.find('\n') - text),
                        took.count())};
  }
  if (took >= at_most) {
    return {"self-test", Finding::Level::problem, fmt::format("two ranks did not finish within {:.0f} s", took.count()),
            fmt::format("LOCKSTEP_LOG=debug lockstep run -np 2 {} {} {}", program, kSelfTestRank, library)};
  }
  return {"self-test", Finding::Level::problem, "two ranks failed: " + result.first_line(),
          fmt::format("lockstep run -np 2 {} {} {}", program, kSelfTestRank, library)};
}

}  // namespace lockstep::launcher
