#include "transport/tcp/wire.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace lockstep::transport::tcp {
namespace {

enum class SaidKind : std::uint32_t {
  hello = 1,
  notice,
  piece,
  declaration,
  left,
  heartbeat,
  propose_verdict,
  propose_seat,
  result,
  ask,
  tell,
  snapshot,
  ack,
  refuse,
  confirmation,
  filler,
  measured,
  whereabouts,
  fetched,
  in_reach,
  last = in_reach,
};

constexpr std::uint32_t kLongestText = 4096;
constexpr std::uint32_t kMostThreads = 64;
constexpr std::uint32_t kMostRanks = 1 << 16;
constexpr std::uint32_t kWordsBytes = 64 + kLongestText + 8 * kMostRanks;
static_assert(std::is_trivially_copyable_v<Notice>);
static_assert(kNoticeHeadBytes == sizeof(NoticeHead) + sizeof(NoticeDetail) + sizeof(std::uint32_t));

// The header's place comes first, so that what is packed is a frame already.
class Packer {
 public:
  explicit Packer(std::size_t payload = 64) {
    frame_.reserve(net::kFrameHeaderBytes + payload);
    frame_.resize(net::kFrameHeaderBytes);
  }

  template <class T>
  requires std::is_arithmetic_v<T> Packer& add(T value) { return add_raw(&value, sizeof value); }

  Packer& add(const std::string& text) {
    const auto size = static_cast<std::uint32_t>(std::min<std::size_t>(text.size(), kLongestText));
    return add(size).add_raw(text.data(), size);
  }

  Packer& add(const Verdict& verdict) {
    return add(static_cast<std::int32_t>(verdict.code)).add(static_cast<std::int32_t>(verdict.rank)).add(verdict.text);
  }

  Packer& add(const SharedWords& words) {
    add(words.ballot).add(words.version).add(static_cast<std::uint8_t>(words.verdict.has_value()));
    if (words.verdict) add(*words.verdict);
    for (const std::uint64_t seat : words.seats) add(seat);
    return *this;
  }

  Packer& add_raw(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    frame_.insert(frame_.end(), bytes, bytes + size);
    return *this;
  }

  // The last that is asked of it.
  std::vector<std::byte> frame(SaidKind kind, std::uint32_t epoch) { return frame_before({}, kind, epoch); }

  // The frame without the end of its payload, which follows.
  std::vector<std::byte> frame_before(std::span<const std::byte> rest, SaidKind kind, std::uint32_t epoch) {
    const std::size_t length = frame_.size() - net::kFrameHeaderBytes + rest.size();
    const auto header = net::encode(
        {.length = static_cast<std::uint32_t>(length), .kind = static_cast<std::uint32_t>(kind), .epoch = epoch});
    std::copy(header.begin(), header.end(), frame_.begin());
    return std::move(frame_);
  }

