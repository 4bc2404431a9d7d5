// A whole world inside one test: ranks are threads, on the memory, the shm or the tcp transport; there on one host, or
// as if they were on two.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/sanitizer_test.hpp"
#include "engine/core.hpp"
#include "heap/segment.hpp"
#include "lockstep/options.hpp"
#include "transport/memory/memory_transport.hpp"
#include "transport/shm/shm_transport.hpp"
#include "transport/tcp/tcp_world_test.hpp"

namespace lockstep::engine {

enum class Over { memory, shm, tcp, hosts };

inline const char* name_of(Over over) {
  if (over == Over::hosts) return "hosts";
  if (over == Over::tcp) return "tcp";
  return over == Over::memory ? "memory" : "shm";
}

/// Worlds over TCP that a suite runs in, by their sizes: a few, or with LOCKSTEP_TEST_FULL=1 as many as over the
/// others.
inline std::vector<std::tuple<Over, int>> tcp_worlds(std::vector<int> tcp, std::vector<int> hosts) {
  if (std::getenv("LOCKSTEP_TEST_FULL") != nullptr) {
    tcp = {2, 3, 4, 5, 8};
    hosts = {2, 4, 5, 8};
  }
  std::vector<std::tuple<Over, int>> worlds;
  for (const int size : tcp) worlds.emplace_back(Over::tcp, size);
  for (const int size : hosts) worlds.emplace_back(Over::hosts, size);
  return worlds;
}

/// The first half of the ranks, rounded up, is on one host and the rest on another: 1+1, 2+2, 3+2, 4+4.
inline std::vector<std::unique_ptr<transport::Transport>> make_two_hosts(int size) {
  std::vector<int> hosts(static_cast<std::size_t>(size), 1);
  std::fill_n(hosts.begin(), (size + 1) / 2, 0);
  return transport::make_tcp_hosts(hosts);
}

inline std::vector<std::unique_ptr<transport::Transport>> make_world(Over over, int size,
                                                                     std::size_t arena_bytes = 32 << 20) {
  if (over == Over::memory) return transport::make_memory_world(size);
  if (over == Over::tcp) return transport::make_tcp_world(size);
  if (over == Over::hosts) return make_two_hosts(size);
  // One mapping, several threads: so the thread sanitizer sees every access to the shared memory.
  const Fd fd = heap::Segment::create(transport::shm_segment_shape(size, arena_bytes));
  auto segment = heap::Segment::attach(fd);
  std::vector<std::unique_ptr<transport::Transport>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(transport::make_shm_transport(segment, rank));
  return ranks;
}

inline Options world_options(int rank, int size) {
  Options options;
  options.rank = options.local_rank = rank;
  options.size = options.local_size = size;
  return options;
}

/// Runs `body(core)` on every rank at once; rethrows the first exception.
inline void run_world(Over over, int size, const std::function<void(Core&)>& body, const Options& base = {},
                      std::size_t arena_bytes = 32 << 20) {
  auto transports = make_world(over, size, arena_bytes);
  std::vector<std::unique_ptr<Core>> cores;
  for (int rank = 0; rank < size; ++rank) {
    Options options = base;
    options.rank = options.local_rank = rank;
    options.size = options.local_size = size;
    cores.push_back(std::make_unique<Core>(options, std::move(transports[static_cast<std::size_t>(rank)])));
  }
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < cores.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*cores[rank]);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& core : cores) core->stop();
  for (auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// As run_world over shm, but each rank believes that it has the cores for itself, so that what is not done when ranks
/// outnumber cores (short cut, relays) is done with any number of ranks. A rank that throws fails the test.
inline void run_roomy_world(int size, const std::function<void(Core&)>& body, std::size_t arena_bytes = 32 << 20) {
  auto transports = make_world(Over::shm, size, arena_bytes);
  std::vector<std::unique_ptr<Core>> cores;
  for (int rank = 0; rank < size; ++rank) {
    Options options = world_options(rank, size);
    options.local_size = 1;
    cores.push_back(std::make_unique<Core>(options, std::move(transports[static_cast<std::size_t>(rank)])));
  }
  std::vector<std::thread> threads;
  for (auto& core : cores) {
    threads.emplace_back([&] {
      try {
        body(*core);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << core->options().rank << ": " << error.what();
        try {
          core->abort("a rank has failed");
        } catch (const Error&) {  // another was first
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& core : cores) core->stop();
}

inline TensorView view(void* data, std::size_t elements, const std::string& name = {}, DType dtype = DType::f32) {
  return {.data = data, .dtype = dtype, .shape = {static_cast<std::int64_t>(elements)}, .name = name};
}

/// A blocking call, as the public interface makes it.
inline void run(Core& core, Request request) { core.run_to_end(std::move(request)); }

inline Request all_reduce(void* data, std::size_t elements, const std::string& name = {}, ReduceOp op = ReduceOp::sum) {
  return {.kind = collective::Kind::all_reduce,
          .input = view(data, elements, name),
          .output = view(data, elements, name),
          .op = op};
}

inline Request broadcast(void* data, std::size_t elements, int root, const std::string& name = {}) {
  return {.kind = collective::Kind::broadcast,
          .input = view(data, elements, name),
          .output = view(data, elements, name),
          .root = root};
}

inline Request barrier(const std::string& name = {}) {
  Request request;
  request.input.name = name;
  return request;
}

}  // namespace lockstep::engine
