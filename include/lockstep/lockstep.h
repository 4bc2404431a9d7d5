/* The C interface of Lockstep: what Python, and every language with a foreign function interface, uses.
 *
 * Rules: every function returns LS_OK or an ls_status and lets no exception through; ls_last_error() then holds the
 * message, per thread. Structs begin with their size, so that fields can be appended: set it with sizeof. Those that
 * have none say so, and stay as they are for ever.
 * Handles are freed by the function that names them; a null handle is refused, not followed.
 */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_API __attribute__((visibility("default")))

typedef enum ls_status {
  LS_OK = 0,
  LS_INVALID_ARGUMENT = 1,
  LS_MISMATCH = 2,
  LS_PEER_LOST = 3,
  LS_TIMEOUT = 4,
  LS_ABORTED = 5,
  LS_UNAVAILABLE = 6,
  LS_SYSTEM = 7,
  LS_INTERNAL = 8,
  LS_INCOMPATIBLE = 9
} ls_status;

/* Numbers of lockstep::DType and lockstep::ReduceOp. */
/* clang-format off */
typedef enum ls_dtype {
  LS_BOOL = 0, LS_U8 = 1, LS_I8 = 2, LS_U16 = 3, LS_I16 = 4, LS_U32 = 5, LS_I32 = 6, LS_U64 = 7, LS_I64 = 8,
  LS_F16 = 9, LS_BF16 = 10, LS_F32 = 11, LS_F64 = 12, LS_C64 = 13, LS_C128 = 14
} ls_dtype;
typedef enum ls_reduce_op {
  LS_AVERAGE = 0, LS_SUM = 1, LS_ADASUM = 2, LS_MIN = 3, LS_MAX = 4, LS_PRODUCT = 5
} ls_reduce_op;
/* clang-format on */

typedef struct ls_engine ls_engine;
typedef struct ls_work ls_work;
typedef struct ls_group ls_group;
typedef struct ls_block ls_block;
typedef struct ls_shared_weights ls_shared_weights;

/* A tensor of the caller's. strides may be null (row-major, contiguous); name may be null (matched by order). */
typedef struct ls_tensor {
  size_t struct_size;
  void* data;
  int32_t dtype;
  int32_t device; /* 0: the CPU */
  int32_t ndim;
  const int64_t* shape;
  const int64_t* strides;
  const char* name;
} ls_tensor;

/* A part of a reduction's result, in the hands of the rank that computed it. See lockstep/epilogue.hpp. */
typedef struct ls_reduced_slice {
  size_t struct_size;
  size_t offset, count; /* in elements */
  void* values;         /* may be changed; what is here on return goes to all outputs */
  size_t tensor;        /* grouped: which of them */
} ls_reduced_slice;

/* Returns null, or why it failed: a string that stays valid until the thread's next call of it. */
typedef const char* (*ls_epilogue)(void* user, const ls_reduced_slice* slice);

/* Fields that follow `op` may be left out by a smaller struct_size; zero is then their default, except the scales' 1.
 */
typedef struct ls_reduce_options {
  size_t struct_size;
  int32_t op;
  int32_t average_over_contributors;
  double prescale;
  double postscale;
  const struct ls_group* group; /* null: the world */
  /* Reductions over `leaves` leaves, of which this rank owns leaf_count from first_leaf on. The input then holds one
   * partial sum per block (ls_leaf_blocks) in its first dimension. 0: every rank is a leaf. */
  int64_t leaves, first_leaf, leaf_count;
  int32_t result_dtype; /* LS_F16 or LS_BF16 for an input of float32; 0: that of the input */
  ls_epilogue epilogue; /* null: none. Must not call the engine. */
  void* epilogue_user;  /* handed to it; must live until the operation has ended */
} ls_reduce_options;

/* Numbers of lockstep::OptimizerKind. */
typedef enum ls_optimizer_kind {
  LS_SGD = 0,
  LS_ADAM = 1,
  LS_ADAMW = 2,
  LS_ADAGRAD = 3,
  LS_RMSPROP = 4,
  LS_LION = 5
} ls_optimizer_kind;

