// The C interface of the engine: translates structs and calls. That of the optimizers is in c_optimizer.cpp,
// that of shared weights in c_shared_weights.cpp.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "c_api/guarded.hpp"
#include "c_api/handles.hpp"
#include "lockstep/lockstep.h"
#include "lockstep/lockstep.hpp"

struct ls_work {
  lockstep::Work work;
  lockstep::Result result;  // keeps alive what ls_work_result showed
};

struct ls_group {
  lockstep::Group group;
};

struct ls_block {
  lockstep::Block block;
};

namespace {

using lockstep::Error;
using lockstep::ErrorCode;
using lockstep::c_api::guarded;
using lockstep::c_api::required;
using lockstep::c_api::take;

void describe(const ls_tensor* given, lockstep::TensorView& view) {
  const ls_tensor tensor = take(given, ls_tensor{}, "tensor");
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr))
    throw Error(ErrorCode::invalid_argument, "tensor without a shape");
  view.data = tensor.data;
  view.dtype = static_cast<lockstep::DType>(tensor.dtype);
  lockstep::size_of(view.dtype);  // refuses an unknown number
  if (tensor.device != 0) throw Error(ErrorCode::invalid_argument, "tensor is not on the CPU");
  view.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  view.strides.clear();
  if (tensor.strides != nullptr) view.strides.assign(tensor.strides, tensor.strides + tensor.ndim);
  view.name = tensor.name != nullptr ? tensor.name : "";
}

lockstep::TensorView view_of(const ls_tensor* given) {
  lockstep::TensorView view;
  describe(given, view);
  return view;
}

ls_options defaults() {
  const lockstep::Options options;
  return {.struct_size = sizeof(ls_options),
          .rank = options.rank,
          .size = options.size,
          .local_rank = options.local_rank,
          .local_size = options.local_size,
          .job = nullptr,
          .secret = nullptr,
          .secret_bytes = 0,
          .epoch = LS_EPOCH_AUTOMATIC,
          .heap_bytes = options.heap_bytes,
          .start_timeout_ms = static_cast<std::uint64_t>(options.start_timeout.count()),
          .stall_warning_ms = static_cast<std::uint64_t>(options.stall_warning.count()),
          .stall_limit_ms = static_cast<std::uint64_t>(options.stall_limit.count()),
          .timeline = nullptr,
          .flight_directory = nullptr,
          .transport = nullptr,
          .interface = nullptr,
          .meeting = nullptr,
          .encrypt_data = 0,
          .group_ranks = nullptr,
          .group_sizes = nullptr,
          .group_count = 0,
          .timeline_mark_steps = 0};
}

lockstep::Options options_of(const ls_options* given) {
  const ls_options taken = take(given, defaults(), "options");
  lockstep::Options options;
  options.rank = taken.rank;
  options.size = taken.size;
  options.local_rank = taken.local_rank;
  options.local_size = taken.local_size;
  if (taken.job != nullptr) options.job = taken.job;
  if (taken.secret != nullptr) options.secret.assign(static_cast<const char*>(taken.secret), taken.secret_bytes);
  if (taken.epoch != LS_EPOCH_AUTOMATIC) options.epoch = taken.epoch;
  options.heap_bytes = taken.heap_bytes;
  options.start_timeout = std::chrono::milliseconds(taken.start_timeout_ms);
  options.stall_warning = std::chrono::milliseconds(taken.stall_warning_ms);
  options.stall_limit = std::chrono::milliseconds(taken.stall_limit_ms);
  if (taken.timeline != nullptr) options.timeline = taken.timeline;
  if (taken.flight_directory != nullptr) options.flight_directory = taken.flight_directory;
  if (taken.transport != nullptr) options.transport = taken.transport;
  if (taken.interface != nullptr) options.interface = taken.interface;
  if (taken.meeting != nullptr) options.meeting = taken.meeting;
  options.encrypt_data = taken.encrypt_data != 0;
  const int32_t* next = taken.group_ranks;
  for (size_t i = 0; i < taken.group_count; ++i) {
    const size_t ranks = (&required(taken.group_sizes, "group_sizes"))[i];
    if (ranks > 0) required(next, "group_ranks");
    options.groups.emplace_back(next, next + ranks);
    next += ranks;
  }
  options.timeline_mark_steps = taken.timeline_mark_steps != 0;
  return options;
}

void hand_over(ls_work** target, lockstep::Work work) { required(target, "work") = new ls_work{std::move(work), {}}; }

