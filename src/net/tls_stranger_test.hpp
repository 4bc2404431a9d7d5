// Somebody who speaks TLS at a gate and does not hold the job's key: a test's client.
#pragma once

#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <memory>

#include "net/socket.hpp"

namespace lockstep::net {

/// OpenSSL writes to a socket without MSG_NOSIGNAL, and the gate may have closed it by then. Keeps the SIGPIPE of this
/// thread, and of no other, from the process.
class SigpipeHeld {
 public:
  SigpipeHeld() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeHeld() {
    const timespec now{};
    ::sigtimedwait(&pipe_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeHeld(const SigpipeHeld&) = delete;
  SigpipeHeld& operator=(const SigpipeHeld&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

/// True when the other side turned it away before `deadline`, in whatever way.
inline bool is_refused_without_key(Socket& socket, int highest_version, Clock::time_point deadline) {
  const SigpipeHeld held;
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX_set_max_proto_version(context.get(), highest_version);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(ssl.get(), socket.fd());
  for (;;) {
    const int result = SSL_connect(ssl.get());
    if (result == 1) return false;
    if (SSL_get_error(ssl.get(), result) != SSL_ERROR_WANT_READ) return true;
    if (!wait_for(socket.fd(), POLLIN, deadline)) return false;
  }
}

}  // namespace lockstep::net
