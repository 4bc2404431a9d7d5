#include "net/tls.hpp"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::net {
namespace {

constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};

// What OpenSSL says of the last failure; empties its queue.
std::string last_words() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return reason != nullptr ? reason : "no reason given";
}

void require(bool worked, const char* what) {
  if (!worked) throw Error(ErrorCode::system, std::string("OpenSSL could not ") + what + ": " + last_words());
}

// The form in which OpenSSL takes a key that both sides have already. The caller owns it.
SSL_SESSION* session_of(SSL* ssl, const Digest& key) {
  std::unique_ptr<SSL_SESSION, decltype(&SSL_SESSION_free)> session(SSL_SESSION_new(), &SSL_SESSION_free);
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256);
  if (!session || cipher == nullptr || SSL_SESSION_set1_master_key(session.get(), key.data(), key.size()) != 1 ||
      SSL_SESSION_set_cipher(session.get(), cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) != 1) {
    return nullptr;
  }
  return session.release();
}

}  // namespace

// The socket as OpenSSL sees it, with a bound on what may be read before the handshake is complete.
struct TlsStream::Wire {
  Socket* socket = nullptr;
  std::size_t allowance = kFlightBytes;
  bool limited = true;
  bool too_much = false;
  std::string lost = {};  // why the connection is gone; empty while it is not

  static Wire& of(BIO* bio) { return *static_cast<Wire*>(BIO_get_data(bio)); }

  static int read(BIO* bio, char* to, int size) {
    Wire& wire = of(bio);
    BIO_clear_retry_flags(bio);
    std::size_t wanted = static_cast<std::size_t>(size);
    if (wire.limited) wanted = std::min(wanted, wire.allowance);
    if (wanted == 0) wire.too_much = true;
    if (wire.too_much || !wire.lost.empty()) return -1;
    const std::size_t got = wire.move([&] {
      return wire.socket->read_some({reinterpret_cast<std::byte*>(to), wanted});
    });
    if (wire.limited) wire.allowance -= got;
    if (got == 0 && wire.lost.empty()) BIO_set_retry_read(bio);
    return got > 0 ? static_cast<int>(got) : -1;
  }

  static int write(BIO* bio, const char* from, int size) {
    Wire& wire = of(bio);
    BIO_clear_retry_flags(bio);
    if (!wire.lost.empty()) return -1;
    const std::size_t gone = wire.move([&] {
      return wire.socket->write_some({reinterpret_cast<const std::byte*>(from), static_cast<std::size_t>(size)});
    });
    if (gone == 0 && wire.lost.empty()) BIO_set_retry_write(bio);
    return gone > 0 ? static_cast<int>(gone) : -1;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  // An exception must not cross OpenSSL.
  template <class Move>
  std::size_t move(Move&& once) {
    try {
      return once();
    } catch (const ConnectionLost& error) {
      lost = error.what();
      return 0;
    }
  }

  static BIO_METHOD* method() {
    static const std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)> method = [] {
      std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)> made(
          BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "lockstep socket"), &BIO_meth_free);
      require(made && BIO_meth_set_read(made.get(), &Wire::read) == 1 &&
                  BIO_meth_set_write(made.get(), &Wire::write) == 1 &&
                  BIO_meth_set_ctrl(made.get(), &Wire::control) == 1,
              "make a kind of input and output");
      return made;
    }();
    return method.get();
  }
};

// What OpenSSL asks of us while it reads a hello.
struct TlsStream::Callbacks {
  static TlsStream& of(SSL* ssl) { return *static_cast<TlsStream*>(SSL_get_app_data(ssl)); }

  static int find(SSL* ssl, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
    *session = nullptr;
    TlsStream& stream = of(ssl);
    if (!stream.find_key_) return 0;
    const auto key = stream.find_key_({reinterpret_cast<const std::byte*>(identity), size});
    if (!key) return 0;
    *session = session_of(ssl, *key);
    return *session != nullptr ? 1 : 0;
  }

  static int use(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* size,
                 SSL_SESSION** session) {
    TlsStream& stream = of(ssl);
    *session = nullptr;
    // Asked a second time when the listener wants another key exchange; then its digest must fit.
    if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 0;
    *identity = reinterpret_cast<const unsigned char*>(stream.identity_.data());
    *size = stream.identity_.size();
    *session = session_of(ssl, stream.key_);
    return *session != nullptr ? 1 : 0;
  }
};

TlsContext::TlsContext() : context_(SSL_CTX_new(TLS_method()), &SSL_CTX_free) {
  SSL_CTX* context = context_.get();
  require(context != nullptr, "start TLS");
  // Without certificates and with nobody to trust, the key is the only way in, for both sides.
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  require(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1 &&
              SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
              SSL_CTX_set1_groups_list(context, "X25519") == 1,
          "set up TLS 1.3");
  SSL_CTX_set_psk_find_session_callback(context, &TlsStream::Callbacks::find);
  SSL_CTX_set_psk_use_session_callback(context, &TlsStream::Callbacks::use);
}