lockstep::Group group_of(const ls_group* group) { return group != nullptr ? group->group : lockstep::Group(); }

lockstep::TensorView optional_view(const ls_tensor* tensor) {
  return tensor != nullptr ? view_of(tensor) : lockstep::TensorView();
}

std::vector<std::int64_t> splits_of(const int64_t* splits, size_t count) {
  return splits != nullptr ? std::vector<std::int64_t>(splits, splits + count) : std::vector<std::int64_t>();
}

lockstep::Epilogue epilogue_of(const ls_reduce_options& options) {
  return [call = options.epilogue, user = options.epilogue_user](const lockstep::ReducedSlice& slice) {
    const ls_reduced_slice given{.struct_size = sizeof(ls_reduced_slice),
                                 .offset = slice.offset,
                                 .count = slice.count,
                                 .values = slice.values,
                                 .tensor = slice.tensor};
    if (const char* problem = call(user, &given)) throw std::runtime_error(problem);
  };
}

lockstep::ReduceOptions reduce_options_of(const ls_reduce_options* given) {
  const ls_reduce_options preset{.struct_size = sizeof(ls_reduce_options),
                                 .op = LS_SUM,
                                 .average_over_contributors = 0,
                                 .prescale = 1.0,
                                 .postscale = 1.0,
                                 .group = nullptr,
                                 .leaves = 0,
                                 .first_leaf = 0,
                                 .leaf_count = 0,
                                 .result_dtype = 0,
                                 .epilogue = nullptr,
                                 .epilogue_user = nullptr};
  const ls_reduce_options taken = given != nullptr ? take(given, preset, "reduce options") : preset;
  lockstep::ReduceOptions options;
  options.op = static_cast<lockstep::ReduceOp>(taken.op);
  lockstep::name_of(options.op);  // refuses an unknown number
  options.average_over_contributors = taken.average_over_contributors != 0;
  options.prescale = taken.prescale;
  options.postscale = taken.postscale;
  options.group = group_of(taken.group);
  options.leaves = {taken.first_leaf, taken.leaf_count, taken.leaves};
  if (taken.result_dtype != 0) {
    options.result_type = static_cast<lockstep::DType>(taken.result_dtype);
    lockstep::size_of(*options.result_type);  // refuses an unknown number
  }
  if (taken.epilogue != nullptr) options.epilogue = epilogue_of(taken);
  return options;
}

void add_to(lockstep::Batch& batch, const ls_operation* given) {
  const ls_operation taken = take(given, ls_operation{}, "operation");
  const auto output = optional_view(taken.output);
  const auto group = group_of(taken.group);
  switch (taken.kind) {
    case LS_ALL_REDUCE:
      return batch.all_reduce(view_of(taken.input), output, reduce_options_of(taken.options));
    case LS_REDUCE:
      return batch.reduce(view_of(taken.input), output, taken.root, reduce_options_of(taken.options));
    case LS_REDUCE_SCATTER:
      return batch.reduce_scatter(view_of(taken.input), output, reduce_options_of(taken.options));
    case LS_BROADCAST:
      return batch.broadcast(view_of(taken.input), taken.root, group);
    case LS_ALL_GATHER:
      return batch.all_gather(view_of(taken.input), output, group);
    case LS_GATHER:
      return batch.gather(view_of(taken.input), taken.root, output, group);
    case LS_SCATTER:
      return batch.scatter(view_of(taken.input), taken.root, output, group);
    case LS_ALL_TO_ALL:
      return batch.all_to_all(view_of(taken.input), splits_of(taken.splits, taken.split_count), output, group);
    case LS_SEND:
      return batch.send(view_of(taken.input), taken.root, taken.tag);
    case LS_RECEIVE:
      return batch.receive(view_of(taken.input), taken.root, taken.tag);
    case LS_BARRIER:
      return batch.barrier(optional_view(taken.input).name, group);
    default:
      throw Error(ErrorCode::invalid_argument, "there is no operation of kind " + std::to_string(taken.kind));
  }
}

}  // namespace

