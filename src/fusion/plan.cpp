#include "fusion/plan.hpp"

#include <algorithm>
#include <bit>

#include "base/hash.hpp"

namespace lockstep::fusion {
namespace {

std::size_t round_up(std::size_t bytes) {
  return (bytes + collective::kPartAlignment - 1) / collective::kPartAlignment * collective::kPartAlignment;
}

}  // namespace

std::vector<BucketRange> cut(std::span<collective::Part> parts, std::size_t most) {
  std::vector<BucketRange> buckets;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t bytes = round_up(parts[i].bytes());
    if (buckets.empty() || buckets.back().bytes + bytes > most) buckets.push_back({.first = i, .count = 0, .bytes = 0});
    BucketRange& bucket = buckets.back();
    parts[i].offset = bucket.bytes;
    bucket.bytes += bytes;
    ++bucket.count;
  }
  return buckets;
}

Plan::Plan(std::vector<Entry> entries, std::size_t bucket_bytes) : entries_(std::move(entries)) {
  for (Entry& entry : entries_) {
    entry.turn = parts_.size();
    parts_.push_back(entry.part);
  }
  buckets_ = cut(parts_, bucket_bytes);
  for (const BucketRange& bucket : buckets_) order_by_place(bucket);
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    bucket_of_.insert(bucket_of_.end(), buckets_[bucket].count, static_cast<std::uint32_t>(bucket));
  places_.resize(std::bit_ceil(2 * entries_.size() + 1));
  Hasher hasher;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t place = entries_[i].key % places_.size();
    while (places_[place] != 0) place = (place + 1) % places_.size();
    places_[place] = static_cast<std::uint32_t>(i + 1);
    hasher.add(entries_[i].hash);
    set_.add(entries_[i].hash);
  }
  hash_ = hasher.value();
}

void Plan::order_by_place(const BucketRange& bucket) {
  const auto entries = std::span(entries_).subspan(bucket.first, bucket.count);
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.place < b.place; });
  std::size_t offset = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].part.offset = offset;
    parts_[bucket.first + i] = entries[i].part;
    offset += round_up(entries[i].part.bytes());
  }
}

std::optional<std::size_t> Plan::find(std::uint64_t key, std::string_view name) const {
  const std::size_t mask = places_.size() - 1;
  for (std::size_t place = key & mask; places_[place] != 0; place = (place + 1) & mask) {
    const std::size_t entry = places_[place] - 1;
    if (entries_[entry].key == key && entries_[entry].like.name == name) return entry;
  }
  return std::nullopt;
}

}  // namespace lockstep::fusion
