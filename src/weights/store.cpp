#include "weights/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "base/hash.hpp"
#include "collective/reduce_kernel.hpp"
#include "lockstep/error.hpp"

namespace lockstep::weights {
namespace {

constexpr std::uint64_t kStoreMagic = 0x3173'7468'6769'6577ULL;

// What ranks must agree on, field by field: structs have gaps.
std::uint64_t signature_of(const SharedUpdate& update, std::uint64_t number) {
  Hasher hasher;
  hasher.add(number);
  hasher.add(static_cast<std::int32_t>(update.op));
  for (double scale : {update.prescale, update.postscale}) hasher.add(scale);
  for (const OptimizerOptions& o : update.optimizers) {
    hasher.add(static_cast<std::int32_t>(o.kind));
    for (bool flag : {o.maximize, o.nesterov, o.amsgrad, o.centered}) hasher.add(static_cast<std::int32_t>(flag));
    for (double value : {o.learning_rate, o.weight_decay, o.momentum, o.dampening, o.beta1, o.beta2, o.epsilon,
                         o.learning_rate_decay, o.smoothing}) {
      hasher.add(value);
    }
  }
  return hasher.value();
}

[[noreturn]] void refuse_update(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "update of shared weights: " + why);
}

}  // namespace

struct Store::Head {
  std::uint64_t magic;
  std::uint64_t layout;
  std::atomic<std::uint64_t> world;  // generation in the upper half, places in the lower
  std::atomic<std::uint32_t> loading;
};

// The sequence word of a slice.
struct Store::Mark {
  std::uint64_t update = 0;
  std::uint64_t piece = 0;  // of the slice
  bool armed = false;

  static Mark from(std::uint64_t word) {
    return {.update = word >> 33, .piece = (word >> 1) & 0xffff'ffffU, .armed = (word & 1) != 0};
  }
  std::uint64_t word() const { return update << 33 | piece << 1 | (armed ? 1U : 0U); }
};

void Store::initialise(const Layout& layout, std::byte* base) {
  auto& head = *reinterpret_cast<Head*>(base);
  for (std::size_t seat = 0; seat < layout.seats(); ++seat) {
    reinterpret_cast<BoardRow*>(base + layout.board(0, seat))->seat = seat;
    const Mark mark{.piece = layout.slice(seat, layout.seats()).count};
    reinterpret_cast<std::atomic<std::uint64_t>*>(base + layout.journal(0, seat))->store(mark.word());
  }
  head.layout = layout.hash();
  head.magic = kStoreMagic;
  head.world.store(layout.seats(), std::memory_order_release);
}

Store::Store(const Layout& layout, std::byte* base, std::size_t seat, pid_t pid)
    : layout_(layout),
      base_(base),
      seat_(seat),
      pid_(pid),
      steps_(layout.tensors().size(), 0),
      reduced_(layout.piece_bytes()) {
  if (head().magic != kStoreMagic || head().layout != layout.hash()) {
    throw Error(ErrorCode::internal, "the shared weights of this host were made for other tensors");
  }
  enter_next();
  row(place_).pid = pid;
}

Store::Head& Store::head() const { return *reinterpret_cast<Head*>(base_); }

BoardRow& Store::row(std::size_t place) const {
  return *reinterpret_cast<BoardRow*>(base_ + layout_.board(generation_, place));
}

std::uint64_t* Store::given(std::size_t place) const {
  static_assert(sizeof(BoardRow) % alignof(std::uint64_t) == 0);
  return reinterpret_cast<std::uint64_t*>(base_ + layout_.board(generation_, place) + sizeof(BoardRow));
}

std::atomic<std::uint64_t>& Store::journal(std::size_t slice) const {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + layout_.journal(generation_, slice));
}

std::byte* Store::gradient(std::size_t tensor) const {
  return base_ + layout_.gradients(seat_) + layout_.tensors()[tensor].gradient;
}

std::byte* Store::weights(const TensorPlace& tensor, std::size_t copy) const {
  return base_ + layout_.weights(copy).first + tensor.weights;
}

