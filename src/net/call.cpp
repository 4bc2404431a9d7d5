#include "net/call.hpp"

#include <poll.h>

#include <algorithm>
#include <thread>

#include "net/data_hello.hpp"

namespace lockstep::net {
namespace {

// Again and again until it works, fails for good, or the time is over.
template <class Attempt>
auto until_deadline(const Call& call, Attempt&& attempt) {
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(50))) {
    try {
      return attempt();
    } catch (const ConnectionLost& lost) {
      if (Clock::now() + pause >= call.deadline) {
        throw ConnectionLost("rank " + std::to_string(call.rank) + " at " + call.address.text() +
                             " did not let this rank in in time: " + lost.what());
      }
      std::this_thread::sleep_for(pause);
    }
  }
}

[[noreturn]] void no_answer(const Call& call) {
  throw Error(ErrorCode::timeout,
              "rank " + std::to_string(call.rank) + " at " + call.address.text() + " did not answer in time");
}

Socket connect(const Call& call) {
  return Socket::connect(call.address, std::min(call.deadline, Clock::now() + call.first_answer));
}

std::unique_ptr<TlsStream> handshake(const TlsContext& tls, const Call& call, const Identity& identity,
                                     const Digest& key) {
  auto stream = TlsStream::call(tls, connect(call), encode(identity), key);
  try {
    while (!stream->handshake()) {
      if (!wait_for(stream->fd(), stream->wants_write() ? POLLOUT : POLLIN, call.deadline)) no_answer(call);
    }
  } catch (const HandshakeFailed& failure) {
    throw HandshakeFailed("this rank and the process at " + call.address.text() + ", called as rank " +
                          std::to_string(call.rank) + ", do not hold the same secret (" + failure.what() +
                          "). Start all ranks of a job with one secret.");
  }
  return stream;
}

Greeting read_greeting(TlsStream& stream, const Call& call, std::uint32_t epoch) {
  FrameReader reader(epoch, &greeting_limit);
  for (;;) {
    if (const auto frame = reader.take()) return decode_greeting(*frame);
    const std::size_t got = stream.read_some(reader.space());
    reader.filled(got);
    if (got == 0 && !wait_for(stream.fd(), POLLIN, call.deadline)) no_answer(call);
  }
}

// The listener holds the job's key; is it the rank that was called?
void check_welcome(const Identity& listener, const Identity& called_as) {
  if (listener.from == called_as.to && listener.to == called_as.from && listener.epoch == called_as.epoch) return;
  throw HandshakeFailed("rank " + std::to_string(listener.from) + " answered where rank " +
                        std::to_string(called_as.to) + " was called");
}

}  // namespace

ControlChannel call_control(const TlsContext& tls, const Membership& self, const Call& call) {
  const Identity identity = self.identity(call.rank, Use::control);
  return until_deadline(call, [&] {
    auto stream = handshake(tls, call, identity, control_key(self.secret, identity));
    const Greeting greeting = read_greeting(*stream, call, self.epoch);
    if (const auto* refusal = std::get_if<Refusal>(&greeting)) throw Refused(*refusal);
    check_welcome(std::get<Identity>(greeting), identity);
    const Digest data_key = stream->export_key(kDataKeyLabel);
    return ControlChannel{.stream = std::move(stream), .data_key = data_key};
  });
}

std::unique_ptr<Stream> call_data(const Membership& self, const Call& call, std::uint32_t connection,
                                  const Digest& data_key) {
  return until_deadline(call, [&] {
    auto socket = std::make_unique<Socket>(connect(call));
    const DataHello hello{.identity = self.identity(call.rank, Use::data, connection), .nonce = random_nonce()};
    write_whole(*socket, encode(hello), call.deadline);
    std::array<std::byte, kDataAnswerBytes> bytes{};
    read_whole(*socket, bytes, call.deadline);
    const DataAnswer answer = decode_data_answer(bytes);
    if (!equal(answer.proof, listener_proof(data_key, hello, answer.nonce)))
      throw HandshakeFailed("the other side has not proved the key of this connection");
    const Digest proof = caller_proof(data_key, hello, answer.nonce);
    write_whole(*socket, std::as_bytes(std::span(proof)), call.deadline);
    return std::unique_ptr<Stream>(std::move(socket));
  });
}

std::unique_ptr<TlsStream> call_encrypted_data(const TlsContext& tls, const Membership& self, const Call& call,
                                               std::uint32_t connection, const Digest& data_key) {
  return until_deadline(
      call, [&] { return handshake(tls, call, self.identity(call.rank, Use::data, connection), data_key); });
}

}  // namespace lockstep::net
