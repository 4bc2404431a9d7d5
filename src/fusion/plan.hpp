// The plan: which tensors of a step travel together, and in which order. Pure.
//
// Every rank makes the same plan from the same list of tensors; nothing of it travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "collective/bucket_reduce.hpp"
#include "fusion/step_end.hpp"
#include "lockstep/types.hpp"

namespace lockstep::fusion {

/// Enough that what a bucket costs beside its data is lost in the work, little enough that the first can travel while
/// later gradients are still computed.
inline constexpr std::size_t kBucketBytes = std::size_t{4} << 20;

/// A tensor of the plan. Where its data lies may change from step to step.
struct Entry {
  TensorView like;         ///< name, type, shape and strides; no memory
  collective::Part part;   ///< its offset is set by the plan
  std::uint64_t key = 0;   ///< of its name
  std::uint64_t hash = 0;  ///< of its name and of all on which ranks must agree
  /// Where its data lay on rank 0 when the plan was made. Those of a bucket are ordered by it: a rank that reduces
  /// neighbours one after the other is faster, and keeps out of the way of the one that reduces others.
  std::uint64_t place = 0;
  std::uint64_t turn = 0;  ///< in which it was submitted; set by the plan
};

/// Consecutive entries.
struct BucketRange {
  std::size_t first = 0;
  std::size_t count = 0;
  std::size_t bytes = 0;

  bool operator==(const BucketRange&) const = default;
};

/// Fills one bucket after the other, each with at most `most` bytes, or with a single larger part. Sets the offsets.
std::vector<BucketRange> cut(std::span<collective::Part> parts, std::size_t most);

class Plan {
 public:
  /// `entries` in the order in which they are submitted.
  explicit Plan(std::vector<Entry> entries, std::size_t bucket_bytes = kBucketBytes);

  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<BucketRange>& buckets() const { return buckets_; }
  std::size_t bucket_of(std::size_t entry) const { return bucket_of_[entry]; }
  std::span<const collective::Part> parts_of(std::size_t bucket) const {
    return std::span(parts_).subspan(buckets_[bucket].first, buckets_[bucket].count);
  }
  /// Of the entries, in their order.
  std::uint64_t hash() const { return hash_; }
  const StepSet& set() const { return set_; }

  /// The entry of that name, which has that key.
  std::optional<std::size_t> find(std::uint64_t key, std::string_view name) const;

 private:
  void order_by_place(const BucketRange& bucket);

  std::vector<Entry> entries_;
  std::vector<collective::Part> parts_;
  std::vector<BucketRange> buckets_;
  std::vector<std::uint32_t> bucket_of_;
  std::vector<std::uint32_t>
      places_;  // a hash table of entries, counted from 1; 0 is empty. Its size is a power of two.
  std::uint64_t hash_ = 0;
  StepSet set_;
};

}  // namespace lockstep::fusion
