#include "rendezvous/pmix.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

#include "base/census.hpp"
#include "lockstep/error.hpp"

namespace lockstep::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

// The part of the PMIx interface that is used here, as it has been since version 2 of the standard.
constexpr int kOldest = 2;
constexpr int kNewest = 6;
constexpr int kSuccess = 0;
constexpr std::uint8_t kToAll = 3;        // PMIX_GLOBAL
constexpr std::uint16_t kStringType = 3;  // PMIX_STRING

struct Process {
  char job[256];
  std::uint32_t rank;
};
static_assert(sizeof(Process) == 260);

struct Value {
  std::uint16_t type;
  union {
    char* string;
    char other_types[64];  // more than any of them needs
  };
};
static_assert(offsetof(Value, string) == 8);

using OnValue = void (*)(int status, Value* value, void* data);

struct Functions {
  const char* (*version)();
  const char* (*error_text)(int status);
  int (*init)(Process* self, void* infos, std::size_t count);
  int (*finalize)(const void* infos, std::size_t count);
  int (*put)(std::uint8_t scope, const char* key, Value* value);
  int (*commit)();
  int (*get)(const Process* whose, const char* key, const void* infos, std::size_t count, OnValue answer, void* data);
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

std::optional<Functions> load_functions() {
  // It stays loaded: it may have threads. An MPI that is loaded already has brought the same one along.
  void* library = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
  Functions pmix{};
  if (library == nullptr || !find(library, "PMIx_Get_version", pmix.version) ||
      !find(library, "PMIx_Error_string", pmix.error_text) || !find(library, "PMIx_Init", pmix.init) ||
      !find(library, "PMIx_Finalize", pmix.finalize) || !find(library, "PMIx_Put", pmix.put) ||
      !find(library, "PMIx_Commit", pmix.commit) || !find(library, "PMIx_Get_nb", pmix.get)) {
    return std::nullopt;
  }
  const int major = pmix_major_version(pmix.version());
  if (major < kOldest || major > kNewest) return std::nullopt;
  return pmix;
}

// What has come so far. Answers come on a thread of PMIx, possibly when nobody waits for them any more.
struct Answers {
  enum class State { unasked, asked, answered };

  explicit Answers(int size) : states(static_cast<std::size_t>(size)), texts(static_cast<std::size_t>(size)) {}

  template <class Predicate>
  std::vector<std::size_t> ranks_where(Predicate fits) const {
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      if (fits(states[rank])) ranks.push_back(rank);
    }
    return ranks;
  }
  bool any(State state) const { return std::ranges::find(states, state) != states.end(); }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<State> states;
  std::vector<std::string> texts;
};

struct Question {
  std::shared_ptr<Answers> answers;
  std::size_t rank;
  pid_t asker;
};

void on_value(int status, Value* value, void* data) {
  const std::unique_ptr<Question> question(static_cast<Question*>(data));
  // The one thread that PMIx has here. It waits for its server for as long as the process lives, and must not keep a
  // deadlock of the program from being recognised.
  if (this_thread() != question->asker) leave_out_of_census(this_thread());
  Answers& answers = *question->answers;
  const std::lock_guard lock(answers.mutex);
  const bool found = status == kSuccess && value != nullptr && value->type == kStringType && value->string != nullptr;
  if (found) answers.texts[question->rank] = value->string;
  answers.states[question->rank] = found ? Answers::State::answered : Answers::State::unasked;
  answers.changed.notify_all();
}