TlsStream::TlsStream(const TlsContext& context, Socket socket)
    : socket_(std::move(socket)),
      wire_(std::make_unique<Wire>(Wire{.socket = &socket_})),
      ssl_(SSL_new(context.get()), &SSL_free) {
  BIO* bio = BIO_new(Wire::method());
  require(ssl_ && bio != nullptr, "begin a connection");
  BIO_set_data(bio, wire_.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
}

TlsStream::~TlsStream() { OPENSSL_cleanse(key_.data(), key_.size()); }

std::unique_ptr<TlsStream> TlsStream::accept(const TlsContext& context, Socket socket, FindKey find_key) {
  std::unique_ptr<TlsStream> stream(new TlsStream(context, std::move(socket)));
  stream->find_key_ = std::move(find_key);
  constexpr unsigned char kName[] = "lockstep";  // OpenSSL wants one where a listener verifies its callers
  require(SSL_set_session_id_context(stream->ssl_.get(), kName, sizeof kName) == 1, "name a listener");
  SSL_set_accept_state(stream->ssl_.get());
  return stream;
}

std::unique_ptr<TlsStream> TlsStream::call(const TlsContext& context, Socket socket,
                                           std::span<const std::byte> identity, const Digest& key,
                                           std::uint64_t bytes_per_key) {
  std::unique_ptr<TlsStream> stream(new TlsStream(context, std::move(socket)));
  stream->identity_.assign(identity.begin(), identity.end());
  stream->key_ = key;
  stream->bytes_per_key_ = bytes_per_key;
  SSL_set_connect_state(stream->ssl_.get());
  return stream;
}

void TlsStream::fail(const std::string& what) {
  const std::string words = last_words();
  if (!wire_->lost.empty()) throw ConnectionLost(wire_->lost);
  throw HandshakeFailed(what + (wire_->too_much ? ": it sent too much before it proved the key" : ": " + words));
}

bool TlsStream::handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) {
    const int state = SSL_get_error(ssl_.get(), result);
    wants_write_ = state == SSL_ERROR_WANT_WRITE;
    if (wants_write_ || state == SSL_ERROR_WANT_READ) return false;
    fail("the other side has not proved the job's key");
  }
  // Not possible as we set it up; but everything rests on it.
  if (SSL_session_reused(ssl_.get()) != 1) fail("the connection was made without the job's key");
  wire_->limited = false;
  return true;
}

Digest TlsStream::export_key(std::string_view label) const {
  Digest key{};
  require(
      SSL_export_keying_material(ssl_.get(), key.data(), key.size(), label.data(), label.size(), nullptr, 0, 0) == 1,
      "export a key");
  return key;
}

std::size_t TlsStream::read_some(std::span<std::byte> to) {
  std::size_t total = 0;
  while (total < to.size()) {  // a record at a time
    std::size_t got = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(ssl_.get(), to.data() + total, to.size() - total, &got);
    total += got;
    if (result == 1) continue;
    const int state = SSL_get_error(ssl_.get(), result);
    // What has been read is delivered first; the failure is there again the next time.
    if (total > 0 || state == SSL_ERROR_WANT_READ || state == SSL_ERROR_WANT_WRITE) break;
    if (state == SSL_ERROR_ZERO_RETURN) throw ConnectionLost("the peer closed the connection");
    if (wire_->lost.empty()) wire_->lost = "what arrived had been tampered with (" + last_words() + ")";
    throw ConnectionLost(wire_->lost);
  }
  return total;
}

// The rest of one record: OpenSSL takes no more from the socket. Of a record that has not come whole, poll tells.
std::size_t TlsStream::held_back() const { return static_cast<std::size_t>(SSL_pending(ssl_.get())); }

std::size_t TlsStream::write_some(std::span<const std::byte> from) {
  if (written_with_key_ >= bytes_per_key_ && !write_pending_) {
    require(SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1, "change the key");
    written_with_key_ = 0;
  }
  std::size_t total = 0;
  write_pending_ = false;
  while (total < from.size()) {  // a record at a time
    std::size_t gone = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(ssl_.get(), from.data() + total, from.size() - total, &gone);
    total += gone;
    if (result == 1) continue;
    const int state = SSL_get_error(ssl_.get(), result);
    write_pending_ = state == SSL_ERROR_WANT_WRITE;
    if (total > 0 || state == SSL_ERROR_WANT_READ || write_pending_) break;
    if (wire_->lost.empty()) wire_->lost = "the connection is of no use any more (" + last_words() + ")";
    throw ConnectionLost(wire_->lost);
  }
  written_with_key_ += total;
  return total;
}

}  // namespace lockstep::net
