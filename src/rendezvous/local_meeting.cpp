#include "rendezvous/local_meeting.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "base/log.hpp"
#include "lockstep/error.hpp"
#include "net/proof.hpp"
#include "rendezvous/host.hpp"

namespace lockstep::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using net::derive_key;
using net::Digest;
using net::equal;
using net::hmac_sha256;
using net::random_nonce;

constexpr int kMaxRanks = 4096;
constexpr std::size_t kMaxStrangers = 64;  // connections without a proof that may be open at once
constexpr auto kProofLimit = std::chrono::seconds(5);

struct Challenge {
  Digest nonce;
};

struct Hello {
  Digest nonce;
  std::uint32_t rank;
  std::uint32_t size;
  std::int64_t pid;
  char version[32];
  Digest proof;
};

struct Answer {
  Digest proof;
};

struct Invitation {
  std::uint32_t accepted;  // 0: the meeting failed, and `reason` says why
  std::int32_t code;       // then: an ErrorCode
  char reason[1016];
  std::int32_t pids[kMaxRanks];
};

// The proof covers both nonces and everything in the hello, so that nothing of it can be replayed or altered.
Digest caller_proof(const Digest& key, const Challenge& challenge, Hello hello) {
  hello.proof = challenge.nonce;
  return hmac_sha256(key, {reinterpret_cast<const std::uint8_t*>(&hello), sizeof hello});
}

Digest listener_proof(const Digest& key, const Challenge& challenge, const Hello& hello) {
  const Digest both[2] = {hello.nonce, challenge.nonce};
  return hmac_sha256(key, {reinterpret_cast<const std::uint8_t*>(both), sizeof both});
}

sockaddr_un address_of(const MeetingOptions& options, socklen_t& length) {
  const Digest name =
      derive_key(options.secret, fmt::format("lockstep local meeting name {} {}", options.job, options.epoch));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A leading zero byte puts the name into the abstract space: nothing on disk, gone with the process.
  const std::string text = fmt::format("lockstep-{:02x}", fmt::join(name.begin(), name.begin() + 16, ""));
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

Digest key_of(const MeetingOptions& options) {
  return derive_key(options.secret, fmt::format("lockstep local meeting proof {} {}", options.job, options.epoch));
}

int remaining_ms(Clock::time_point deadline) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 200));
}

bool is_hopeless(const MeetingOptions& options) { return options.hopeless && options.hopeless(); }

constexpr const char* kHopeless = "a rank that was to come died while the others were waiting for it";

bool same_user(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 && credentials.uid == geteuid();
}

template <class Message>
void send_message(int fd, const Message& message, int descriptor = -1) {
  iovec part{.iov_base = const_cast<Message*>(&message), .iov_len = sizeof message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &descriptor, sizeof(int));
  }
  // Sequenced packets keep message borders, so one call sends it whole or not at all.
  if (sendmsg(fd, &header, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof message))
    throw_errno("send to a rank of this host");
}

// Returns bytes received (0: the other side is gone), or -1 when nothing has come yet.
template <class Message>
ssize_t receive_message(int fd, Message& message, Fd* descriptor = nullptr) {
  iovec part{.iov_base = &message, .iov_len = sizeof message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    int received = -1;
    std::memcpy(&received, CMSG_DATA(item), sizeof(int));
    Fd owned(received);  // closed again unless somebody asked for it
    if (descriptor != nullptr) *descriptor = std::move(owned);
  }
  return got;
}

// The error that rank 0 has told.
Error told(const Invitation& refusal, const std::string& reason) {
  const bool fits = refusal.code != static_cast<std::int32_t>(ErrorCode::incompatible);
  return {fits ? ErrorCode::unavailable : ErrorCode::incompatible, reason};
}

void set_text(char* target, std::size_t capacity, const std::string& text) {
  const std::size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
}

std::string text_of(const char* text, std::size_t capacity) { return {text, strnlen(text, capacity)}; }

}  // namespace