// The connection to the server on this host. It ends with the process: a server to which a process has said good-bye
// forgets what it knew of it, and an MPI_Init in that process fails; one whose process ends without a good-bye takes
// that for a failure. An MPI in the same process shares the connection.
class Session {
 public:
  explicit Session(const Functions& pmix) : pmix_(pmix) { check(pmix_.init(&self_, nullptr, 0), "reach its server"); }
  ~Session() {
    if (::getpid() == owner_) pmix_.finalize(nullptr, 0);  // a forked child has nothing to say in our name
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void publish(const std::string& key, std::string text) {
    Value value{};
    value.type = kStringType;
    value.string = text.data();
    check(pmix_.put(kToAll, key.c_str(), &value), "take this rank's word");
    check(pmix_.commit(), "pass on this rank's word");
  }

  void ask(const std::string& key, std::size_t rank, const std::shared_ptr<Answers>& answers) {
    Process whose = self_;
    whose.rank = static_cast<std::uint32_t>(rank);
    {
      const std::lock_guard lock(answers->mutex);
      answers->states[rank] = Answers::State::asked;
    }
    auto question = std::make_unique<Question>(Question{answers, rank, this_thread()});
    check(pmix_.get(&whose, key.c_str(), nullptr, 0, on_value, question.get()), "ask for another rank's word");
    static_cast<void>(question.release());  // on_value has it, or will
  }

 private:
  void check(int status, const char* what) const {
    if (status == kSuccess) return;
    throw Error(
        ErrorCode::unavailable,
        fmt::format("PMIx could not {}: {}. Likely cause: the process was not started directly by mpirun or srun, "
                    "or its PMIx library ({}) does not fit theirs. Start it directly, or give the ranks a secret "
                    "with LOCKSTEP_SECRET_FILE.",
                    what, pmix_.error_text(status), pmix_.version()));
  }

  const Functions pmix_;
  const pid_t owner_ = ::getpid();
  Process self_{};
};

[[noreturn]] void fail_without(const std::vector<std::size_t>& missing, std::size_t size,
                               std::chrono::milliseconds timeout) {
  throw Error(
      ErrorCode::unavailable,
      fmt::format("{} of {} ranks arrived within {:.1f} s; missing: {}. Likely cause: they have not reached the "
                  "start of the engine (still importing, or ended early). Look at their output, or allow more "
                  "time with LOCKSTEP_START_TIMEOUT.",
                  size - missing.size(), size, static_cast<double>(timeout.count()) / 1000, fmt::join(missing, ", ")));
}

// Asks those that have not been asked, and waits until something is to be done. True: all have answered.
bool come_round(Session& session, const std::string& key, const std::shared_ptr<Answers>& answers,
                Clock::time_point deadline) {
  using State = Answers::State;
  std::unique_lock lock(answers->mutex);
  const auto unasked = answers->ranks_where([](State state) { return state == State::unasked; });
  lock.unlock();
  for (std::size_t rank : unasked) session.ask(key, rank, answers);
  lock.lock();
  answers->changed.wait_until(lock, deadline,
                              [&] { return answers->any(State::unasked) || !answers->any(State::asked); });
  if (!answers->any(State::unasked)) return !answers->any(State::asked);
  // The server keeps a question until the rank has spoken, except where it has already said something else.
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return false;
}

class LoadedPmix final : public Pmix {
 public:
  explicit LoadedPmix(const Functions& functions) : pmix_(functions) {}

  std::vector<std::string> all_gather(const std::string& key, const std::string& text, int size,
                                      std::chrono::milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    auto answers = std::make_shared<Answers>(size);
    static Session session(pmix_);
    session.publish(key, text);
    while (!come_round(session, key, answers, deadline)) {
      if (Clock::now() < deadline) continue;
      const std::lock_guard lock(answers->mutex);
      const auto missing = answers->ranks_where([](Answers::State state) { return state != Answers::State::answered; });
      if (!missing.empty()) fail_without(missing, answers->states.size(), timeout);
    }
    return answers->texts;
  }

 private:
  Functions pmix_;
};

}  // namespace

int pmix_major_version(const std::string& text) {
  const auto digit = text.find_first_of("0123456789");
  return digit == std::string::npos ? 0 : std::atoi(text.c_str() + digit);
}

std::unique_ptr<Pmix> Pmix::load() {
  static const std::optional<Functions> functions = load_functions();
  if (!functions) return nullptr;
  return std::make_unique<LoadedPmix>(*functions);
}

}  // namespace lockstep::rendezvous
