// The engine: one rank's part in a world of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/block.hpp"
#include "lockstep/epilogue.hpp"
#include "lockstep/export.hpp"
#include "lockstep/group.hpp"
#include "lockstep/leaves.hpp"
#include "lockstep/options.hpp"
#include "lockstep/types.hpp"
#include "lockstep/work.hpp"

namespace lockstep {

namespace engine {
struct Request;
}  // namespace engine

/// Makes one file of the timelines that several ranks wrote. Throws Error(system) when one cannot be read or written.
LOCKSTEP_API void merge_timelines(const std::vector<std::string>& paths, const std::string& merged);

struct ReduceOptions {
  ReduceOp op = ReduceOp::sum;
  /// Each input is multiplied by the first, the result by the second. Must be the same on all ranks.
  double prescale = 1.0;
  double postscale = 1.0;
  /// While ranks have joined, an average divides by the size of the group. True: by those who contributed.
  bool average_over_contributors = false;
  Group group = {};

  /// With `leaves.total` set, the same on all ranks, the tree is over that many leaves and each rank gives the partial
  /// sums of those that it owns. The input then has one dimension in front of the tensor's: its extent is
  /// `leaf_blocks(leaves).size()`, and row i is the partial sum of block i (sum_leaves makes them). The result has the
  /// shape of one row, and the bits that it would have if every leaf were a rank; an average divides by `leaves.total`.
  /// The ranges of all ranks must make up the whole, without gap or overlap, or all get Error(mismatch); a rank that
  /// owns no leaf gives no row and still gets the result. Partial sums of the 16-bit types are float32; prescale does
  /// not apply to them. In place the result takes the place of the first row.
  LeafRange leaves = {};

  /// The result's type, where it is not the input's: sums of float32 rounded, once, to float16 or bfloat16.
  std::optional<DType> result_type = {};

  /// Called with each part of the result before it goes to the outputs. All ranks must give one, or none.
  Epilogue epilogue = {};
};

/// A tensor and where its result goes.
struct TensorPair {
  TensorView input;
  TensorView output;
};

/// Several operations, of whatever kinds, that an engine runs as one unit of work: see Engine::run. Each call adds what
/// the method of Engine with that name would submit, and is checked when it is run. Names must differ within a batch.
/// Not for several threads at once.
class LOCKSTEP_API Batch {
 public:
  Batch();
  ~Batch();
  Batch(Batch&&) noexcept;
  Batch& operator=(Batch&&) noexcept;

  /// Results are numbered in the order in which operations were added.
  std::size_t size() const noexcept;

  void all_reduce(const TensorView& input, const TensorView& output, const ReduceOptions& options = {});
  void reduce(const TensorView& input, const TensorView& output, int root, const ReduceOptions& options = {});
  void reduce_scatter(const TensorView& input, const TensorView& output = {}, const ReduceOptions& options = {});
  void broadcast(const TensorView& tensor, int root, const Group& group = {});
  void all_gather(const TensorView& input, const TensorView& output = {}, const Group& group = {});
  void gather(const TensorView& input, int root, const TensorView& output = {}, const Group& group = {});
  void scatter(const TensorView& input, int root, const TensorView& output = {}, const Group& group = {});
  void all_to_all(const TensorView& input, const std::vector<std::int64_t>& splits = {}, const TensorView& output = {},
                  const Group& group = {});
  void send(const TensorView& tensor, int receiver, int tag = 0);
  void receive(const TensorView& tensor, int sender, int tag = 0);
  void barrier(const std::string& name = {}, const Group& group = {});

 private:
  friend class Engine;
  void add(engine::Request request);

  std::unique_ptr<std::vector<engine::Request>> requests_;
};

/// One number of what an engine has done since it started (docs/timeline.md).
struct Counter {
  std::string name;  ///< such as "operations_done"; times end in "_ns"
  std::string kind;  ///< of operation, such as "all-reduce"; empty: of the whole engine
  std::uint64_t value = 0;
};

/// What all survivors of a failed world know alike.
struct Agreement {
  std::vector<int> failed;     ///< ranks that take no part any more, ascending
  std::vector<int> survivors;  ///< the others
  std::uint64_t steps = 0;     ///< that every survivor has completed
};

/// An object, not a global: a process may hold several, and start and stop them as often as it likes.
///
/// Threads: every method may be called from any thread, except that the destructor must not race with other calls.
/// Matching: an operation with a name meets the operation of that name on the other ranks, whatever order each rank
/// submits in; the n-th use of a name meets the n-th use, counted in each step anew. Operations without a name meet in
/// the order of submission.
/// Each group counts by itself, and operations of one group never wait for those of another.
/// Errors: wrong arguments throw at the call. Ranks that disagree about an operation all get Error(mismatch) from it.
/// When a peer dies, every pending and later operation on this engine throws Error(peer_lost) that names the rank.
/// When all ranks wait for each other for ever, in calls without a time limit, and nothing else in their processes can
/// go on by itself, all get Error(mismatch) at once that says who waits in what. A process in which another thread
/// runs, sleeps for a time, or waits for something from outside may still submit what is missing: then `stall_limit`
/// holds. Rows: operations that cut or join tensors do so along the first dimension, whose slices must lie one after
/// another. Results: where the output is left without memory, the engine makes it (see Result).
class LOCKSTEP_API Engine {
 public:
  /// Starts with `Options::from_environment()`.
  Engine();