// Rank 0's side.
class LocalMeeting::Listener {
 public:
  Listener(const MeetingOptions& options, Clock::time_point deadline)
      : options_(options), deadline_(deadline), key_(key_of(options)) {
    socket_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    socklen_t length = 0;
    const sockaddr_un address = address_of(options, length);
    if (!socket_ || ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::listen(socket_.get(), SOMAXCONN) != 0) {
      if (errno == EADDRINUSE) {
        throw Error(
            ErrorCode::unavailable,
            fmt::format(
                "rank 0 of job '{}' is already running on this host (engine {}). Likely cause: two processes were "
                "started with the same rank and secret. Start them with `lockstep run`.",
                options.job, options.epoch));
      }
      throw_errno("listen for the other ranks");
    }
  }

  // Accepts callers until every rank is here.
  void gather() {
    while (static_cast<int>(callers_.size()) < options_.size - 1) {
      if (Clock::now() >= deadline_) fail(missing_text());
      if (is_hopeless(options_)) fail(kHopeless);
      step();
    }
  }

  void invite(const std::vector<pid_t>& pids, const Fd& descriptor) {
    auto invitation = std::make_unique<Invitation>();
    invitation->accepted = 1;
    std::copy(pids.begin(), pids.end(), invitation->pids);
    for (auto& [rank, caller] : callers_) send_message(caller.fd.get(), *invitation, descriptor.get());
  }

  std::vector<pid_t> pids() const {
    std::vector<pid_t> pids(static_cast<std::size_t>(options_.size), 0);
    pids[0] = getpid();
    for (const auto& [rank, caller] : callers_) pids[rank] = static_cast<pid_t>(caller.hello.pid);
    return pids;
  }

  void await_ready() {
    for (auto& [rank, caller] : callers_) {
      char byte = 0;
      for (;;) {
        pollfd wait{.fd = caller.fd.get(), .events = POLLIN, .revents = 0};
        ::poll(&wait, 1, remaining_ms(deadline_));
        const ssize_t got = receive_message(caller.fd.get(), byte);
        if (got > 0) break;
        if (got == 0) fail(fmt::format("lost rank {} (pid {}) while starting", rank, caller.hello.pid));
        if (is_hopeless(options_)) fail(kHopeless);
        if (Clock::now() >= deadline_)
          fail(fmt::format("rank {} (pid {}) did not finish starting in time", rank, caller.hello.pid));
      }
    }
    for (auto& [rank, caller] : callers_) send_message(caller.fd.get(), char{1});
  }

 private:
  struct Connection {
    Fd fd;
    Challenge challenge{};
    Hello hello{};
    Clock::time_point since;
  };

  [[noreturn]] void fail(const std::string& reason, ErrorCode code = ErrorCode::unavailable) {
    auto refusal = std::make_unique<Invitation>();
    refusal->code = static_cast<std::int32_t>(code);
    set_text(refusal->reason, sizeof refusal->reason, reason);
    for (auto& [rank, caller] : callers_) {
      try {
        send_message(caller.fd.get(), *refusal);
      } catch (const Error&) {  // it is gone: nobody to tell
      }
    }
    throw Error(code, reason);
  }

  std::string missing_text() const {
    std::vector<int> missing;
    for (int rank = 1; rank < options_.size; ++rank) {
      if (!callers_.contains(static_cast<std::uint32_t>(rank))) missing.push_back(rank);
    }
    return fmt::format(
        "{} of {} ranks arrived within {:.1f} s; missing: {}. Likely cause: they have not reached the start of the "
        "engine "
        "(still importing, or ended early), or were started with another secret. Look at their output, or allow more "
        "time with "
        "LOCKSTEP_START_TIMEOUT.",
        callers_.size() + 1, options_.size, static_cast<double>(options_.timeout.count()) / 1000,
        fmt::join(missing, ", "));
  }

