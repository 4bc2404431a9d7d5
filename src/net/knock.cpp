#include "net/knock.hpp"

#include <cstring>

#include "net/greeting.hpp"

namespace lockstep::net {
namespace {

constexpr std::byte kTlsHandshake{0x16};  // the first byte of every TLS connection

}  // namespace

Knock::Knock(const House& house, Socket socket, Clock::time_point deadline)
    : house_(house), socket_(std::move(socket)), from_(socket_.peer()), deadline_(deadline) {}

Knock::Outcome Knock::step() {
  try {
    return advance();
  } catch (const ConnectionLost&) {
    return Stranger{"it hung up before it proved the job's key"};
  } catch (const HandshakeFailed& failure) {
    return Stranger{failure.what()};
  }
}

Knock::Outcome Knock::advance() {
  if (tls_) return step_tls();
  if (silent_) {
    const auto first = socket_.first_byte();
    if (!first) return Waiting{};
    silent_ = false;
    if (*first == kTlsHandshake) {
      tls_ = TlsStream::accept(house_.tls, std::move(socket_), [this](auto identity) { return key_of(identity); });
      return step_tls();
    }
    if (*first != kIdentityFirstByte) return Stranger{"it does not speak Lockstep's protocol"};
    if (house_.encrypt_data) return Stranger{"it wants a plain data connection, and data is encrypted in this job"};
  }
  return step_data();
}

std::optional<Digest> Knock::key_of(std::span<const std::byte> bytes) {
  claimed_ = decode_identity(bytes);
  if (!claimed_) return std::nullopt;
  if (claimed_->use == Use::control) return control_key(house_.self.secret, *claimed_);
  // A data key belongs to one pair in one epoch, so there are no words to exchange with anybody else.
  if (judge(*claimed_, house_.self) || !house_.data_key) return std::nullopt;
  return house_.data_key(*claimed_);
}

Knock::Outcome Knock::step_tls() {
  if (!tls_->handshake()) return Waiting{};
  if (claimed_->use == Use::data) return Arrival{.stream = std::move(tls_), .identity = *claimed_};
  const auto refusal = judge(*claimed_, house_.self, from_);
  const auto greeting = refusal ? make_refusal(*refusal, claimed_->epoch)
                                : make_welcome(house_.self.identity(claimed_->from, Use::control));
  // It fits into what the system holds for a new connection; a caller that made that smaller is none of ours.
  if (tls_->write_some(greeting) != greeting.size()) return Stranger{"it takes no answer"};
  if (refusal) return TurnedAway{.identity = *claimed_, .refusal = *refusal};
  const Digest data_key = tls_->export_key(kDataKeyLabel);
  return Arrival{.stream = std::move(tls_), .identity = *claimed_, .data_key = data_key};
}

Knock::Outcome Knock::step_data() {
  for (;;) {
    const std::size_t wanted = hello_ ? sizeof(Digest) : kDataHelloBytes;
    const std::size_t got = socket_.read_some(std::span(bytes_).subspan(arrived_, wanted - arrived_));
    if (got == 0) return Waiting{};
    arrived_ += got;
    if (arrived_ < wanted) continue;
    arrived_ = 0;
    if (hello_) return check_proof();
    if (auto outcome = answer_hello(); !std::holds_alternative<Waiting>(outcome)) return outcome;
  }
}

Knock::Outcome Knock::answer_hello() {
  hello_ = decode_data_hello(bytes_);
  const auto key = hello_ ? key_of(std::span(bytes_).first(kIdentityBytes)) : std::nullopt;
  if (!key) return Stranger{"its hello belongs to no connection of this job and epoch"};
  data_key_ = *key;
  nonce_ = random_nonce();
  const auto answer = encode(DataAnswer{.nonce = nonce_, .proof = listener_proof(data_key_, *hello_, nonce_)});
  if (socket_.write_some(answer) != answer.size()) return Stranger{"it takes no answer"};
  return Waiting{};
}

Knock::Outcome Knock::check_proof() {
  Digest proof{};
  std::memcpy(proof.data(), bytes_.data(), proof.size());
  if (!equal(proof, caller_proof(data_key_, *hello_, nonce_))) return Stranger{"its proof of the job's key is wrong"};
  return Arrival{.stream = std::make_unique<Socket>(std::move(socket_)), .identity = hello_->identity};
}

}  // namespace lockstep::net