 private:
  std::vector<std::byte> frame_;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> payload) : rest_(payload) {}

  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take_raw(sizeof value).data(), sizeof value);
    return value;
  }

  std::string take_text() {
    const auto size = take<std::uint32_t>();
    if (size > kLongestText) throw net::BadFrame("a text that is too long");
    const auto bytes = take_raw(size);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  Verdict take_verdict() {
    const auto code = take<std::int32_t>();
    if (code < static_cast<int>(ErrorCode::invalid_argument) || code > static_cast<int>(ErrorCode::incompatible))
      throw net::BadFrame("a verdict of an unknown kind");
    const auto rank = take<std::int32_t>();
    return {.code = static_cast<ErrorCode>(code), .rank = rank, .text = take_text()};
  }

  SharedWords take_words(int world_size) {
    SharedWords words;
    words.ballot = take<std::uint64_t>();
    words.version = take<std::uint64_t>();
    if (take<std::uint8_t>() != 0) words.verdict = take_verdict();
    for (int rank = 0; rank < world_size; ++rank) words.seats.push_back(take<std::uint64_t>());
    return words;
  }

  std::span<const std::byte> take_raw(std::size_t size) {
    if (size > rest_.size()) throw net::BadFrame("a frame that is too short for what it says");
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  std::span<const std::byte> take_rest() { return std::exchange(rest_, {}); }

  void end() const {
    if (!rest_.empty()) throw net::BadFrame("a frame that is too long for what it says");
  }

 private:
  std::span<const std::byte> rest_;
};

Announcement unpack_announcement(Unpacker& from, std::size_t placed) {
  Announcement said;
  said.notice.head = from.take<NoticeHead>();
  said.notice.detail = from.take<NoticeDetail>();
  const auto attached = from.take<std::uint32_t>();
  if (placed != 0 && placed != attached) throw net::BadFrame("a notice with more or less than it says");
  said.attached = from.take_raw(attached - placed);
  said.placed = placed;
  const NoticeDetail& detail = said.notice.detail;
  const bool sound = said.notice.head.inline_bytes <= kInlineBytes && detail.ndim >= 0 &&
                     detail.ndim <= NoticeDetail::kMaxDims && detail.name[NoticeDetail::kNameBytes - 1] == '\0';
  if (!sound) throw net::BadFrame("a notice that contradicts itself");
  return said;
}

Piece take_piece_head(Unpacker& from) {
  Piece piece;
  piece.operation = from.take<std::uint64_t>();
  piece.part = from.take<std::uint32_t>();
  piece.total = from.take<std::uint64_t>();
  return piece;
}

Piece unpack_piece(Unpacker& from, std::size_t placed) {
  Piece piece = take_piece_head(from);
  piece.data = from.take_rest();
  piece.placed = placed;
  if (piece.data.size() > piece.total) throw net::BadFrame("a piece that is longer than its message");
  return piece;
}

Declaration unpack_declaration(Unpacker& from) {
  Declaration declaration;
  declaration.standstill.waits = from.take<std::uint8_t>() != 0;
  declaration.standstill.version = from.take<std::uint64_t>();
  declaration.standstill.confirmed = from.take<std::uint64_t>();
  declaration.standstill.doing = from.take_text();
  const auto count = from.take<std::uint32_t>();
  if (count > kMostThreads) throw net::BadFrame("more threads than a rank may declare");
  for (std::uint32_t i = 0; i < count; ++i) declaration.threads.push_back(from.take<pid_t>());
  return declaration;
}

Measured unpack_measured(Unpacker& from) {
  const std::chrono::nanoseconds trip(from.take<std::int64_t>());
  const auto rate = from.take<double>();
  const bool sound = trip.count() >= 0 && trip < std::chrono::hours(1) && rate >= 0 && rate < 1e15;  // no NaN
  if (!sound) throw net::BadFrame("a network that there cannot be");
  return {.network = {.trip = trip, .rate = rate}};
}

Whereabouts unpack_whereabouts(Unpacker& from) {
  Whereabouts where;
  where.operation = from.take<std::uint64_t>();
  where.part = from.take<std::uint32_t>();
  where.total = from.take<std::uint64_t>();
  where.data = from.take<std::uint64_t>();
  where.slip = from.take<std::uint64_t>();
  where.number = from.take<std::uint64_t>();
  if (where.data + where.total < where.data) throw net::BadFrame("a message that lies nowhere");
  return where;
}

Propose unpack_proposal(Unpacker& from, SaidKind kind) {
  Propose propose;
  propose.request = from.take<std::uint64_t>();
  if (kind == SaidKind::propose_verdict) {
    propose.command = from.take_verdict();
  } else {
    propose.command = ChangeSeat{.seat = from.take<std::uint32_t>(),
                                 .expected = from.take<std::uint64_t>(),
                                 .desired = from.take<std::uint64_t>()};
  }
  return propose;
}

Message unpack_agreement(Unpacker& from, SaidKind kind, int world_size) {
  switch (kind) {
    case SaidKind::propose_verdict:
    case SaidKind::propose_seat:
      return unpack_proposal(from, kind);
    case SaidKind::result:
      return Result{.request = from.take<std::uint64_t>(), .changed = from.take<std::uint8_t>() != 0};
    case SaidKind::ask:
      return Ask{.ballot = from.take<std::uint64_t>()};
    case SaidKind::tell:
      return Tell{.ballot = from.take<std::uint64_t>(), .words = from.take_words(world_size)};
    case SaidKind::snapshot:
      return Snapshot{.words = from.take_words(world_size)};
    case SaidKind::ack:
      return Ack{.ballot = from.take<std::uint64_t>(), .version = from.take<std::uint64_t>()};
    case SaidKind::refuse:
      return Refuse{.promised = from.take<std::uint64_t>()};
    default:
      throw net::BadFrame("a confirmation where none belongs");
  }
}

struct PackMessage {
  std::uint32_t epoch;

  std::vector<std::byte> operator()(const Propose& one) const {
    Packer packer;
    packer.add(one.request);
    if (const auto* verdict = std::get_if<Verdict>(&one.command))
      return packer.add(*verdict).frame(SaidKind::propose_verdict, epoch);
    const auto& change = std::get<ChangeSeat>(one.command);
    return packer.add(change.seat).add(change.expected).add(change.desired).frame(SaidKind::propose_seat, epoch);
  }
  std::vector<std::byte> operator()(const Result& one) const {
    return Packer().add(one.request).add(static_cast<std::uint8_t>(one.changed)).frame(SaidKind::result, epoch);
  }
  std::vector<std::byte> operator()(const Ask& one) const {
    return Packer().add(one.ballot).frame(SaidKind::ask, epoch);
  }
  std::vector<std::byte> operator()(const Tell& one) const {
    return Packer().add(one.ballot).add(one.words).frame(SaidKind::tell, epoch);
  }
  std::vector<std::byte> operator()(const Snapshot& one) const {
    return Packer().add(one.words).frame(SaidKind::snapshot, epoch);
  }
  std::vector<std::byte> operator()(const Ack& one) const {
    return Packer().add(one.ballot).add(one.version).frame(SaidKind::ack, epoch);
  }
  std::vector<std::byte> operator()(const Refuse& one) const {
    return Packer().add(one.promised).frame(SaidKind::refuse, epoch);
  }
};

}  // namespace