extern "C" {

int ls_abi_version(void) { return LS_ABI_VERSION; }
const char* ls_version(void) { return lockstep::version(); }
const char* ls_last_error(void) { return lockstep::c_api::last_error().c_str(); }

int ls_options_from_environment(ls_options* target) {
  return guarded([&] {
    thread_local lockstep::Options kept;
    const std::size_t size = required(target, "options").struct_size;
    kept = lockstep::Options::from_environment();
    ls_options filled = defaults();
    filled.rank = kept.rank;
    filled.size = kept.size;
    filled.local_rank = kept.local_rank;
    filled.local_size = kept.local_size;
    filled.job = kept.job.c_str();
    filled.secret = kept.secret.data();
    filled.secret_bytes = kept.secret.size();
    filled.heap_bytes = kept.heap_bytes;
    filled.start_timeout_ms = static_cast<std::uint64_t>(kept.start_timeout.count());
    filled.stall_warning_ms = static_cast<std::uint64_t>(kept.stall_warning.count());
    filled.stall_limit_ms = static_cast<std::uint64_t>(kept.stall_limit.count());
    filled.timeline = kept.timeline.c_str();
    filled.flight_directory = kept.flight_directory.c_str();
    filled.transport = kept.transport.c_str();
    filled.interface = kept.interface.c_str();
    filled.meeting = kept.meeting.c_str();
    filled.encrypt_data = kept.encrypt_data ? 1 : 0;
    filled.timeline_mark_steps = kept.timeline_mark_steps ? 1 : 0;
    std::memcpy(target, &filled, std::min(size, sizeof filled));
    target->struct_size = size;
  });
}

int ls_engine_start(const ls_options* options, ls_engine** engine) {
  return guarded([&] {
    required(engine, "engine") = nullptr;
    *engine = new ls_engine(std::make_unique<lockstep::Engine>(
        options != nullptr ? options_of(options) : lockstep::Options::from_environment()));
  });
}

int ls_engine_stop(ls_engine* engine) {
  return guarded([&] { delete &required(engine, "engine"); });
}

int ls_engine_rank(const ls_engine* engine) { return engine != nullptr ? engine->engine.rank() : -1; }
int ls_engine_size(const ls_engine* engine) { return engine != nullptr ? engine->engine.size() : -1; }
int ls_engine_local_rank(const ls_engine* engine) { return engine != nullptr ? engine->engine.local_rank() : -1; }
int ls_engine_local_size(const ls_engine* engine) { return engine != nullptr ? engine->engine.local_size() : -1; }

int ls_all_reduce(ls_engine* engine, const ls_tensor* input, const ls_tensor* output, const ls_reduce_options* options,
                  ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    const auto reduce = reduce_options_of(options);
    const auto from = view_of(input);
    const auto to = output == input ? from : view_of(output);
    if (work == nullptr) return target.all_reduce(from, to, reduce);
    hand_over(work, target.all_reduce_async(from, to, reduce));
  });
}

int ls_all_reduce_at_once(ls_engine* engine, const ls_tensor* input, const ls_tensor* output,
                          const ls_reduce_options* options, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    required(work, "work") = nullptr;
    const auto from = view_of(input);
    lockstep::Work rest =
        target.all_reduce_at_once(from, output == input ? from : view_of(output), reduce_options_of(options));
    if (rest.valid()) hand_over(work, std::move(rest));
  });
}

int ls_leaf_blocks(int64_t leaves, int64_t first_leaf, int64_t leaf_count, ls_leaf_block* blocks, size_t capacity,
                   size_t* count) {
  return guarded([&] {
    const auto found = lockstep::leaf_blocks({first_leaf, leaf_count, leaves});
    required(count, "count") = found.size();
    if (blocks == nullptr) return;
    for (size_t i = 0; i < std::min(capacity, found.size()); ++i) blocks[i] = {found[i].first, found[i].count};
  });
}

int ls_sum_leaves(int64_t leaves, int64_t first_leaf, int64_t leaf_count, const ls_tensor* tensors,
                  const ls_tensor* partials, int32_t op, double prescale) {
  return guarded([&] {
    if (leaf_count > 0) required(tensors, "tensors");
    std::vector<lockstep::TensorView> views;
    for (int64_t i = 0; i < leaf_count; ++i) views.push_back(view_of(tensors + i));
    lockstep::name_of(static_cast<lockstep::ReduceOp>(op));  // refuses an unknown number
    lockstep::sum_leaves({first_leaf, leaf_count, leaves}, views, view_of(partials),
                         static_cast<lockstep::ReduceOp>(op), prescale);
  });
}

int ls_owned_slice(size_t elements, int32_t result_dtype, size_t index, size_t ranks, size_t* offset, size_t* count) {
  return guarded([&] {
    if (index >= ranks) throw Error(ErrorCode::invalid_argument, "index must be below ranks");
    const auto slice = lockstep::owned_slice(elements, static_cast<lockstep::DType>(result_dtype), index, ranks);
    required(offset, "offset") = slice.offset;
    required(count, "count") = slice.count;
  });
}