/* Which optimizer, and how. See lockstep/optimizer.hpp; fields left out by a smaller struct_size have the defaults told
 * there. */
typedef struct ls_optimizer_options {
  size_t struct_size;
  int32_t kind, maximize, nesterov, amsgrad, centered;
  double learning_rate, weight_decay, momentum, dampening, beta1, beta2, epsilon, learning_rate_decay, smoothing;
} ls_optimizer_options;

/* The weights of one tensor, and this rank's part of its state, which begins at element `first`. */
typedef struct ls_optimized_tensor {
  size_t struct_size;
  void* weights;
  int32_t dtype; /* LS_F16, LS_BF16, LS_F32 or LS_F64; state is LS_F32, or LS_F64 with the last */
  size_t first;
  void* state[3];
  float* master;                       /* null, or a copy of 16-bit weights that is updated in their place */
  const ls_optimizer_options* options; /* null: those of the step */
  int64_t step;                        /* 0: that of the step */
} ls_optimized_tensor;

/* One step of an optimizer, with one tensor for each of the operation. Steps are counted from 1. */
typedef struct ls_optimizer_step {
  size_t struct_size;
  const ls_optimizer_options* options;
  int64_t step;
  const ls_optimized_tensor* tensors;
  size_t tensor_count;
} ls_optimizer_step;

/* A subtree of the reduction's tree: leaves [first, first + count). Without a size, and fixed for ever: the library
 * fills arrays of them, and a range of leaves is no more than this. */
typedef struct ls_leaf_block {
  int64_t first, count;
} ls_leaf_block;

/* Which operation an ls_operation is. */
typedef enum ls_operation_kind {
  LS_ALL_REDUCE = 0,
  LS_REDUCE = 1,
  LS_REDUCE_SCATTER = 2,
  LS_BROADCAST = 3,
  LS_ALL_GATHER = 4,
  LS_GATHER = 5,
  LS_SCATTER = 6,
  LS_ALL_TO_ALL = 7,
  LS_SEND = 8,
  LS_RECEIVE = 9,
  LS_BARRIER = 10
} ls_operation_kind;

/* One of several operations that are submitted together, with the arguments that the function of that name takes. */
typedef struct ls_operation {
  size_t struct_size;
  int32_t kind;                     /* an ls_operation_kind */
  int32_t root;                     /* of a send: the receiver; of a receive: the sender */
  int32_t tag;                      /* send and receive */
  const ls_tensor* input;           /* of a barrier: null, or one that has its name */
  const ls_tensor* output;          /* null where it may be; of a broadcast, send and receive not looked at */
  const ls_reduce_options* options; /* reductions, which take their group from here; may be null */
  const ls_group* group;            /* the others; null: the world */
  const int64_t* splits;            /* all-to-all; null: equal parts */
  size_t split_count;
} ls_operation;

/* What an operation gave. The memory belongs to the work handle and lives as long as it. */
typedef struct ls_result {
  size_t struct_size;
  void* data;
  int32_t dtype;
  int32_t ndim;
  int64_t shape[8];
  const int64_t* received; /* all-to-all: rows from each rank of the group */
  size_t received_count;
  int32_t last_joined; /* join */
} ls_result;

/* What all survivors of a failed world know alike. The arrays hold ranks of the old world and stay
 * valid until the thread's next call of ls_agree. */
typedef struct ls_agreement {
  size_t struct_size;
  const int32_t* failed;
  size_t failed_count;
  const int32_t* survivors;
  size_t survivor_count;
  uint64_t steps; /* that every survivor has completed */
} ls_agreement;

/* One number of what an engine has done. The strings stay valid until the thread's next call of ls_counters. */
typedef struct ls_counter {
  size_t struct_size;
  const char* name; /* such as "operations_done"; times end in "_ns" */
  const char* kind; /* of operation, such as "all-reduce"; empty: of the whole engine */
  uint64_t value;
} ls_counter;

