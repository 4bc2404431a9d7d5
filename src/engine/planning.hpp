// What a rank knows of plans: the steps from which it learns, the plan in force, and the buckets of the present step.
//
// Vocabulary: a *bucket* is filled by the submissions of a step and *posted* whole, with one notice, when all its
// tensors are there or the step ends. It is *dissolved* when that cannot be waited for: then its tensors go one by one,
// in the ordinary way, on every rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/operation.hpp"
#include "fusion/plan.hpp"

namespace lockstep::engine {

/// A plan in force, on this rank.
class PlanAtWork {
 public:
  PlanAtWork(std::shared_ptr<const fusion::Plan> plan, transport::SharedMemory& shared);
  ~PlanAtWork();
  PlanAtWork(const PlanAtWork&) = delete;
  PlanAtWork& operator=(const PlanAtWork&) = delete;

  struct Member {
    std::shared_ptr<Operation> operation;  ///< of the last step that used it; used again when nobody else holds it
    fusion::Step used = fusion::kNoStep;   ///< the last step in which it was submitted to its bucket
    bool in_bucket = false;                ///< ends with its bucket
    bool alone = false;                    ///< went in the ordinary way after all
    bool copied = false;                   ///< its data lies in the bucket's memory
  };

  struct Bucket {
    enum class State { filling, posted, dissolved };
    State state = State::filling;
    std::uint64_t id = 0;
    std::size_t present = 0;
    std::byte* memory = nullptr;           ///< for tensors outside the heap, until the bucket has ended
    std::shared_ptr<Operation> operation;  ///< once posted
  };

  /// False when the heap had no room for the tables. Then every bucket is dissolved.
  bool has_tables() const { return tables_ != nullptr; }

  /// This rank's table of a bucket. A peer may read that of a step until it has ended the step, which this rank knows
  /// for sure two steps later: so three are used in turn.
  collective::PartPlace* table(fusion::Step step, std::size_t bucket) {
    return tables_ + step % kTables * plan->entries().size() + plan->buckets()[bucket].first;
  }

  std::size_t index_of(const Bucket& bucket) const { return static_cast<std::size_t>(&bucket - buckets.data()); }

  const std::shared_ptr<const fusion::Plan> plan;
  std::vector<Member> members;  ///< by entry
  std::vector<Bucket> buckets;

 private:
  static constexpr std::size_t kTables = 3;

  transport::SharedMemory& shared_;
  collective::PartPlace* tables_ = nullptr;
};

/// What this rank did in a step, kept until it is known whether all ranks did the same.
struct StepRecord {
  fusion::Step step = fusion::kNoStep;
  fusion::StepSet set;
  bool waited_for_bucket = false;
  std::shared_ptr<const fusion::Plan> plan;          ///< in force then; may be nullptr
  std::vector<std::size_t> used;                     ///< its entries that were used, when the set is not the plan's
  std::vector<std::shared_ptr<Operation>> ordinary;  ///< what could be planned and went in the ordinary way
};

struct Planning {
  using Clock = std::chrono::steady_clock;

  /// What the peers have posted of a bucket.
  struct Seen {
    fusion::Step step = fusion::kNoStep;
    bool dissolved = false;
    Clock::time_point since;                           ///< when the first was posted
    std::vector<const collective::PartPlace*> tables;  ///< by rank
  };

  /// An ordinary operation of rank 0 that could be planned, as its notice tells it.
  struct Candidate {
    std::uint64_t id;
    transport::Place place;
  };

  std::unique_ptr<PlanAtWork> at_work;
  StepRecord record;                                     ///< of the present step
  std::map<fusion::Step, StepRecord> records;            ///< of steps that not all ranks are known to have ended
  std::map<fusion::Step, std::vector<Candidate>> order;  ///< in which rank 0 has submitted them
  /// What takes effect, and from which step on; nullptr: no plan.
  std::vector<std::pair<fusion::Step, std::shared_ptr<const fusion::Plan>>> decisions;
  std::vector<std::pair<fusion::Step, std::unique_ptr<PlanAtWork>>> retired;  ///< peers may still read the tables
  fusion::StepSet decided;                                                    ///< the set of the last decision
  std::vector<fusion::StepSet> refused;          ///< sets whose buckets were waited for inside a step
  std::unordered_map<std::uint64_t, Seen> seen;  ///< by id of the bucket
  /// Ids under which members of posted buckets would go if these were dissolved; made when first asked for.
  std::unordered_set<std::uint64_t> individual;
  fusion::Step individual_of = fusion::kNoStep;
};

}  // namespace lockstep::engine