int ls_grouped_all_reduce(ls_engine* engine, const ls_tensor* inputs, const ls_tensor* outputs, size_t count,
                          const ls_reduce_options* options, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    if (count > 0) required(inputs, "inputs"), required(outputs, "outputs");
    std::vector<lockstep::TensorPair> pairs;
    for (size_t i = 0; i < count; ++i) pairs.push_back({view_of(inputs + i), view_of(outputs + i)});
    if (work == nullptr) return target.all_reduce(pairs, reduce_options_of(options));
    hand_over(work, target.all_reduce_async(pairs, reduce_options_of(options)));
  });
}

int ls_reduce(ls_engine* engine, const ls_tensor* input, const ls_tensor* output, int32_t root,
              const ls_reduce_options* options, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    auto submitted = target.reduce_async(view_of(input), optional_view(output), root, reduce_options_of(options));
    if (work == nullptr) return submitted.wait();
    hand_over(work, std::move(submitted));
  });
}

int ls_broadcast(ls_engine* engine, const ls_tensor* tensor, int32_t root, const ls_group* group, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    if (work == nullptr) return target.broadcast(view_of(tensor), root, group_of(group));
    hand_over(work, target.broadcast_async(view_of(tensor), root, group_of(group)));
  });
}

int ls_send(ls_engine* engine, const ls_tensor* tensor, int32_t receiver, int32_t tag, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    if (work == nullptr) return target.send(view_of(tensor), receiver, tag);
    hand_over(work, target.send_async(view_of(tensor), receiver, tag));
  });
}

int ls_receive(ls_engine* engine, const ls_tensor* tensor, int32_t sender, int32_t tag, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    if (work == nullptr) return target.receive(view_of(tensor), sender, tag);
    hand_over(work, target.receive_async(view_of(tensor), sender, tag));
  });
}

int ls_barrier(ls_engine* engine, const char* name, const ls_group* group, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    const std::string named = name != nullptr ? name : "";
    if (work == nullptr) return target.barrier(named, group_of(group));
    hand_over(work, target.barrier_async(named, group_of(group)));
  });
}

int ls_reduce_scatter(ls_engine* engine, const ls_tensor* input, const ls_tensor* output,
                      const ls_reduce_options* options, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    hand_over(work, target.reduce_scatter_async(view_of(input), optional_view(output), reduce_options_of(options)));
  });
}

int ls_all_gather(ls_engine* engine, const ls_tensor* input, const ls_tensor* output, const ls_group* group,
                  ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    hand_over(work, target.all_gather_async(view_of(input), optional_view(output), group_of(group)));
  });
}

int ls_gather(ls_engine* engine, const ls_tensor* input, const ls_tensor* output, int32_t root, const ls_group* group,
              ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    hand_over(work, target.gather_async(view_of(input), root, optional_view(output), group_of(group)));
  });
}

int ls_scatter(ls_engine* engine, const ls_tensor* input, const ls_tensor* output, int32_t root, const ls_group* group,
               ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    hand_over(work, target.scatter_async(view_of(input), root, optional_view(output), group_of(group)));
  });
}

int ls_all_to_all(ls_engine* engine, const ls_tensor* input, const int64_t* splits, size_t split_count,
                  const ls_tensor* output, const ls_group* group, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    hand_over(work, target.all_to_all_async(view_of(input), splits_of(splits, split_count), optional_view(output),
                                            group_of(group)));
  });
}

int ls_join(ls_engine* engine, const ls_group* group, ls_work** work) {
  return guarded([&] { hand_over(work, required(engine, "engine").engine.join_async(group_of(group))); });
}

int ls_submit_together(ls_engine* engine, const ls_operation* operations, size_t count, ls_work** work) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    lockstep::Batch batch;
    // Their size is that of the caller's header.
    const size_t size = count > 0 ? required(operations, "operations").struct_size : 0;
    const auto* first = reinterpret_cast<const std::byte*>(operations);
    for (size_t i = 0; i < count; ++i) add_to(batch, reinterpret_cast<const ls_operation*>(first + i * size));
    auto submitted = target.run_async(batch);
    if (work == nullptr) return submitted.wait();
    hand_over(work, std::move(submitted));
  });
}

