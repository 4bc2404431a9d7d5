// What a rank tells all others about an operation that it has submitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::transport {

/// Where a tensor lies: an offset into its owner's arena, which all peers on the host have mapped, or, with the highest
/// bit set, an address in its owner's private memory.
using Place = std::uint64_t;
inline constexpr Place kNowhere = ~Place{0};
inline constexpr Place kPrivate = Place{1} << 63;

inline constexpr std::size_t kInlineBytes = 72;

/// The rank had nothing else under way when it submitted this: it has ended everything that it submitted before.
inline constexpr std::uint8_t kAlone = 1;
/// `input` is a copy that stays as it is: every rank computes its result itself, and nobody writes to this one.
inline constexpr std::uint8_t kCopied = 4;
/// Submitted between begin_step and end_step, under a name: `number` is the step's.
inline constexpr std::uint8_t kInStep = 2;
/// A plan made from this step could hold the operation.
inline constexpr std::uint8_t kPlannable = 8;
/// Of a bucket: its tensors go one by one instead.
inline constexpr std::uint8_t kDissolved = 16;

/// `input` is a relay: its owner brings its tensor there, and fetches the result, window by window.
inline constexpr std::uint8_t kRelayed = 32;

/// The part that every peer reads: with the transport's stamp it fills two cache lines.
struct NoticeHead {
  std::uint64_t id = 0;                      ///< which operation: group, name and how often the name was used
  std::uint64_t signature = 0;               ///< hash of all that ranks must agree on
  Place input = kNowhere;                    ///< of a bucket: the table of its tensors
  Place output = kNowhere;                   ///< all-to-all: of its splits; a pair: the partner's rank; bucket: which
  std::uint64_t number = 0;                  ///< of an operation without a name: which in its group
  std::uint32_t group = 0;                   ///< 0: the world
  std::uint8_t kind = 0;                     ///< collective::Kind
  std::uint8_t flags = 0;                    ///< kAlone and so on
  std::uint16_t inline_bytes = 0;            ///< 0: the data is at `input`, or is sent apart
  std::byte inline_data[kInlineBytes] = {};  ///< a tiny tensor travels with its notice
};
static_assert(sizeof(NoticeHead) == 120);

/// The part that is read only when ranks disagree, or when results depend on each rank's shape.
struct NoticeDetail {
  static constexpr int kMaxDims = 8;
  static constexpr int kNameBytes = 96;

  std::int32_t kind = 0;
  std::int32_t dtype = 0;
  std::int32_t op = 0;
  std::int32_t root = -1;            ///< a rank of the world
  std::int32_t by_contributors = 0;  ///< an average divides by those who contributed, not by the size of the group
  std::int32_t tag = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t ndim = 0;
  std::uint32_t order = 0;            ///< how the dimensions lie in memory, outermost first, four bits each
  std::int64_t shape[kMaxDims] = {};  ///< of one partial sum, where several are given
  std::int64_t total_leaves = 0;      ///< of a reduction; 0: every rank is one
  std::int32_t result_dtype = 0;      ///< of a reduction
  std::int32_t has_epilogue = 0;
  std::uint64_t packed = 0;       ///< tensors that travel as this one; 0: it is one
  std::uint64_t packed_hash = 0;  ///< of their names, shapes and layouts
  char name[kNameBytes] = {};
  // What follows is each rank's own and no part of the agreement.
  std::int64_t first_leaf = 0;
  std::int64_t leaf_count = 0;
  std::uint64_t no_room = 0;   ///< not 0: the owner cannot take part, because so many bytes found no room in the heap
  Place workspace = kNowhere;  ///< Adasum: where the owner puts what it has measured
};

struct Notice {
  NoticeHead head;
  NoticeDetail detail;
};

struct Offer;

/// A peer's notice, readable until it is released.
struct NoticeRef {
  const NoticeHead* head = nullptr;
  const NoticeDetail* detail = nullptr;
  std::uint64_t position = 0;
  std::span<const std::byte> attached = {};  ///< the tensor, where it came with the notice
  Offer* offer = nullptr;  ///< it came as an offer: nothing to release, and head and detail are this rank's copy

  explicit operator bool() const { return head != nullptr; }
};

}  // namespace lockstep::transport
