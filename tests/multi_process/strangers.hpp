// Those who come to a port and do not belong to the job, each in its own way. All return true when they were refused.
#pragma once

#include <openssl/rand.h>
#include <poll.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "net/call.hpp"
#include "net/data_hello.hpp"
#include "net/tls_stranger_test.hpp"

namespace lockstep::testing_processes {

class Strangers {
 public:
  /// `member` is the rank in whose place some of them come: they know all of it, or all but the secret.
  Strangers(net::Address port, net::Membership member, std::uint32_t owner)
      : port_(std::move(port)), member_(std::move(member)), owner_(owner) {}

  bool http() const { return is_dropped(as_bytes("GET / HTTP/1.1\r\nHost: training\r\n\r\n")); }

  bool random_bytes() const {
    std::vector<std::byte> noise(5000);
    for (const std::byte first : {std::byte{0}, std::byte{0x16}, net::kIdentityFirstByte}) {
      RAND_bytes(reinterpret_cast<unsigned char*>(noise.data()), static_cast<int>(noise.size()));
      if (first != std::byte{0}) noise[0] = first;
      if (!is_dropped(noise)) return false;
    }
    return true;
  }

  /// A TLS record and a hello in it that announce as much as they can, and then send on and on.
  bool huge_lengths() const {
    std::vector<std::byte> record(100'000, std::byte{0x55});
    const unsigned char head[] = {0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0xff, 0xff, 0xff, 0x03, 0x03};
    std::memcpy(record.data(), head, sizeof head);
    return is_dropped(record);
  }

  bool tls_without_the_key() const {
    net::Socket socket = connect();
    return net::is_refused_without_key(socket, TLS1_3_VERSION, soon());
  }

  bool wrong_secret() const {
    net::Membership other = member_;
    other.secret = std::string(32, 'w');
    try {
      net::call_control(net::TlsContext(), other, call());
    } catch (const net::HandshakeFailed&) {
      return true;
    }
    return false;
  }

  /// It holds the secret, so it is told.
  bool old_epoch() const {
    net::Membership old = member_;
    old.epoch -= 1;
    const net::DataHello hello{.identity = old.identity(owner_, net::Use::data), .nonce = net::random_nonce()};
    try {
      net::call_control(net::TlsContext(), old, call());
    } catch (const net::Refused& refused) {
      return refused.reason() == net::Reason::epoch && is_dropped(net::encode(hello));
    }
    return false;
  }

  /// What a member sends first is answered, but without the key nobody can go on from there.
  bool replayed_hello() const {
    const auto hello = recorded_hello();
    net::Socket socket = connect();
    net::write_whole(socket, hello, soon());
    return net::wait_for(socket.fd(), POLLIN, soon()) && is_dropped(socket, hello);
  }

  bool truncated_hello() const {
    const auto hello = recorded_hello();
    for (const std::size_t size : {std::size_t{1}, hello.size() / 2, hello.size() - 1}) {
      net::Socket socket = connect();
      net::write_whole(socket, std::span(hello).first(size), soon());
    }
    return true;
  }

  /// A byte now and then would take minutes; a gate has less patience.
  bool slow_bytes() const {
    const auto hello = recorded_hello();
    net::Socket socket = connect();
    try {
      for (const std::byte& byte : hello) {
        net::write_whole(socket, {&byte, 1}, soon());
        std::byte answer{};
        const auto next = net::Clock::now() + std::chrono::milliseconds(250);
        while (net::wait_for(socket.fd(), POLLIN, next)) socket.read_some({&answer, 1});
      }
    } catch (const net::ConnectionLost&) {
      return true;
    }
    return false;
  }

  /// They stay until the caller lets go of them.
  std::vector<net::Socket> half_open(int count) const {
    std::vector<net::Socket> crowd;
    for (int i = 0; i < count; ++i) {
      crowd.push_back(connect());
      if (i % 2 == 0) continue;
      try {
        net::write_whole(crowd.back(), as_bytes("L"), soon());
      } catch (const net::ConnectionLost&) {  // dropped already
      }
    }
    return crowd;
  }

 private:
  static net::Clock::time_point soon() { return net::Clock::now() + std::chrono::seconds(30); }
  static std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
  net::Socket connect() const { return net::Socket::connect(port_, soon()); }
  net::Call call() const { return {.rank = owner_, .address = port_, .deadline = soon()}; }

  bool is_dropped(std::span<const std::byte> bytes) const {
    net::Socket socket = connect();
    return is_dropped(socket, bytes);
  }

  static bool is_dropped(net::Socket& socket, std::span<const std::byte> bytes) {
    std::byte buffer[4096];
    try {
      net::write_whole(socket, bytes, soon());
      while (socket.read_some(buffer) > 0 || net::wait_for(socket.fd(), POLLIN, soon())) continue;
    } catch (const net::ConnectionLost&) {
      return true;
    }
    return false;
  }

  /// As somebody who listens on the wire would have it.
  std::vector<std::byte> recorded_hello() const {
    net::Listener wire(net::Address::loopback());
    wire.open();
    std::thread member([&] {
      const net::Call call{
          .rank = owner_, .address = wire.address(), .deadline = net::Clock::now() + std::chrono::milliseconds(300)};
      try {
        net::call_control(net::TlsContext(), member_, call);
      } catch (const Error&) {  // nobody answers
      }
    });
    std::vector<std::byte> record(4096);
    net::wait_for(wire.fd(), POLLIN, soon());
    auto socket = wire.accept();
    net::wait_for(socket->fd(), POLLIN, soon());
    record.resize(socket->read_some(record));
    member.join();
    return record;
  }

  net::Address port_;
  net::Membership member_;
  std::uint32_t owner_;
};

}  // namespace lockstep::testing_processes
