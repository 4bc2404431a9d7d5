// A connection that somebody has made to this rank, until it has proved the job's key or is turned away.
//
// The first byte tells what it wants to be: a TLS channel, or a plain data connection (data_hello.hpp). Up to the proof
// a fixed number of bytes is read, and of them nothing but the identity is looked at, to find the key.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "net/data_hello.hpp"
#include "net/identity.hpp"
#include "net/tls.hpp"

namespace lockstep::net {

/// What is asked of a caller.
struct House {
  Membership self;
  /// Data connections must be TLS as well; plain ones are refused.
  bool encrypt_data = false;
  /// The key that was exported from the control channel with the rank `identity.from`; nullopt: there is none. A gate
  /// sets it.
  std::function<std::optional<Digest>(const Identity& identity)> data_key = {};
  TlsContext tls = {};
};

/// Somebody who is who it says it is.
struct Arrival {
  std::unique_ptr<Stream> stream;
  Identity identity;
  Digest data_key = {};  ///< of a control channel: for the data connections that come after it
};

/// Somebody who holds the key and must not come in: the caller has been told why.
struct TurnedAway {
  Identity identity;
  Refusal refusal;
};

/// Somebody without the key.
struct Stranger {
  std::string why;
};

class Knock {
 public:
  /// `house` outlives it.
  Knock(const House& house, Socket socket, Clock::time_point deadline);

  struct Waiting {};
  using Outcome = std::variant<Waiting, Arrival, TurnedAway, Stranger>;

  /// Goes as far as it can without waiting. After anything but Waiting it is over.
  Outcome step();

  bool silent() const { return silent_; }  ///< not one byte has come
  bool wants_write() const { return tls_ && tls_->wants_write(); }
  int fd() const { return tls_ ? tls_->fd() : socket_.fd(); }
  const std::string& from() const { return from_; }
  Clock::time_point deadline() const { return deadline_; }

 private:
  Outcome advance();
  Outcome step_tls();
  Outcome step_data();
  Outcome answer_hello();
  Outcome check_proof();
  std::optional<Digest> key_of(std::span<const std::byte> identity);

  const House& house_;
  Socket socket_;
  std::string from_;
  Clock::time_point deadline_;
  bool silent_ = true;

  std::unique_ptr<TlsStream> tls_;
  std::optional<Identity> claimed_;

  // A plain data connection: what has come of the message that is awaited, first the hello, then the proof.
  std::array<std::byte, kDataHelloBytes> bytes_{};
  std::size_t arrived_ = 0;
  std::optional<DataHello> hello_;
  Digest data_key_{};
  Digest nonce_{};
};

}  // namespace lockstep::net