  void step() {
    std::vector<pollfd> waits{{.fd = socket_.get(), .events = POLLIN, .revents = 0}};
    for (const auto& stranger : strangers_) waits.push_back({.fd = stranger.fd.get(), .events = POLLIN, .revents = 0});
    ::poll(waits.data(), waits.size(), remaining_ms(deadline_));
    std::erase_if(strangers_, [this](Connection& stranger) { return !keep_waiting(stranger); });
    for (auto it = callers_.begin(); it != callers_.end();) {
      it = hung_up(it->second) ? callers_.erase(it) : std::next(it);  // it may come back, or be reported as missing
    }
    while (strangers_.size() < kMaxStrangers) {
      Fd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) break;
      if (!same_user(fd.get())) continue;
      Connection stranger{.fd = std::move(fd), .challenge = {random_nonce()}, .hello = {}, .since = Clock::now()};
      try {
        send_message(stranger.fd.get(), stranger.challenge);
        strangers_.push_back(std::move(stranger));
      } catch (const Error&) {  // it hung up at once
      }
    }
  }

  static bool hung_up(const Connection& caller) {
    char byte = 0;
    return ::recv(caller.fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  }

  // False: the connection is to be dropped (or has become a caller).
  bool keep_waiting(Connection& stranger) {
    const ssize_t got = receive_message(stranger.fd.get(), stranger.hello);
    if (got < 0) return Clock::now() - stranger.since < kProofLimit;
    const Hello& hello = stranger.hello;
    if (got != static_cast<ssize_t>(sizeof hello) ||
        !equal(hello.proof, caller_proof(key_, stranger.challenge, hello))) {
      report_refusal();
      return false;
    }
    // From here on it is one of us: mistakes are answered, not ignored.
    send_message(stranger.fd.get(), Answer{listener_proof(key_, stranger.challenge, hello)});
    const std::uint32_t rank = hello.rank;
    const std::string theirs = text_of(hello.version, sizeof hello.version);
    callers_.insert_or_assign(rank, std::move(stranger));
    if (theirs != options_.version) {
      fail(fmt::format("incompatible versions: rank 0 has Lockstep {}, rank {} has {}, both on {}. Install the same "
                       "version everywhere.",
                       options_.version, rank, theirs, host_name()),
           ErrorCode::incompatible);
    }
    if (hello_of(rank).size != static_cast<std::uint32_t>(options_.size) || rank == 0 || rank >= hello_of(rank).size) {
      fail(fmt::format(
          "rank 0 expects a world of {}, but a process came as rank {} of {}. Start all ranks with one `lockstep run`.",
          options_.size, rank, hello_of(rank).size));
    }
    return false;
  }

  // One line a minute, however many knock.
  void report_refusal() {
    const auto now = Clock::now();
    if (reported_ && now - *reported_ < std::chrono::minutes(1)) return;
    reported_ = now;
    log::warn(0, "a process of this user connected without this job's secret and was refused");
  }

  const Hello& hello_of(std::uint32_t rank) const { return callers_.at(rank).hello; }

  const MeetingOptions& options_;
  Clock::time_point deadline_;
  Digest key_;
  Fd socket_;
  std::optional<Clock::time_point> reported_;
  std::vector<Connection> strangers_;
  std::map<std::uint32_t, Connection> callers_;
};

// Every other rank's side.
class LocalMeeting::Caller {
 public:
  Caller(const MeetingOptions& options, Clock::time_point deadline)
      : options_(options), deadline_(deadline), key_(key_of(options)) {
    connect();
    Challenge challenge{};
    receive(challenge);
    Hello hello{};
    hello.nonce = random_nonce();
    hello.rank = static_cast<std::uint32_t>(options.rank);
    hello.size = static_cast<std::uint32_t>(options.size);
    hello.pid = getpid();
    set_text(hello.version, sizeof hello.version, options.version);
    hello.proof = caller_proof(key_, challenge, hello);
    send_message(socket_.get(), hello);
    Answer answer{};
    receive(answer);
    if (!equal(answer.proof, listener_proof(key_, challenge, hello))) {
      throw Error(ErrorCode::unavailable,
                  "the process that answered in rank 0's place does not hold this job's secret");
    }
  }

  std::vector<pid_t> accept_invitation(Fd& descriptor) {
    auto invitation = std::make_unique<Invitation>();
    receive(*invitation, &descriptor);
    if (invitation->accepted == 0) {
      throw told(*invitation, text_of(invitation->reason, sizeof invitation->reason));
    }
    if (!descriptor) throw Error(ErrorCode::internal, "rank 0 sent no descriptor with its invitation");
    return {invitation->pids, invitation->pids + options_.size};
  }