std::vector<std::byte> pack(const Hello& hello, std::uint32_t epoch) {
  return Packer().add(hello.process).add(hello.token).add(hello.probe).frame(SaidKind::hello, epoch);
}

std::vector<std::byte> pack(const Declaration& declaration, std::uint32_t epoch) {
  const Standstill& still = declaration.standstill;
  const auto count = std::min<std::size_t>(declaration.threads.size(), kMostThreads);
  Packer packer;
  packer.add(static_cast<std::uint8_t>(still.waits)).add(still.version).add(still.confirmed).add(still.doing);
  packer.add(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) packer.add(declaration.threads[i]);
  return packer.frame(SaidKind::declaration, epoch);
}

std::vector<std::byte> pack(const Left&, std::uint32_t epoch) { return Packer().frame(SaidKind::left, epoch); }
std::vector<std::byte> pack(const Heartbeat&, std::uint32_t epoch) {
  return Packer().frame(SaidKind::heartbeat, epoch);
}

std::vector<std::byte> pack(const Measured& measured, std::uint32_t epoch) {
  return Packer()
      .add(static_cast<std::int64_t>(measured.network.trip.count()))
      .add(measured.network.rate)
      .frame(SaidKind::measured, epoch);
}

std::vector<std::byte> pack(const Whereabouts& where, std::uint32_t epoch) {
  return Packer()
      .add(where.operation)
      .add(where.part)
      .add(where.total)
      .add(where.data)
      .add(where.slip)
      .add(where.number)
      .frame(SaidKind::whereabouts, epoch);
}

std::vector<std::byte> pack(const Fetched& fetched, std::uint32_t epoch) {
  return Packer().add(fetched.number).frame(SaidKind::fetched, epoch);
}

std::vector<std::byte> pack(const InReach&, std::uint32_t epoch) { return Packer().frame(SaidKind::in_reach, epoch); }