#define LS_EPOCH_AUTOMATIC UINT32_MAX

typedef struct ls_options {
  size_t struct_size;
  int32_t rank, size, local_rank, local_size;
  const char* job;
  const void* secret;
  size_t secret_bytes;
  uint32_t epoch; /* LS_EPOCH_AUTOMATIC: counted per process */
  size_t heap_bytes;
  uint64_t start_timeout_ms, stall_warning_ms, stall_limit_ms;
  const char* timeline;         /* null or empty: none */
  const char* flight_directory; /* null or empty: none */
  const char* transport;        /* null or empty: what fits */
  const char* interface;        /* null or empty: the one that is needed */
  const char* meeting;          /* null or empty: none */
  int32_t encrypt_data;
  /* Groups that exist from the start, the same on all ranks: group i has the next group_sizes[i] of group_ranks. */
  const int32_t* group_ranks;
  const size_t* group_sizes;
  size_t group_count;
  int32_t timeline_mark_steps;
} ls_options;

/* Which layout and meaning the functions and structs of this header have. Functions and fields that are added do not
 * change it; whoever loads the library at run time compares ls_abi_version() with the number he knows. */
#define LS_ABI_VERSION 1
LS_API int ls_abi_version(void);
LS_API const char* ls_version(void);
/* The message of this thread's last failure; valid until its next call. Never null. */
LS_API const char* ls_last_error(void);

/* Fills `options` from the environment that `lockstep run`, mpirun, srun or torchrun has set. The strings stay valid
 * until the thread's next call of it. */
LS_API int ls_options_from_environment(ls_options* options);
/* options may be null: the environment. Blocks until all ranks have arrived. */
LS_API int ls_engine_start(const ls_options* options, ls_engine** engine);
/* Leaves the world and frees the engine. Handles of its operations may still be waited for and freed. */
LS_API int ls_engine_stop(ls_engine* engine);

LS_API int ls_engine_rank(const ls_engine* engine);
LS_API int ls_engine_size(const ls_engine* engine);
LS_API int ls_engine_local_rank(const ls_engine* engine);
LS_API int ls_engine_local_size(const ls_engine* engine);

/* Each operation: with work == NULL it blocks; otherwise *work is the handle, to be freed by ls_work_free.
 * input == output means in place; options may be null (sum). */
LS_API int ls_all_reduce(ls_engine* engine, const ls_tensor* input, const ls_tensor* output,
                         const ls_reduce_options* options, ls_work** work);
/* For a caller that waits next, but in slices (ls_work_wait_slice). Where peers make the same call at the same time it
 * is done on return, and *work is NULL; otherwise *work is the handle. */
LS_API int ls_all_reduce_at_once(ls_engine* engine, const ls_tensor* input, const ls_tensor* output,
                                 const ls_reduce_options* options, ls_work** work);
LS_API int ls_reduce(ls_engine* engine, const ls_tensor* input, const ls_tensor* output, int32_t root,
                     const ls_reduce_options* options, ls_work** work);
LS_API int ls_broadcast(ls_engine* engine, const ls_tensor* tensor, int32_t root, const ls_group* group,
                        ls_work** work);
LS_API int ls_send(ls_engine* engine, const ls_tensor* tensor, int32_t receiver, int32_t tag, ls_work** work);
LS_API int ls_receive(ls_engine* engine, const ls_tensor* tensor, int32_t sender, int32_t tag, ls_work** work);
LS_API int ls_barrier(ls_engine* engine, const char* name, const ls_group* group, ls_work** work);

/* The blocks that leaf_count leaves from first_leaf on, out of `leaves`, consist of: each is one partial sum. At most
 * `capacity` are written to blocks, which may be null; *count is how many there are. */