  /// Blocks until all ranks have arrived; throws Error(unavailable) that names the missing ranks.
  explicit Engine(const Options& options);

  /// Leaves the world. Peers that still wait for this rank get Error(peer_lost).
  ~Engine();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  int local_rank() const noexcept;
  int local_size() const noexcept;

  /// Adasum is for all_reduce only, of real floats; see src/collective/adasum_kernel.hpp for what it computes.
  /// The result is the fixed tree over ranks (src/base/reduction_tree.hpp): the same bits on every rank, however the
  /// data was cut or moved. In place when `input.data == output.data`; otherwise they must not overlap.
  void all_reduce(const TensorView& input, const TensorView& output, const ReduceOptions& options = {});
  Work all_reduce_async(const TensorView& input, const TensorView& output, const ReduceOptions& options = {});

  /// As all_reduce_async, for a caller that waits next but must be able to do something else now and then, such as to
  /// look for signals. Where peers make the same call at the same time, it is done on return, and the Work is not
  /// valid.
  Work all_reduce_at_once(const TensorView& input, const TensorView& output, const ReduceOptions& options = {});

  /// Several at once, as one unit of work. When one of them is refused, none is submitted. With an epilogue, all ranks
  /// name them in the same order: between hosts, small ones travel as one.
  void all_reduce(std::span<const TensorPair> tensors, const ReduceOptions& options = {});
  Work all_reduce_async(std::span<const TensorPair> tensors, const ReduceOptions& options = {});

  /// Likewise, of any kinds. The batch can be run again; its memory must stay as long as it is under way.
  std::vector<Result> run(const Batch& batch);
  Work run_async(const Batch& batch);

  /// As all_reduce, but only `root` gets the result; the others need no output.
  void reduce(const TensorView& input, const TensorView& output, int root, const ReduceOptions& options = {});
  Work reduce_async(const TensorView& input, const TensorView& output, int root, const ReduceOptions& options = {});

  /// Reduces, and gives each rank its part of the rows; the first ranks get one more when they do not divide evenly.
  Result reduce_scatter(const TensorView& input, const TensorView& output = {}, const ReduceOptions& options = {});
  Work reduce_scatter_async(const TensorView& input, const TensorView& output = {}, const ReduceOptions& options = {});

  /// Copies `root`'s tensor to all ranks, in place.
  void broadcast(const TensorView& tensor, int root, const Group& group = {});
  Work broadcast_async(const TensorView& tensor, int root, const Group& group = {});

  /// All ranks' rows, in rank order; each may give another number of them.
  Result all_gather(const TensorView& input, const TensorView& output = {}, const Group& group = {});
  Work all_gather_async(const TensorView& input, const TensorView& output = {}, const Group& group = {});

  /// As all_gather, but only `root` gets them.
  Result gather(const TensorView& input, int root, const TensorView& output = {}, const Group& group = {});
  Work gather_async(const TensorView& input, int root, const TensorView& output = {}, const Group& group = {});

  /// Gives each rank its part of the root's rows, cut as in reduce_scatter. Elsewhere `input` needs only type and name.
  Result scatter(const TensorView& input, int root, const TensorView& output = {}, const Group& group = {});
  Work scatter_async(const TensorView& input, int root, const TensorView& output = {}, const Group& group = {});

  /// Sends `splits[i]` rows to the i-th rank of the group, in order. Empty splits: equal parts, which must divide
  /// evenly.
  Result all_to_all(const TensorView& input, const std::vector<std::int64_t>& splits = {},
                    const TensorView& output = {}, const Group& group = {});
  Work all_to_all_async(const TensorView& input, const std::vector<std::int64_t>& splits = {},
                        const TensorView& output = {}, const Group& group = {});

  /// One rank to another. The n-th message under a tag meets the n-th receive; shapes must agree.
  void send(const TensorView& tensor, int receiver, int tag = 0);
  Work send_async(const TensorView& tensor, int receiver, int tag = 0);
  void receive(const TensorView& tensor, int sender, int tag = 0);
  Work receive_async(const TensorView& tensor, int sender, int tag = 0);

  /// Returns when every rank has called it.
  void barrier(const std::string& name = {}, const Group& group = {});
  Work barrier_async(const std::string& name = {}, const Group& group = {});

  /// This rank has no more data. Until all have joined, the others' operations go on without it: it is a skipped leaf
  /// of reductions, and gives and gets no rows. As a root, or with rows owed to it, it is an error. Returns the last
  /// rank that joined, the same everywhere.
  int join(const Group& group = {});
  Work join_async(const Group& group = {});

  /// Called by each of its members, in the same order among groups of the same ranks. Does not wait for them. A group
  /// is removed by letting go of it; its ranks may make another one.
  Group make_group(const std::vector<int>& ranks);