bool Store::holds(std::size_t tensor, const void* gradient) const {
  const std::size_t bytes = layout_.tensors()[tensor].elements * layout_.tensors()[tensor].width();
  const auto* first = base_ + layout_.gradients(seat_);
  const auto* at = static_cast<const std::byte*>(gradient);
  return at >= first && bytes <= layout_.gradients_bytes() && at <= first + (layout_.gradients_bytes() - bytes);
}

// --- an update

void Store::submit(const SharedUpdate& update) {
  const auto tensors = layout_.tensors();
  if (update.op != ReduceOp::average && update.op != ReduceOp::sum) {
    refuse_update(fmt::format("gradients are averaged or summed, not reduced by {}", lockstep::name_of(update.op)));
  }
  if (update.optimizers.size() != layout_.groups()) {
    refuse_update(fmt::format("{} optimizers for {} groups", update.optimizers.size(), layout_.groups()));
  }
  if (!update.gradients.empty() && update.gradients.size() != tensors.size()) {
    refuse_update(fmt::format("{} gradients for {} tensors", update.gradients.size(), tensors.size()));
  }
  for (const OptimizerOptions& optimizer : update.optimizers) check_optimizer(optimizer);
  for (const TensorPlace& tensor : tensors) {
    const std::size_t states = optimizer_state_count(update.optimizers[tensor.group]);
    if (states == tensor.states) continue;
    refuse_update(fmt::format("its optimizer now wants {} numbers of state per element of '{}', which was made with {}",
                              states, tensor.name, tensor.states));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const void* from = update.gradients.empty() ? gradient(i) : update.gradients[i];
    if (from != nullptr && !holds(i, from)) {
      std::memcpy(gradient(i), from, tensors[i].elements * tensors[i].width());
      from = gradient(i);
    }
    const std::byte* const first = base_ + layout_.gradients(seat_);
    given(place_)[i] =
        from == nullptr ? 0 : static_cast<std::uint64_t>(static_cast<const std::byte*>(from) - first) + 1;
  }
  wanted_ = update;
  wanted_.gradients.clear();
  row(place_).signature = signature_of(update, updates_ + 1);
  row(place_).submitted.store(updates_ + 1, std::memory_order_release);
}

bool Store::agreed() {
  for (std::size_t place = 0; place < places_; ++place) {
    const bool submitted = row(place).submitted.load(std::memory_order_acquire) == updates_ + 1;
    if (!submitted || row(place).signature != row(place_).signature) return false;
  }
  read_boards(updates_ + 1);
  return true;
}

void Store::withdraw() { row(place_).submitted.store(updates_, std::memory_order_release); }

void Store::apply() { finish_slice(place_, updates_ + 1); }

void Store::complete() {
  for (std::size_t i = 0; i < steps_.size(); ++i) steps_[i] += given_any_[i];
  ++updates_;
}

// Who gives a gradient for what. Kept, because a rank that is through may already write down its next.
void Store::read_boards(std::uint64_t update) {
  if (boards_read_ == update) return;
  const std::size_t tensors = steps_.size();
  given_.assign(places_ * tensors, 0);
  given_any_.assign(tensors, 0);
  for (std::size_t place = 0; place < places_; ++place) {
    for (std::size_t i = 0; i < tensors; ++i) {
      given_[place * tensors + i] = given(place)[i];
      given_any_[i] |= given(place)[i] != 0 ? 1 : 0;
    }
  }
  boards_read_ = update;
}

void Store::finish_slice(std::size_t slice, std::uint64_t update) {
  const PieceRange range = layout_.slice(slice, places_);
  std::atomic<std::uint64_t>& sequence = journal(slice);
  std::byte* const kept = base_ + layout_.undo(slice);
  Mark mark = Mark::from(sequence.load(std::memory_order_acquire));
  if (mark.update < update) mark = {.update = update};
  if (mark.armed) {
    const Piece torn = layout_.piece(range.first + mark.piece);
    undo(torn, kept);
    mark.armed = false;
    sequence.exchange(mark.word(), std::memory_order_acq_rel);
    observe(Point::undone, torn);
  }
  for (; mark.piece < range.count; ++mark.piece) {
    const Piece piece = layout_.piece(range.first + mark.piece);
    if (!has_gradient(piece)) continue;
    save(piece, kept);
    observe(Point::saved, piece);
    mark.armed = true;
    sequence.exchange(mark.word(), std::memory_order_acq_rel);
    observe(Point::armed, piece);
    update_piece(piece);
    observe(Point::updated, piece);
    mark.armed = false;
    sequence.exchange(Mark{mark.update, mark.piece + 1, false}.word(), std::memory_order_acq_rel);
    observe(Point::done, piece);
  }
  sequence.exchange(mark.word(), std::memory_order_acq_rel);
}