LS_API int ls_leaf_blocks(int64_t leaves, int64_t first_leaf, int64_t leaf_count, ls_leaf_block* blocks,
                          size_t capacity, size_t* count);
/* Adds up a rank's leaves (an array of leaf_count tensors) into its partial sums. float16 and bfloat16 give float32. */
LS_API int ls_sum_leaves(int64_t leaves, int64_t first_leaf, int64_t leaf_count, const ls_tensor* tensors,
                         const ls_tensor* partials, int32_t op, double prescale);

/* Which elements the epilogue of the rank at place `index` of `ranks` gets in an all-reduce or a reduce. */
LS_API int ls_owned_slice(size_t elements, int32_t result_dtype, size_t index, size_t ranks, size_t* offset,
                          size_t* count);

/* Several all-reduces as one unit of work. Arrays of `count`; outputs may equal inputs. */
LS_API int ls_grouped_all_reduce(ls_engine* engine, const ls_tensor* inputs, const ls_tensor* outputs, size_t count,
                                 const ls_reduce_options* options, ls_work** work);

/* These have a result: work must be given, and output may be null, so that the engine makes it. They do not block. */
LS_API int ls_reduce_scatter(ls_engine* engine, const ls_tensor* input, const ls_tensor* output,
                             const ls_reduce_options* options, ls_work** work);
LS_API int ls_all_gather(ls_engine* engine, const ls_tensor* input, const ls_tensor* output, const ls_group* group,
                         ls_work** work);
LS_API int ls_gather(ls_engine* engine, const ls_tensor* input, const ls_tensor* output, int32_t root,
                     const ls_group* group, ls_work** work);
LS_API int ls_scatter(ls_engine* engine, const ls_tensor* input, const ls_tensor* output, int32_t root,
                      const ls_group* group, ls_work** work);
/* splits: one number per rank of the group, or null for equal parts. */
LS_API int ls_all_to_all(ls_engine* engine, const ls_tensor* input, const int64_t* splits, size_t split_count,
                         const ls_tensor* output, const ls_group* group, ls_work** work);
LS_API int ls_join(ls_engine* engine, const ls_group* group, ls_work** work);

/* Several operations, of whatever kinds, as one unit of work: when one of them is refused, none is submitted.
 * ls_work_result takes their place in the array as index. With work == NULL it blocks, and every result must have an
 * output. The array and what it points to, except the tensors' memory, may go when this returns. */
LS_API int ls_submit_together(ls_engine* engine, const ls_operation* operations, size_t count, ls_work** work);

/* Called by each member. The handle may be freed while operations of the group are under way. */
LS_API int ls_group_make(ls_engine* engine, const int32_t* ranks, size_t count, ls_group** group);
/* The group at that place of the options, on a rank that belongs to it. To be freed like one that was made. */
LS_API int ls_group_at_start(ls_engine* engine, size_t index, ls_group** group);
/* Removes the group, as far as this rank is concerned; its ranks may make another one. */
LS_API void ls_group_free(ls_group* group);

/* *done is 1 once the operation has ended, well or not. */
LS_API int ls_work_poll(ls_work* work, int* done);
/* Waits for at most timeout_ms (negative: no limit of the caller's); LS_TIMEOUT if the operation still goes on. */
LS_API int ls_work_wait(ls_work* work, int64_t timeout_ms);
/* A slice of a wait without limit, for a caller that does nothing between two slices but to look whether it was
 * interrupted. So it counts as waiting when all ranks wait for each other for ever, and that ends in LS_MISMATCH. */
LS_API int ls_work_wait_slice(ls_work* work, int64_t slice_ms);
/* Waits, and fills in the result of operation `index` of the handle. */
LS_API int ls_work_result(ls_work* work, size_t index, ls_result* result);
/* How operation `index` of the handle has ended: LS_OK, or its failure, with the message in ls_last_error(). Does not
 * wait: LS_TIMEOUT while any operation of the handle is under way. */
LS_API int ls_work_error(ls_work* work, size_t index);
LS_API void ls_work_free(ls_work* work);