  /// The group at that place of Options::groups. Throws Error(invalid_argument) when there is none, and on a rank that
  /// does not belong to it. An engine of survivors has none: its ranks have other numbers.
  Group group(std::size_t index) const;

  /// Brackets one training step; every rank brackets its steps alike, and joins the world only outside. Inside, the
  /// n-th use of a name in the step meets the n-th use in the same step on the other ranks. `end_step` says that this
  /// rank submits nothing more in the step: the others' operations under names that it has left out (unused
  /// parameters) go on without it, as if it had joined. It then waits for the operations submitted since `begin_step`,
  /// throws the Error of one that failed, and returns the number of steps completed. A rank can be one step ahead of
  /// the slowest, not more. Two ranks that both had named operations of the world in a step, and none in common, are in
  /// different places of the program: Error(mismatch) for all.
  /// Steps that submit the same set of `all_reduce_async` of the world, in whatever order on each rank, are learned:
  /// from the third on these tensors travel together. Waiting for one of them before the last is submitted works, but
  /// gives that up.
  void begin_step();
  std::uint64_t end_step();

  /// For adapters, whose users submit operations of their own at any time: as begin_step, but only what
  /// `all_reduce_in_step` submits belongs to the step. All else is as it would be outside, and end_step does not wait
  /// for it.
  void begin_exclusive_step();

  /// An all-reduce in place that has no handle: end_step waits for it and throws its error. `tensor` must have a name.
  void all_reduce_in_step(const TensorView& tensor, const ReduceOptions& options = {});

  /// Ends the world for everybody: each rank's pending and later operations throw Error(aborted) with this reason.
  void abort(const std::string& reason);

  /// After a failure: who is left. Called by every survivor, all of which get the same answer, also when more ranks die
  /// meanwhile, and whoever died. Ranks that are dead or stopped, have stopped their engine, or do not call it within
  /// `start_timeout` count as failed. Ends the world if that has not happened. Calling it again gives the same answer.
  /// Throws Error(peer_lost) on a rank that the others have gone on without, such as one that was stopped and woke up.
  Agreement agree();

  /// After a failure: a new engine among the survivors, which all call it, with or without `agree` before. They keep
  /// their order and are numbered anew from 0; job and secret stay, the epoch is a later one, so nothing of the old
  /// world reaches the new one. Needs no launcher. Should more ranks die meanwhile, it goes on without them. Throws
  /// what `agree` throws, and Error(unavailable) when the survivors cannot meet. The old engine can be destroyed
  /// afterwards, and gives back its memory then; keep it until this has returned.
  std::unique_ptr<Engine> continue_with_survivors();

  /// Writes a timeline of this rank's operations (docs/timeline.md), from now until `stop_timeline` or the engine's
  /// end: "trace.json" becomes "trace.RANK.json", unless `exact_path`, which is for one of the ranks only. Throws
  /// Error(system) when the file cannot be made.
  void start_timeline(const std::string& path, bool mark_steps = false, bool exact_path = false);
  void stop_timeline();

  /// The last operations of this rank, newest last, as text for people.
  std::string flight_record() const;

  /// By kind of operation, in the order in which kinds were first used, then those of the whole engine. Each value is
  /// right, but not all are of the same moment.
  std::vector<Counter> counters() const;

  /// Memory that all ranks of this host can read and write: tensors that live here are reduced where they are.
  /// 128-byte aligned. Returns nullptr when the heap is full or absent. Free it before the engine goes.
  void* allocate(std::size_t bytes);
  void deallocate(void* block);

  /// Whether all of it lies in this rank's part of that memory.
  bool holds(const void* data, std::size_t bytes) const;

  /// Lets allocations of this process be born there: blocks of exactly these sizes, about two for each entry, which
  /// posix_memalign, aligned_alloc and memalign hand out from now on, as long as there is room; all else stays as it
  /// is. They are freed as usual, also after the engine. `meant`: null, or a function that says whether an allocation
  /// of the calling thread is meant, by returning 0 or more; it is called inside of the allocation. Needs the library
  /// that `lockstep run` preloads. False: nothing is served; LOCKSTEP_LOG=info tells why.
  bool serve_allocations(const std::vector<std::size_t>& sizes, int (*meant)() = nullptr);

  /// Whether the ranks of this world can address each other's heaps.
  bool shares_memory() const noexcept;

  /// Memory of this rank's heap that lasts as long as somebody holds it, also beyond the engine. `users`: how many
  /// ranks will hold it, this one among them; each of the others opens it, once. Not valid when the heap is full.
  /// Throws Error(unavailable) where ranks share no memory.
  Block make_block(std::size_t bytes, std::uint32_t users = 1);
  /// REQUIRES: rank `owner` has made a block at `place`, this rank is one of its users, and has not opened it yet.
  Block open_block(int owner, std::uint64_t place);

 private:
  explicit Engine(std::shared_ptr<engine::Core> core);

  std::shared_ptr<engine::Core> core_;
  std::vector<Group> groups_;  // as in the options; the world where this rank does not belong to one
};

}  // namespace lockstep