bool Store::has_gradient(const Piece& piece) const { return given_any_[piece.tensor] != 0; }

void Store::save(const Piece& piece, std::byte* to) const {
  const TensorPlace& tensor = layout_.tensors()[piece.tensor];
  const std::size_t bytes = piece.count * tensor.width(), state_bytes = piece.count * tensor.state_width();
  std::memcpy(to, own_weights(tensor) + piece.offset * tensor.width(), bytes);
  for (std::size_t i = 0; i < tensor.states; ++i) {
    std::memcpy(to + bytes + i * state_bytes, base_ + tensor.state[i] + piece.offset * tensor.state_width(),
                state_bytes);
  }
}

void Store::undo(const Piece& piece, const std::byte* from) const {
  const TensorPlace& tensor = layout_.tensors()[piece.tensor];
  const std::size_t bytes = piece.count * tensor.width(), state_bytes = piece.count * tensor.state_width();
  for (const std::size_t copy : copies_) {
    std::memcpy(weights(tensor, copy) + piece.offset * tensor.width(), from, bytes);
  }
  for (std::size_t i = 0; i < tensor.states; ++i) {
    std::memcpy(base_ + tensor.state[i] + piece.offset * tensor.state_width(), from + bytes + i * state_bytes,
                state_bytes);
  }
}

void Store::update_piece(const Piece& piece) {
  const TensorPlace& tensor = layout_.tensors()[piece.tensor];
  leaves_.assign(places_, nullptr);
  for (std::size_t place = 0; place < places_; ++place) {
    const std::uint64_t at = given_[place * steps_.size() + piece.tensor];
    if (at == 0) continue;
    leaves_[place] = base_ + layout_.gradients(row(place).seat) + (at - 1) + piece.offset * tensor.width();
  }
  std::byte* reduced = reduced_.data();
  collective::reduce({.dtype = tensor.dtype,
                      .op = wanted_.op,
                      .leaves = leaves_,
                      .outputs = {&reduced, 1},
                      .elements = piece.count,
                      .divisor = places_,
                      .prescale = wanted_.prescale,
                      .postscale = wanted_.postscale});
  OptimizedTensor optimized{.weights = own_weights(tensor), .dtype = tensor.dtype};
  for (std::size_t i = 0; i < tensor.states; ++i) optimized.state[i] = base_ + tensor.state[i];
  update_weights(wanted_.optimizers[tensor.group], steps_[piece.tensor] + 1, optimized, piece.offset, piece.count,
                 reduced);
  for (const std::size_t copy : copies_) {
    if (copy != copies_.front()) observe(Point::spread, piece);
    std::memcpy(weights(tensor, copy) + piece.offset * tensor.width(), reduced, piece.count * tensor.width());
  }
}

// --- from outside

void Store::begin_load() { head().loading.exchange(1, std::memory_order_acq_rel); }
void Store::end_load() { head().loading.exchange(0, std::memory_order_acq_rel); }
bool Store::load_was_torn() const { return head().loading.load(std::memory_order_acquire) != 0; }

void Store::load(std::size_t index, const SharedValues& values) {
  const TensorPlace& tensor = layout_.tensors()[index];
  for (const std::size_t copy : copies_) {
    if (values.weights == nullptr) break;
    std::memcpy(weights(tensor, copy), values.weights, tensor.elements * tensor.width());
  }
  for (std::size_t i = 0; i < tensor.states; ++i) {
    if (values.state[i] == nullptr) continue;
    std::memcpy(base_ + tensor.state[i], values.state[i], tensor.elements * tensor.state_width());
  }
}

