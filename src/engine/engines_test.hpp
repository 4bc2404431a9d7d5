// Engines as a program has them, each in a thread of this process, over shared memory.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/engine.hpp"

namespace lockstep {

/// Runs `body(engine)` on every rank at once. A rank that throws fails the test, and ends the world for the others.
inline void run_engines(int size, const std::function<void(Engine&)>& body, const Options& base = {}) {
  static std::atomic<std::uint32_t> worlds = 0;
  const std::uint32_t epoch = ++worlds;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      Options options = base;
      options.rank = options.local_rank = rank;
      options.size = options.local_size = size;
      options.job = "engines-test-" + std::to_string(getpid());
      options.secret = std::string(32, 'e');
      options.epoch = epoch;
      if (options.heap_bytes == 0) options.heap_bytes = 1 << 20;
      try {
        Engine engine(options);
        try {
          body(engine);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
          engine.abort("a rank has failed");
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

/// A tensor of float32 at `data`.
inline TensorView tensor_at(float* data, std::vector<std::int64_t> shape, const std::string& name = {}) {
  return {.data = data, .dtype = DType::f32, .shape = std::move(shape), .name = name};
}

inline std::vector<float> floats_of(const Result& result) {
  const auto* first = static_cast<const float*>(result.tensor.data);
  return {first, first + result.tensor.elements()};
}

}  // namespace lockstep