int ls_group_make(ls_engine* engine, const int32_t* ranks, size_t count, ls_group** group) {
  return guarded([&] {
    required(group, "group") = nullptr;
    if (count > 0) required(ranks, "ranks");
    *group = new ls_group{required(engine, "engine").engine.make_group(std::vector<int>(ranks, ranks + count))};
  });
}

int ls_group_at_start(ls_engine* engine, size_t index, ls_group** group) {
  return guarded([&] {
    required(group, "group") = nullptr;
    *group = new ls_group{required(engine, "engine").engine.group(index)};
  });
}

void ls_group_free(ls_group* group) { delete group; }

int ls_work_poll(ls_work* work, int* done) {
  return guarded([&] { required(done, "done") = required(work, "work").work.poll() ? 1 : 0; });
}

int ls_work_wait(ls_work* work, int64_t timeout_ms) {
  return guarded([&] {
    const lockstep::Work& target = required(work, "work").work;
    if (timeout_ms >= 0 && !target.wait_for(std::chrono::milliseconds(timeout_ms))) {
      throw Error(ErrorCode::timeout, "the operation is still under way after " + std::to_string(timeout_ms) + " ms");
    }
    target.wait();
  });
}

int ls_work_wait_slice(ls_work* work, int64_t slice_ms) {
  return guarded([&] {
    const lockstep::Work& target = required(work, "work").work;
    if (!target.wait_slice(std::chrono::milliseconds(slice_ms)))
      throw Error(ErrorCode::timeout, "the operation is still under way after " + std::to_string(slice_ms) + " ms");
    target.wait();
  });
}

int ls_work_result(ls_work* work, size_t index, ls_result* result) {
  return guarded([&] {
    ls_work& handle = required(work, "work");
    const size_t size = required(result, "result").struct_size;
    handle.result = handle.work.result(index);
    const lockstep::TensorView& tensor = handle.result.tensor;
    ls_result filled{};
    filled.data = tensor.data;
    filled.dtype = static_cast<int32_t>(tensor.dtype);
    filled.ndim = static_cast<int32_t>(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), filled.shape);
    filled.received = handle.result.received.data();
    filled.received_count = handle.result.received.size();
    filled.last_joined = handle.result.last_joined;
    std::memcpy(result, &filled, std::min(size, sizeof filled));
    result->struct_size = size;
  });
}

int ls_work_error(ls_work* work, size_t index) {
  return guarded([&] {
    const lockstep::Work& target = required(work, "work").work;
    if (!target.poll()) throw Error(ErrorCode::timeout, "the operation is still under way");
    if (const auto exception = target.exception(index)) std::rethrow_exception(exception);
  });
}

void ls_work_free(ls_work* work) { delete work; }

int ls_begin_step(ls_engine* engine) {
  return guarded([&] { required(engine, "engine").engine.begin_step(); });
}

int ls_begin_exclusive_step(ls_engine* engine) {
  return guarded([&] { required(engine, "engine").engine.begin_exclusive_step(); });
}

int ls_all_reduce_in_step(ls_engine* engine, const ls_tensor* tensor, const ls_reduce_options* options) {
  return guarded(
      [&] { required(engine, "engine").engine.all_reduce_in_step(view_of(tensor), reduce_options_of(options)); });
}

int ls_all_reduce_several_in_step(ls_engine* engine, const ls_placed_tensor* tensors, size_t count,
                                  const ls_reduce_options* options) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    if (count > 0) required(tensors, "tensors");
    const auto reduce = reduce_options_of(options);
    lockstep::TensorView view;  // its memory serves all of them
    for (size_t i = 0; i < count; ++i) {
      describe(tensors[i].like, view);
      view.data = tensors[i].data;
      target.all_reduce_in_step(view, reduce);
    }
  });
}

int ls_end_step(ls_engine* engine, uint64_t* steps) {
  return guarded([&] {
    const std::uint64_t completed = required(engine, "engine").engine.end_step();
    if (steps != nullptr) *steps = completed;
  });
}

int ls_abort(ls_engine* engine, const char* reason) {
  return guarded([&] { required(engine, "engine").engine.abort(reason != nullptr ? reason : "no reason given"); });
}

