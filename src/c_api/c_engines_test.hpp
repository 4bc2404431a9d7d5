// Engines of the C interface, each in a thread of this process.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"

/// `epoch` tells apart the worlds of one test program.
inline ls_options world_of(int size, int rank, uint32_t epoch) {
  static const std::string secret(32, 'c');
  ls_options options{};
  options.struct_size = sizeof options;
  EXPECT_EQ(ls_options_from_environment(&options), LS_OK);
  options.size = options.local_size = size;
  options.rank = options.local_rank = rank;
  options.job = "c-api-test";
  options.secret = secret.data();
  options.secret_bytes = secret.size();
  options.epoch = epoch;
  options.heap_bytes = 1 << 20;
  return options;
}

inline ls_tensor tensor_of(float* data, const int64_t* shape, const char* name) {
  ls_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.data = data;
  tensor.dtype = LS_F32;
  tensor.ndim = 1;
  tensor.shape = shape;
  tensor.name = name;
  return tensor;
}

/// Every rank is a thread with an engine of its own.
inline void run_c_engines(
    int size, uint32_t epoch, const std::function<void(ls_engine*, int)>& body,
    const std::function<void(ls_options&)>& change = [](ls_options&) {}) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      ls_options options = world_of(size, rank, epoch);
      change(options);
      ls_engine* engine = nullptr;
      ASSERT_EQ(ls_engine_start(&options, &engine), LS_OK) << ls_last_error();
      body(engine, rank);
      EXPECT_EQ(ls_engine_stop(engine), LS_OK) << ls_last_error();
    });
  }
  for (auto& rank : ranks) rank.join();
}

inline ls_operation operation_of(ls_operation_kind kind, const ls_tensor* input, const ls_tensor* output = nullptr) {
  ls_operation operation{};
  operation.struct_size = sizeof operation;
  operation.kind = kind;
  operation.input = input;
  operation.output = output;
  return operation;
}
