// All ranks of a world over TCP, inside one test: as threads that find each other through memory.
#pragma once

#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "transport/tcp/tcp_transport.hpp"

namespace lockstep::transport {

inline TcpOptions tcp_test_options(int rank, int size) {
  TcpOptions options;
  options.self = {.secret = std::string(32, 's'),
                  .job = net::job_tag("test"),
                  .epoch = 1,
                  .rank = static_cast<std::uint32_t>(rank),
                  .size = static_cast<std::uint32_t>(size),
                  .release = "test"};
  // A machine that is busy with tests lets threads wait for long, and nothing here is about silence.
  options.silence = std::chrono::seconds(60);
  return options;
}

/// Connects them all at once; rethrows the first exception.
inline std::vector<std::unique_ptr<Transport>> connect_tcp_world(std::vector<TcpOptions> all) {
  std::vector<TcpDoor> doors;
  std::vector<net::Address> addresses;
  for (const TcpOptions& options : all) {
    doors.emplace_back(options);
    addresses.push_back(doors.back().address());
  }
  std::vector<std::unique_ptr<Transport>> ranks(all.size());
  std::vector<std::exception_ptr> failures(all.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ranks[rank] = TcpDoor::connect(std::move(doors[rank]), addresses, net::Clock::now() + std::chrono::seconds(30));
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return ranks;
}

inline std::vector<std::unique_ptr<Transport>> make_tcp_world(int size) {
  std::vector<TcpOptions> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(tcp_test_options(rank, size));
  return connect_tcp_world(std::move(all));
}

/// `hosts` says for each rank in which it is, as far as the engine is concerned.
inline std::vector<std::unique_ptr<Transport>> make_tcp_hosts(const std::vector<int>& hosts) {
  std::vector<TcpOptions> all;
  const int size = static_cast<int>(hosts.size());
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(tcp_test_options(rank, size));
    all.back().hosts = hosts;
  }
  return connect_tcp_world(std::move(all));
}

}  // namespace lockstep::transport