int ls_agree(ls_engine* engine, ls_agreement* agreement) {
  return guarded([&] {
    thread_local std::vector<std::int32_t> failed;
    thread_local std::vector<std::int32_t> survivors;
    const size_t size = required(agreement, "agreement").struct_size;
    const lockstep::Agreement agreed = required(engine, "engine").engine.agree();
    failed.assign(agreed.failed.begin(), agreed.failed.end());
    survivors.assign(agreed.survivors.begin(), agreed.survivors.end());
    const ls_agreement filled{.struct_size = size,
                              .failed = failed.data(),
                              .failed_count = failed.size(),
                              .survivors = survivors.data(),
                              .survivor_count = survivors.size(),
                              .steps = agreed.steps};
    std::memcpy(agreement, &filled, std::min(size, sizeof filled));
  });
}

int ls_engine_continue(ls_engine* engine, ls_engine** next) {
  return guarded([&] {
    required(next, "next") = nullptr;
    *next = new ls_engine(required(engine, "engine").engine.continue_with_survivors());
  });
}

int ls_timeline_start(ls_engine* engine, const char* path, int flags) {
  return guarded([&] {
    lockstep::Engine& target = required(engine, "engine").engine;
    target.start_timeline(&required(path, "path"), (flags & LS_TIMELINE_MARK_STEPS) != 0,
                          (flags & LS_TIMELINE_EXACT_PATH) != 0);
  });
}

int ls_timeline_stop(ls_engine* engine) {
  return guarded([&] { required(engine, "engine").engine.stop_timeline(); });
}

int ls_timeline_merge(const char* const* paths, size_t count, const char* merged) {
  return guarded([&] {
    required(merged, "merged");
    if (count > 0) required(paths, "paths");
    lockstep::merge_timelines(std::vector<std::string>(paths, paths + count), merged);
  });
}

const char* ls_flight_record(ls_engine* engine) {
  thread_local std::string kept;
  const int status = guarded([&] { kept = required(engine, "engine").engine.flight_record(); });
  return status == LS_OK ? kept.c_str() : nullptr;
}

int ls_counters(ls_engine* engine, ls_counter* counters, size_t capacity, size_t* count) {
  return guarded([&] {
    thread_local std::vector<lockstep::Counter> kept;
    kept = required(engine, "engine").engine.counters();
    required(count, "count") = kept.size();
    if (counters == nullptr || capacity == 0) return;
    const size_t size = take(counters, ls_counter{}, "counters").struct_size;
    auto* next = reinterpret_cast<std::byte*>(counters);
    for (size_t i = 0; i < std::min(capacity, kept.size()); ++i, next += size) {
      const ls_counter filled{
          .struct_size = size, .name = kept[i].name.c_str(), .kind = kept[i].kind.c_str(), .value = kept[i].value};
      std::memcpy(next, &filled, std::min(size, sizeof filled));
    }
  });
}

void* ls_allocate(ls_engine* engine, size_t bytes) {
  void* block = nullptr;
  guarded([&] { block = required(engine, "engine").engine.allocate(bytes); });
  return block;
}

int ls_deallocate(ls_engine* engine, void* block) {
  return guarded([&] { required(engine, "engine").engine.deallocate(block); });
}

int ls_heap_holds(ls_engine* engine, const void* data, size_t bytes, int* inside) {
  return guarded([&] { required(inside, "inside") = required(engine, "engine").engine.holds(data, bytes) ? 1 : 0; });
}

int ls_serve_allocations(ls_engine* engine, const size_t* sizes, size_t count, int (*meant)(void), int* served) {
  return guarded([&] {
    if (count > 0) required(sizes, "sizes");
    const std::vector<std::size_t> wanted(sizes, sizes + count);
    required(served, "served") = required(engine, "engine").engine.serve_allocations(wanted, meant) ? 1 : 0;
  });
}

int ls_engine_shares_memory(const ls_engine* engine) {
  return engine != nullptr && engine->engine.shares_memory() ? 1 : 0;
}

int ls_block_make(ls_engine* engine, size_t bytes, uint32_t users, ls_block** block) {
  return guarded([&] {
    required(block, "block") = nullptr;
    lockstep::Block made = required(engine, "engine").engine.make_block(bytes, users);
    if (made.valid()) *block = new ls_block{std::move(made)};
  });
}

int ls_block_open(ls_engine* engine, int32_t owner, uint64_t place, ls_block** block) {
  return guarded([&] {
    required(block, "block") = nullptr;
    *block = new ls_block{required(engine, "engine").engine.open_block(owner, place)};
  });
}

void* ls_block_data(const ls_block* block) { return block != nullptr ? block->block.data() : nullptr; }
uint64_t ls_block_place(const ls_block* block) { return block != nullptr ? block->block.place() : 0; }
void ls_block_free(ls_block* block) { delete block; }

}  // extern "C"