void Store::even_out() const {
  const FilePart own = layout_.weights(layout_.copy_of(seat_));
  for (const std::size_t copy : copies_) {
    const FilePart other = layout_.weights(copy);
    if (other.first != own.first) std::memcpy(base_ + other.first, base_ + own.first, own.bytes);
  }
}

std::uint64_t Store::hash() const {
  Hasher hasher;
  hasher.add(updates_);
  for (std::size_t index = 0; index < steps_.size(); ++index) {
    const TensorPlace& tensor = layout_.tensors()[index];
    hasher.add(steps_[index]);
    hasher.add(own_weights(tensor), tensor.elements * tensor.width());
    for (std::size_t i = 0; i < tensor.states; ++i) {
      hasher.add(base_ + tensor.state[i], tensor.elements * tensor.state_width());
    }
  }
  return hasher.value();
}

// --- after a failure

std::vector<Store::Member> Store::members() const {
  std::vector<Member> members;
  for (std::size_t place = 0; place < places_; ++place) {
    members.push_back({.seat = row(place).seat, .pid = static_cast<pid_t>(row(place).pid)});
  }
  return members;
}

std::uint64_t Store::target() const {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  bool same = true, begun = false;
  for (std::size_t place = 0; place < places_; ++place) {
    least = std::min(least, row(place).submitted.load(std::memory_order_acquire));
    same = same && row(place).signature == row(0).signature;
  }
  for (std::size_t slice = 0; slice < places_; ++slice) {
    begun = begun || Mark::from(journal(slice).load(std::memory_order_acquire)).update == least;
  }
  return same || begun ? least : least - 1;
}

void Store::repair(std::span<const std::size_t> seats) {
  const std::uint64_t update = target();
  if (update == updates_) return;  // this rank has seen it done everywhere
  read_boards(update);
  std::size_t orphans = 0;
  const auto self = static_cast<std::size_t>(std::find(seats.begin(), seats.end(), seat_) - seats.begin());
  for (std::size_t slice = 0; slice < places_; ++slice) {
    const auto owner = std::find(seats.begin(), seats.end(), row(slice).seat);
    const auto worker =
        owner != seats.end() ? static_cast<std::size_t>(owner - seats.begin()) : orphans++ % seats.size();
    if (worker == self) finish_slice(slice, update);
  }
}

void Store::complete_repair() {
  if (target() != updates_) complete();
}

void Store::prepare_next(std::span<const std::size_t> seats) {
  const std::size_t next = generation_ + 1;
  const auto self = static_cast<std::size_t>(std::find(seats.begin(), seats.end(), seat_) - seats.begin());
  auto& own = *reinterpret_cast<BoardRow*>(base_ + layout_.board(next, self));
  own.signature = 0;
  own.seat = seat_;
  own.pid = pid_;
  own.submitted.store(updates_, std::memory_order_release);
  if (self != 0) return;
  for (std::size_t slice = 0; slice < seats.size(); ++slice) {
    const Mark mark{.update = updates_, .piece = layout_.slice(slice, seats.size()).count};
    reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + layout_.journal(next, slice))->store(mark.word());
  }
}

void Store::publish_next(std::size_t places) {
  head().world.store((generation_ + 1) << 32 | places, std::memory_order_release);
}

void Store::enter_next() {
  const std::uint64_t world = head().world.load(std::memory_order_acquire);
  if (generation_ != world >> 32) boards_read_ = 0;
  generation_ = world >> 32;
  places_ = world & 0xffff'ffffU;
  std::set<std::size_t> read;
  for (std::size_t place = 0; place < places_; ++place) read.insert(layout_.copy_of(row(place).seat));
  copies_.assign(read.begin(), read.end());
  for (place_ = 0; place_ < places_; ++place_) {
    if (row(place_).seat == seat_) return;
  }
  throw Error(ErrorCode::peer_lost, "the other ranks went on with the shared weights without this one");
}

}  // namespace lockstep::weights
