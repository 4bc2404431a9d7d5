// A connection in TLS 1.3 with a key that both sides have already: no certificates. An ephemeral key exchange (X25519)
// goes with it, so a secret that leaks later does not open what was recorded.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/proof.hpp"
#include "net/socket.hpp"

using SSL = struct ssl_st;
using SSL_CTX = struct ssl_ctx_st;

namespace lockstep::net {

/// What all connections of one side share. Any number of threads.
class TlsContext {
 public:
  TlsContext();
  SSL_CTX* get() const { return context_.get(); }

 private:
  std::shared_ptr<SSL_CTX> context_;
};

/// The other side does not hold the key, or does not speak as it should.
class HandshakeFailed : public Error {
 public:
  explicit HandshakeFailed(const std::string& message) : Error(ErrorCode::unavailable, message) {}
};

class TlsStream final : public Stream {
 public:
  /// The key that belongs to what a caller calls itself; nullopt: nobody that is known.
  using FindKey = std::function<std::optional<Digest>(std::span<const std::byte> identity)>;

  /// A connection may read so many bytes before its handshake is complete. Ours take less than a third of it.
  static constexpr std::size_t kFlightBytes = 2048;

  /// The key is changed after so many bytes in one direction; AES-GCM allows a few hundred times as many.
  static constexpr std::uint64_t kBytesPerKey = std::uint64_t{1} << 32;

  static std::unique_ptr<TlsStream> accept(const TlsContext& context, Socket socket, FindKey find_key);
  static std::unique_ptr<TlsStream> call(const TlsContext& context, Socket socket, std::span<const std::byte> identity,
                                         const Digest& key, std::uint64_t bytes_per_key = kBytesPerKey);
  ~TlsStream() override;
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  /// Goes as far as it can without waiting; true when the other side has proved the key. Nothing else is allowed
  /// before. Throws HandshakeFailed and ConnectionLost.
  bool handshake();

  /// A key that only the two sides of this connection know (RFC 8446, 7.5).
  Digest export_key(std::string_view label) const;

  std::size_t read_some(std::span<std::byte> to) override;
  std::size_t write_some(std::span<const std::byte> from) override;
  using Stream::write_some;
  std::size_t held_back() const override;
  int fd() const override { return socket_.fd(); }

  /// Whether the handshake waits to write, instead of to read.
  bool wants_write() const { return wants_write_; }

  const Socket& socket() const { return socket_; }

 private:
  struct Wire;
  struct Callbacks;
  friend class TlsContext;

  TlsStream(const TlsContext& context, Socket socket);

  [[noreturn]] void fail(const std::string& what);

  Socket socket_;
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
  FindKey find_key_;
  std::vector<std::byte> identity_;
  Digest key_{};
  bool wants_write_ = false;
  std::uint64_t bytes_per_key_ = kBytesPerKey;
  std::uint64_t written_with_key_ = 0;
  bool write_pending_ = false;  ///< a record is half written
};

}  // namespace lockstep::net