/* Every rank brackets its steps alike. What this rank has not submitted when it ends a step goes on without it, as
   after a join; then it waits for what it has submitted. *steps: how many are complete. */
LS_API int ls_begin_step(ls_engine* engine);
LS_API int ls_end_step(ls_engine* engine, uint64_t* steps);
/* As ls_begin_step, but only what ls_all_reduce_in_step submits belongs to the step: for adapters whose users submit
   operations of their own at any time. */
LS_API int ls_begin_exclusive_step(ls_engine* engine);
/* In place and without a handle: ls_end_step waits for it and says whether it failed. */
LS_API int ls_all_reduce_in_step(ls_engine* engine, const ls_tensor* tensor, const ls_reduce_options* options);
/* The tensor `like`, but with its values at `data`. Without a size, and fixed for ever: two words for each of many
   tensors, of which `like` has all that could be added. */
typedef struct ls_placed_tensor {
  const ls_tensor* like;
  void* data;
} ls_placed_tensor;
/* Several at once, in this order: for callers to whom each call is dear. Where one is refused, those before it are
   under way, and those after it are not. */
LS_API int ls_all_reduce_several_in_step(ls_engine* engine, const ls_placed_tensor* tensors, size_t count,
                                         const ls_reduce_options* options);
LS_API int ls_abort(ls_engine* engine, const char* reason);

/* After a failure, called by every survivor: who is left, the same answer on all. LS_PEER_LOST on a rank that the
 * others have gone on without. See Engine::agree in engine.hpp. */
LS_API int ls_agree(ls_engine* engine, ls_agreement* agreement);
/* After a failure, called by every survivor: *next is a new engine among them, ranks numbered anew in the old order.
 * The old one stays, and is to be stopped with ls_engine_stop afterwards. */
LS_API int ls_engine_continue(ls_engine* engine, ls_engine** next);

/* "trace.json" becomes "trace.RANK.json". See docs/timeline.md. Flags, which may be added up: */
#define LS_TIMELINE_MARK_STEPS 1 /* shows across all tracks where steps begin, and operations outside of steps */
#define LS_TIMELINE_EXACT_PATH 2 /* the path as given, without the rank: for one of the ranks only */
LS_API int ls_timeline_start(ls_engine* engine, const char* path, int flags);
LS_API int ls_timeline_stop(ls_engine* engine);
/* Makes one file of the timelines of several ranks. */
LS_API int ls_timeline_merge(const char* const* paths, size_t count, const char* merged);
/* The last operations of this rank as text; valid until the thread's next call of it. Null on failure. */
LS_API const char* ls_flight_record(ls_engine* engine);

/* How much the engine has done since it started. At most `capacity` counters are filled in, in an array whose elements
 * have their struct_size set and which may be null; *count is how many there are. See docs/timeline.md. */
LS_API int ls_counters(ls_engine* engine, ls_counter* counters, size_t capacity, size_t* count);

/* Memory shared by the ranks of this host; null when there is none left. */
LS_API void* ls_allocate(ls_engine* engine, size_t bytes);
LS_API int ls_deallocate(ls_engine* engine, void* block);
/* *inside is 1 when all of it lies in this rank's part of that memory. */
LS_API int ls_heap_holds(ls_engine* engine, const void* data, size_t bytes, int* inside);
/* Blocks of exactly these sizes that the process allocates are born there from now on: see Engine::serve_allocations.
 * meant: null, or which allocations are. *served is 1 when it is so. */
LS_API int ls_serve_allocations(ls_engine* engine, const size_t* sizes, size_t count, int (*meant)(void), int* served);

/* 1 where the ranks of this world can address each other's heaps. */
LS_API int ls_engine_shares_memory(const ls_engine* engine);
/* Memory of this rank's heap that lasts until it is freed, also beyond the engine; see Engine::make_block. `users`: how
 * many ranks will hold it, this one among them; each of the others opens it once. *block is null when the heap is full.
 */