  void await_ready() {
    send_message(socket_.get(), char{1});
    // Either the byte that says go, or a refusal with its reason.
    auto reply = std::make_unique<Invitation>();
    const ssize_t got = receive_some(*reply, nullptr);
    if (got == static_cast<ssize_t>(sizeof(Invitation))) {
      throw told(*reply, text_of(reply->reason, sizeof reply->reason));
    }
  }

 private:
  void connect() {
    socklen_t length = 0;
    const sockaddr_un address = address_of(options_, length);
    // Rank 0 may not be there yet; an abstract name gives no event to wait for, so ask again at short intervals.
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
      socket_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      if (!socket_) throw_errno("make a socket");
      if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) {
        if (same_user(socket_.get())) return;
        throw Error(ErrorCode::unavailable, "another user listens in rank 0's place");
      }
      if (errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN && errno != EINTR) throw_errno("reach rank 0");
      if (is_hopeless(options_)) throw Error(ErrorCode::unavailable, kHopeless);
      if (Clock::now() >= deadline_) {
        throw Error(
            ErrorCode::unavailable,
            fmt::format(
                "rank 0 did not arrive within {:.1f} s. Likely cause: it has not reached the start of the engine "
                "(still "
                "importing, or ended early), or was started with another secret. Look at its output, or allow more "
                "time with LOCKSTEP_START_TIMEOUT.",
                static_cast<double>(options_.timeout.count()) / 1000));
      }
      std::this_thread::sleep_for(pause);
    }
  }

  template <class Message>
  void receive(Message& message, Fd* descriptor = nullptr) {
    if (receive_some(message, descriptor) != static_cast<ssize_t>(sizeof message)) {
      throw Error(ErrorCode::incompatible,
                  fmt::format("rank 0 on {} sent a message of an unexpected size: it runs another version of Lockstep "
                              "than {}. Install the same version everywhere.",
                              host_name(), options_.version));
    }
  }

  template <class Message>
  ssize_t receive_some(Message& message, Fd* descriptor) {
    // Rank 0 gives up at the deadline and says why; the extra second lets its words arrive.
    const auto patience = deadline_ + std::chrono::seconds(1);
    for (;;) {
      pollfd wait{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, remaining_ms(patience));
      const ssize_t got = receive_message(socket_.get(), message, descriptor);
      if (got > 0) return got;
      if (got == 0) throw Error(ErrorCode::unavailable, "lost rank 0 while starting; look at its output for the cause");
      if (is_hopeless(options_)) throw Error(ErrorCode::unavailable, kHopeless);
      if (Clock::now() >= patience) throw Error(ErrorCode::unavailable, "rank 0 stopped answering while starting");
    }
  }

  const MeetingOptions& options_;
  Clock::time_point deadline_;
  Digest key_;
  Fd socket_;
};

LocalMeeting::LocalMeeting(const MeetingOptions& options, const std::function<Fd()>& make_descriptor)
    : options_(options), deadline_(Clock::now() + options.timeout) {
  if (options.size > kMaxRanks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} ranks on one host; at most {} are supported", options.size, kMaxRanks));
  }
  if (options.secret.size() != 32) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "a world of {} needs the job's secret of 32 bytes, got {}. Start the program with `lockstep run`, which "
            "makes one and hands it over.",
            options.size, options.secret.size()));
  }
  if (options.rank == 0) {
    listener_ = std::make_unique<Listener>(options_, deadline_);
    listener_->gather();
    pids_ = listener_->pids();
    descriptor_ = make_descriptor();
    listener_->invite(pids_, descriptor_);
  } else {
    caller_ = std::make_unique<Caller>(options_, deadline_);
    pids_ = caller_->accept_invitation(descriptor_);
  }
}

LocalMeeting::~LocalMeeting() = default;

void LocalMeeting::ready() {
  if (listener_) {
    listener_->await_ready();
    listener_.reset();
  } else {
    caller_->await_ready();
    caller_.reset();
  }
}

}  // namespace lockstep::rendezvous