std::vector<std::byte> pack_filler(std::size_t bytes, std::uint32_t epoch) {
  const std::vector<std::byte> nothing(bytes);
  return Packer().add_raw(nothing.data(), nothing.size()).frame(SaidKind::filler, epoch);
}

std::vector<std::byte> pack(const Message& message, std::uint32_t epoch) {
  return std::visit(PackMessage{epoch}, message);
}

std::vector<std::byte> pack_head(const Piece& piece, std::uint32_t epoch) {
  return Packer()
      .add(piece.operation)
      .add(piece.part)
      .add(piece.total)
      .frame_before(piece.data, SaidKind::piece, epoch);
}

std::vector<std::byte> pack_head(const Announcement& announcement, std::uint32_t epoch) {
  const Notice& notice = announcement.notice;
  return Packer(kNoticeHeadBytes)
      .add_raw(&notice.head, sizeof notice.head)
      .add_raw(&notice.detail, sizeof notice.detail)
      .add(static_cast<std::uint32_t>(announcement.attached.size()))
      .frame_before(announcement.attached, SaidKind::notice, epoch);
}

std::uint32_t kind_of_pieces() { return static_cast<std::uint32_t>(SaidKind::piece); }
std::uint32_t kind_of_notices() { return static_cast<std::uint32_t>(SaidKind::notice); }

Piece unpack_piece_head(std::span<const std::byte> head) {
  Unpacker from(head);
  return take_piece_head(from);
}

std::vector<std::byte> pack_confirmation(std::uint64_t frames, std::uint32_t epoch) {
  return Packer().add(frames).frame(SaidKind::confirmation, epoch);
}

std::optional<std::uint64_t> unpack_confirmation(const net::Frame& frame) {
  if (frame.kind != static_cast<std::uint32_t>(SaidKind::confirmation)) return std::nullopt;
  Unpacker from(frame.payload);
  const auto frames = from.take<std::uint64_t>();
  from.end();
  return frames;
}

Said unpack(const net::Frame& frame, int world_size) {
  Unpacker from(frame.payload);
  const auto kind = static_cast<SaidKind>(frame.kind);
  const auto said = [&]() -> Said {
    switch (kind) {
      case SaidKind::hello:
        return Hello{.process = from.take<std::uint64_t>(),
                     .token = from.take<std::uint64_t>(),
                     .probe = from.take<std::uint64_t>()};
      case SaidKind::notice:
        return unpack_announcement(from, frame.placed);
      case SaidKind::piece:
        return unpack_piece(from, frame.placed);
      case SaidKind::declaration:
        return unpack_declaration(from);
      case SaidKind::left:
        return Left{};
      case SaidKind::heartbeat:
        return Heartbeat{};
      case SaidKind::filler:
        from.take_rest();
        return Filler{};
      case SaidKind::measured:
        return unpack_measured(from);
      case SaidKind::whereabouts:
        return unpack_whereabouts(from);
      case SaidKind::fetched:
        return Fetched{.number = from.take<std::uint64_t>()};
      case SaidKind::in_reach:
        return InReach{};
      default:
        return unpack_agreement(from, kind, world_size);
    }
  }();
  from.end();
  return said;
}

std::optional<std::uint32_t> said_limit(std::uint32_t kind) {
  if (kind < static_cast<std::uint32_t>(SaidKind::hello) || kind > static_cast<std::uint32_t>(SaidKind::last))
    return std::nullopt;
  switch (static_cast<SaidKind>(kind)) {
    case SaidKind::notice:
      return static_cast<std::uint32_t>(kNoticeHeadBytes + kMostAttached);
    case SaidKind::piece:
      return static_cast<std::uint32_t>(kPieceBytes + kPieceHeadBytes);
    case SaidKind::filler:
      return static_cast<std::uint32_t>(kMostFiller);
    case SaidKind::tell:
    case SaidKind::snapshot:
      return kWordsBytes;
    case SaidKind::left:
    case SaidKind::heartbeat:
    case SaidKind::in_reach:
      return 0;
    default:
      return kLongestText + 1024;
  }
}

}  // namespace lockstep::transport::tcp