LS_API int ls_block_make(ls_engine* engine, size_t bytes, uint32_t users, ls_block** block);
LS_API int ls_block_open(ls_engine* engine, int32_t owner, uint64_t place, ls_block** block);
LS_API void* ls_block_data(const ls_block* block);
LS_API uint64_t ls_block_place(const ls_block* block);
LS_API void ls_block_free(ls_block* block);

/* How many numbers each element has as state, and what PyTorch calls them. */
LS_API int ls_optimizer_state_count(const ls_optimizer_options* options, size_t* count);
LS_API int ls_optimizer_state_name(const ls_optimizer_options* options, size_t index, const char** name);
/* Updates elements [offset, offset + count): `values` holds the gradient, and then the new weights. */
LS_API int ls_optimizer_update(const ls_optimizer_options* options, int64_t step, const ls_optimized_tensor* tensor,
                               size_t offset, size_t count, void* values);
/* An ls_epilogue whose user is an ls_optimizer_step: with gradients as inputs and weights as outputs, a reduction that
 * updates. */
LS_API const char* ls_optimizer_epilogue(void* user, const ls_reduced_slice* slice);

/* Weights and optimizer state that all ranks of a host share. See lockstep/shared_weights.hpp. Making, load,
 * update and recover are called by all ranks together. */
typedef struct ls_shared_tensor {
  size_t struct_size;
  const char* name;
  int32_t dtype; /* LS_F16, LS_BF16, LS_F32 or LS_F64 */
  size_t elements;
  size_t group; /* which of the optimizers */
} ls_shared_tensor;

/* Values to put in; null, and -1 for steps: as it is. */
typedef struct ls_shared_values {
  size_t struct_size;
  const void* weights;
  const void* state[3];
  int64_t steps;
} ls_shared_values;

/* Arrays of structs have the size of their first one's struct_size. The engine must live as long as it is used here. */
LS_API int ls_shared_weights_make(ls_engine* engine, const ls_shared_tensor* tensors, size_t count,
                                  const ls_optimizer_options* optimizers, size_t optimizer_count,
                                  ls_shared_weights** weights);
/* Where a tensor lies: weights and state read-only, and the place of this rank's gradient, whose memory is taken when
 * it is first asked for; `gradient` may be null. */
LS_API int ls_shared_weights_place(ls_shared_weights* weights, size_t tensor, const void** values, const void* state[3],
                                   void** gradient);
/* Gradients of the tensors' sizes are born there from now on, where they can: see SharedWeights::serve_gradients. */
LS_API int ls_shared_weights_serve(ls_shared_weights* weights, int (*meant)(void), int* served);
/* This rank's part of the shared memory: gradients that lie in it are not copied. */
LS_API int ls_shared_weights_gradients(ls_shared_weights* weights, const void** first, size_t* bytes);
LS_API int ls_shared_weights_steps(ls_shared_weights* weights, size_t tensor, int64_t* steps);
LS_API int ls_shared_weights_hash(ls_shared_weights* weights, uint64_t* hash);
/* Takes the values of rank 0. */
LS_API int ls_shared_weights_load(ls_shared_weights* weights, const ls_shared_values* values, size_t count);
/* Of `options` op, prescale and postscale count. gradients: one per tensor, null where this rank has none. */
LS_API int ls_shared_weights_update(ls_shared_weights* weights, const ls_optimizer_options* optimizers,
                                    size_t optimizer_count, const ls_reduce_options* options,
                                    const void* const* gradients, size_t count);
/* After a failure, by all survivors, with what ls_engine_continue gave. */
LS_API int ls_shared_weights_recover(ls_shared_weights* weights, ls_engine* next, uint64_t* updates,
                                     int* load_was_torn);
/* Unmaps everything. Not collective; the engine may be gone already. */
LS_API void ls_shared_weights_free(ls_shared_weights* weights);

#ifdef __cplusplus
}
#endif
#endif
