// The short cut for simple blocking calls, which is what a loss, a flag, a barrier or one large tensor is.
//
// Nothing else is under way, so there is nothing to queue and nothing to look up: the rank makes an offer
// (src/transport/offer.hpp) and looks at those of its peers. When all offer the same, it does its part there and then,
// on the caller's thread, without allocating anything. Whatever is not the expected answer at once (a peer that is late
// or comes the ordinary way, disagreement) is handed over to the ordinary way, where an offer counts as a notice.
#include <algorithm>
#include <cstring>
#include <limits>

#include "collective/chunks.hpp"
#include "collective/reduce_kernel.hpp"
#include "engine/core.hpp"
#include "engine/request.hpp"
#include "negotiation/description.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using transport::Board;
using transport::NoticeRef;
using transport::Offer;

constexpr int kLooksBetweenNotices = 32;
// A peer that makes the same call at the same time is there after a look or two; until then nobody needs to be told.
constexpr int kLooksBeforeTelling = 3;

// So large a tensor is at work long enough for somebody to ask what this rank is doing.
constexpr std::size_t kWorthTelling = std::size_t{1} << 20;

std::uint64_t stamp_of(std::uint64_t joins, std::uint64_t number) { return joins << 48 | (number + 1); }
std::uint64_t joins_of(std::uint64_t stamp) { return stamp >> 48; }
std::uint64_t number_after(std::uint64_t stamp) { return stamp & ((std::uint64_t{1} << 48) - 1); }

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E37'79B9'7F4A'7C15ULL;
  return hash ^ (hash >> 29);
}

// Stands for the whole description, like the signature of a notice, but costs a few nanoseconds.
std::uint64_t summary_of(const ExpressCall& call) {
  std::uint64_t hash = mixed(0x2545'F491'4F6C'DD1DULL, static_cast<std::uint64_t>(call.kind));
  hash = mixed(hash, static_cast<std::uint64_t>(call.root + 1));
  if (call.kind == Kind::barrier) return hash;
  hash = mixed(hash, static_cast<std::uint64_t>(call.input->dtype));
  hash = mixed(hash, static_cast<std::uint64_t>(call.op) * 2 + (call.by_contributors ? 1 : 0));
  for (std::int64_t extent : call.input->shape) hash = mixed(hash, static_cast<std::uint64_t>(extent));
  return hash;
}

// Most calls do not use it, and then the line stays where it is.
void clear_scratch(Offer& offer) {
  for (auto& word : offer.scratch) {
    if (word.load(std::memory_order_relaxed) != 0) word.store(0, std::memory_order_relaxed);
  }
}

bool is_plain(const TensorView& tensor) {
  return tensor.data != nullptr && tensor.strides.empty() && tensor.name.empty() && tensor.device == Device::cpu &&
         tensor.shape.size() <= transport::NoticeDetail::kMaxDims && tensor.elements() > 0;
}

// True for what the short cut can do, and certainly makes sense. The ordinary way says what is wrong with the rest.
bool is_express(const ExpressCall& call, int size) {
  if (call.kind == Kind::barrier) return true;
  const TensorView& input = *call.input;
  const TensorView& output = *call.output;
  if (!is_plain(input) || !is_plain(output)) return false;
  if (input.dtype != output.dtype || input.shape != output.shape) return false;
  const auto* first = static_cast<const std::byte*>(input.data);
  const auto* second = static_cast<const std::byte*>(output.data);
  const std::size_t bytes = input.bytes();
  if (first != second && first < second + bytes && second < first + bytes) return false;
  if (call.kind == Kind::broadcast) return bytes <= transport::kOfferedBytes && call.root >= 0 && call.root < size;
  return call.kind == Kind::all_reduce && call.op != ReduceOp::adasum && collective::is_defined(input.dtype, call.op);
}

Request request_of(const ExpressCall& call, const negotiation::MembersPtr& world) {
  Request request;
  request.group = world;
  request.kind = call.kind;
  if (call.input != nullptr) request.input = *call.input;
  if (call.output != nullptr) request.output = *call.output;
  request.op = call.op;
  request.root = call.root;
  request.by_contributors = call.by_contributors;
  return request;
}

}  // namespace

void Core::run_to_end(Request request) {
  const bool simple = (!request.group || request.group->id == negotiation::kWorld) && request.input.name.empty() &&
                      request.prescale == 1.0 && request.postscale == 1.0 && is_plain(request);
  const ExpressCall call{.kind = request.kind,
                         .input = &request.input,
                         .output = &request.output,
                         .op = request.op,
                         .root = request.root,
                         .by_contributors = request.by_contributors};
  const bool eligible =
      request.kind == Kind::all_reduce || request.kind == Kind::broadcast || request.kind == Kind::barrier;
  if (simple && eligible && run_express(call)) return;
  const OperationPtr operation = submit(std::move(request), /*background=*/false);
  wait(*operation);
  check(*operation);
}

bool Core::run_express(const ExpressCall& call, OperationPtr* rest) {
  if (!expressive_ || !is_express(call, transport_->size())) return false;
  OperationPtr operation;
  {
    std::lock_guard lock(mutex_);
    const std::uint64_t number = world_series_.unnamed;
    if (ended_ || !nothing_under_way() || somebody_has_joined(negotiation::kWorld) || is_forked_copy() ||
        !have_ended_before(number))
      return false;
    const trace::Ticks submitted = trace::ticks();
    if (!make_offer(call, number)) return false;
    ++world_series_.unnamed;
    const std::size_t bytes = call.kind == Kind::barrier ? 0 : call.input->bytes();
    const bool last = crowded_ && is_last_to_offer(number);
    const bool one_is_enough = bytes <= collective::chunk_bytes(bytes, boards_.size());
    if (last && !one_is_enough) ring_others();
    trace::Span span;
    const bool met = await_offers(call, number, span);
    tell_of_offer(number);
    if (met && bytes >= kWorthTelling) {
      if (span.kind == nullptr) record_express(call, number, span);
      recorder_.matched(span);
    }
    const trace::Ticks matched = bytes > transport::kOfferedBytes && span.matched == 0 ? trace::ticks() : 0;
    if (met && carry_out(call, number)) {
      if (last && one_is_enough) ring_others();
      if (span.kind != nullptr) {
        recorder_.done(span, matched);
      } else {
        recorder_.completed(name_of(call.kind), identity_by_order(negotiation::kWorld, world_series_.joins, number),
                            bytes, boards_.size(), submitted, matched);
      }
      return true;
    }
    if (span.kind == nullptr) record_express(call, number, span);
    operation = adopt(call, number);
    operation->trace = span;
    if (rest != nullptr) {
      operation->background = true;
      ++background_;
      wake_thread();
    }
    begin_if_complete(operation->notice.head.id);
    if (last) ring_others();
  }
  if (rest != nullptr) {
    *rest = std::move(operation);
    return true;
  }
  wait(*operation);
  check(*operation);
  return true;
}

// As soon as it takes long enough for somebody to ask what this rank is doing.
void Core::record_express(const ExpressCall& call, std::uint64_t number, trace::Span& span) {
  recorder_.submitted(span, name_of(call.kind), {}, identity_by_order(negotiation::kWorld, world_series_.joins, number),
                      call.kind == Kind::barrier ? 0 : call.input->bytes(), boards_.size());
}

// An offer's place is used again after some more calls. A peer that has ended everything before one of the calls since
// has no use for it any more.
bool Core::have_ended_before(std::uint64_t number) const {
  const auto self = static_cast<std::size_t>(options_.rank);
  for (std::size_t peer = 0; peer < boards_.size(); ++peer) {
    if (peer != self && ended_before_[peer] + Board::kOffers <= number) return false;
  }
  return true;
}

// False when the tensor is neither small nor in the heap, and there is no room for a relay, or no use in one.
bool Core::make_offer(const ExpressCall& call, std::uint64_t number) {
  Offer& offer = own_board().at(number);
  const std::size_t bytes = call.kind == Kind::barrier ? 0 : call.input->bytes();
  std::optional<transport::OfferedPlaces> places;
  if (bytes > transport::kOfferedBytes && !(places = places_of(call))) return false;
  // First, so that the line is on its way from the peers while the rest is prepared.
  if (places) {
    std::memcpy(offer.data, &*places, sizeof *places);
  } else if (call.kind == Kind::all_reduce || call.root == options_.rank) {
    std::memcpy(offer.data, call.input->data, bytes);
  }
  clear_scratch(offer);
  const std::uint64_t summary = summary_of(call);
  // The full description is rarely read. What this place held last time is often the same. It is remembered apart:
  // the offer's own line is at the peers, and to read it would fetch it back.
  std::uint64_t& last = express_summaries_[number % Board::kOffers];
  if (last != summary) {
    transport::Notice notice;
    announce_in(notice, request_of(call, groups_.world()));
    offer.detail = notice.detail;
    offer.summary = last = summary;
  }
  offer.stamp.store(stamp_of(world_series_.joins, number), std::memory_order_release);
  return true;
}

// For peers that are not looking for this offer just now: those who sleep, or do something else. A peer that makes the
// same call needs none of it, so it comes after a look for that.
// Sequentially consistent, so that either a peer sees it before it sleeps or `ring` sees that it sleeps.
void Core::tell_of_offer(std::uint64_t number) {
  Board& board = own_board();
  const std::uint64_t stamp = stamp_of(world_series_.joins, number);
  if (board.latest.load(std::memory_order_relaxed) == stamp) return;
  board.latest.store(stamp, std::memory_order_seq_cst);
  ring_others();
}

// Where ranks outnumber cores, most of them sleep when the others come, and an offer that does not complete the
// operation is no reason to wake them: with n ranks that would be n²/2 wake-ups for one operation. So there every rank
// tells of its offer first, looks for the others' second, and wakes nobody unless all are there. Since that is
// sequentially consistent, whoever tells last finds them all.
bool Core::is_last_to_offer(std::uint64_t number) {
  const std::uint64_t stamp = stamp_of(world_series_.joins, number);
  own_board().latest.store(stamp, std::memory_order_seq_cst);
  return std::all_of(boards_.begin(), boards_.end(), [&](const Board* board) {
    return board->latest.load(std::memory_order_seq_cst) >= stamp;  // who has ended it may have gone on
  });
}

void Core::ring_others() {
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer != transport_->rank()) transport_->ring(peer);
  }
}

std::optional<transport::OfferedPlaces> Core::places_of(const ExpressCall& call) {
  transport::SharedMemory& shared = *transport_->shared();
  const std::size_t bytes = call.input->bytes();
  const transport::OfferedPlaces places{.input = shared.place_of(call.input->data, bytes),
                                        .output = shared.place_of(call.output->data, bytes)};
  if (places.input != transport::kNowhere && places.output != transport::kNowhere) return places;
  // A relay means several meetings, and where ranks outnumber cores each of them costs more than a copy.
  if (crowded_) return std::nullopt;
  constexpr std::size_t kRelayBytes = collective::kRelayWindows * collective::kRelayWindow;
  if (express_relay_ == nullptr) express_relay_ = shared.allocate(kRelayBytes);
  if (express_relay_ == nullptr) return std::nullopt;
  return transport::OfferedPlaces{.input = shared.place_of(express_relay_, kRelayBytes), .output = transport::kNowhere};
}

// True when every peer offers the same. Notices of other operations are taken in on the way.
bool Core::await_offers(const ExpressCall& call, std::uint64_t number, trace::Span& span) {
  const std::uint64_t stamp = stamp_of(world_series_.joins, number);
  const std::uint64_t summary = express_summaries_[number % Board::kOffers];
  Patience patience = patience_;
  int looks = 0;
  for (std::size_t peer = 0; peer < boards_.size(); ++peer) {
    if (boards_[peer] == &own_board()) continue;
    const Offer& theirs = boards_[peer]->at(number);
    while (theirs.stamp.load(std::memory_order_acquire) != stamp) {
      if (++looks == kLooksBeforeTelling) {
        tell_of_offer(number);
        record_express(call, number, span);  // now, while there is nothing to do but to wait
      }
      if (looks % kLooksBetweenNotices == 0 && comes_the_ordinary_way(number)) return false;
      if (!patience.wait_awake()) return false;
    }
    if (theirs.summary != summary) return false;
    ended_before_[peer] = number;
  }
  if (!reach_known_) {  // all are there now; a larger tensor may need it
    transport_->shared()->learn_reach();
    reach_known_ = true;
  }
  return true;
}

// Takes in what peers announce meanwhile; true when one of them announces this very operation, or has joined.
bool Core::comes_the_ordinary_way(std::uint64_t number) {
  const std::uint64_t id = identity_by_order(negotiation::kWorld, world_series_.joins, number);
  bool comes = false;
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer == transport_->rank()) continue;
    while (const NoticeRef notice = transport_->next(peer)) {
      comes |= notice.head->id == id;
      take_notice(peer, notice);
    }
  }
  return comes || somebody_has_joined(negotiation::kWorld);
}

// False when it could not be ended here.
bool Core::carry_out(const ExpressCall& call, std::uint64_t number) {
  if (call.kind == Kind::barrier) return true;
  auto* output = static_cast<std::byte*>(call.output->data);
  const std::size_t bytes = call.input->bytes();
  if (call.kind == Kind::broadcast) {
    const Board& root = *boards_[static_cast<std::size_t>(call.root)];
    if (&root != &own_board()) std::memcpy(output, root.at(number).data, bytes);
    return true;
  }
  if (bytes > transport::kOfferedBytes) return reduce_at_places(call, number);
  for (std::size_t rank = 0; rank < boards_.size(); ++rank) express_leaves_[rank] = boards_[rank]->at(number).data;
  // Not its own offer, whose lines the peers have taken.
  express_leaves_[static_cast<std::size_t>(options_.rank)] = static_cast<const std::byte*>(call.input->data);
  collective::reduce({.dtype = call.input->dtype,
                      .op = call.op,
                      .leaves = express_leaves_,
                      .outputs = {&output, 1},
                      .elements = bytes / size_of(call.input->dtype),
                      .divisor = express_leaves_.size()});
  return true;
}

// As one algorithm or another would do it, with the same cuts and words, so that one of those can take over.
bool Core::reduce_at_places(const ExpressCall& call, std::uint64_t number) {
  transport::SharedMemory& shared = *transport_->shared();
  bool relayed = false;
  for (std::size_t i = 0; i < express_parties_.size(); ++i) {
    collective::Party& party = express_parties_[i];
    Offer& offer = boards_[i]->at(number);
    transport::OfferedPlaces places{};
    std::memcpy(&places, offer.data, sizeof places);
    party.scratch = express_words_[i] = offer.scratch;
    const bool has_relay = places.output == transport::kNowhere;
    relayed |= has_relay;
    std::byte* input = shared.at(party.rank, places.input);
    party.relay = has_relay ? input : nullptr;
    party.input = has_relay ? nullptr : input;
    party.output = has_relay ? nullptr : shared.at(party.rank, places.output);
  }
  if (!(relayed ? reduce_through_relays(call) : reduce_in_place(call))) return false;
  // All are beyond the operation that used the next place last. Its words are cleared now, when nobody waits.
  clear_scratch(own_board().at(number + 1));
  return true;
}

// See src/collective/direct_reduce.cpp.
bool Core::reduce_in_place(const ExpressCall& call) {
  transport::SharedMemory& shared = *transport_->shared();
  const std::size_t ranks = express_parties_.size(), bytes = call.input->bytes();
  const std::size_t chunk = collective::chunk_bytes(bytes, ranks);
  collective::Chunks chunks(express_words_, static_cast<std::size_t>(transport_->rank()),
                            static_cast<std::uint32_t>((bytes + chunk - 1) / chunk));
  bool worked = false;
  const auto work = [&](std::uint32_t claimed) {
    worked = true;
    const std::size_t offset = claimed * chunk;
    for (std::size_t i = 0; i < ranks; ++i) {
      express_leaves_[i] = express_parties_[i].input + offset;
      express_outputs_[i] = express_parties_[i].output + offset;
    }
    collective::reduce({.dtype = call.input->dtype,
                        .op = call.op,
                        .leaves = express_leaves_,
                        .outputs = express_outputs_,
                        .elements = std::min(chunk, bytes - offset) / size_of(call.input->dtype),
                        .divisor = ranks});
    return true;
  };
  if (!chunks.do_some(shared, std::numeric_limits<std::uint32_t>::max(), work)) return false;
  Patience patience = patience_;
  while (!chunks.complete()) {
    if (!patience.wait_awake()) return false;
  }
  if (worked) ring_others();  // it may have done the last
  return true;
}

// See src/collective/relay_pass.hpp.
bool Core::reduce_through_relays(const ExpressCall& call) {
  const std::size_t width = size_of(call.input->dtype);
  express_pass_.begin(
      *transport_, express_parties_, static_cast<std::size_t>(transport_->rank()),
      {.dtype = call.input->dtype, .op = call.op, .leaves = {}, .outputs = {}, .divisor = express_parties_.size()},
      call.input->bytes() / width, static_cast<const std::byte*>(call.input->data),
      static_cast<std::byte*>(call.output->data));
  Patience patience = patience_;
  for (std::uint64_t before = 0; !express_pass_.advance(); before = express_pass_.progress()) {
    if (express_pass_.progress() != before) patience.reset();
    if (!patience.wait_awake()) return false;
  }
  return true;
}

// --- where the short cut meets the ordinary way

// The rank goes on in the ordinary way, with its offer in place of a notice.
Core::OperationPtr Core::adopt(const ExpressCall& call, std::uint64_t number) {
  auto operation = std::make_shared<Operation>(request_of(call, groups_.world()));
  Offer& mine = transport_->shared()->board(transport_->rank()).at(number);
  operation->notice = notice_of(mine, number);
  operation->order = number;
  operation->submitted = transport_->now();
  if (belongs_to_step(/*of_step=*/false)) step_operations_.push_back(operation);
  pending_.emplace(operation->notice.head.id, operation);
  const NoticeRef own{.head = &operation->notice.head, .detail = &operation->notice.detail, .offer = &mine};
  matcher_.arrive(transport_->rank(), groups_.world(), own);
  take_offers_of(*operation);
  return operation;
}

transport::Notice Core::notice_of(const Offer& offer, std::uint64_t number) const {
  transport::Notice notice;
  notice.detail = offer.detail;
  notice.head.id = identity_by_order(negotiation::kWorld, world_series_.joins, number);
  notice.head.signature = negotiation::signature_of(offer.detail);
  notice.head.number = number;
  notice.head.kind = static_cast<std::uint8_t>(offer.detail.kind);
  notice.head.flags = transport::kAlone;
  const auto kind = static_cast<Kind>(offer.detail.kind);
  const std::size_t bytes = kind == Kind::barrier ? 0 : negotiation::bytes_of(offer.detail);
  if (bytes > transport::kOfferedBytes) {
    transport::OfferedPlaces places{};
    std::memcpy(&places, offer.data, sizeof places);
    notice.head.input = places.input;
    notice.head.output = places.output;
    if (places.output == transport::kNowhere) notice.head.flags |= transport::kRelayed;
  } else {
    notice.head.inline_bytes = static_cast<std::uint16_t>(bytes);
  }
  return notice;
}

// Those that peers have made already for an operation of this rank.
void Core::take_offers_of(Operation& operation) {
  if (!expressive_ || !counts_by_order(operation.request) || operation.request.group->id != negotiation::kWorld) return;
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer != transport_->rank()) take_offer(peer, operation.order);
  }
}

bool Core::take_offers(int peer) {
  if (!expressive_) return false;
  std::uint64_t& seen = offers_seen_[static_cast<std::size_t>(peer)];
  const std::uint64_t latest = transport_->shared()->board(peer).latest.load(std::memory_order_seq_cst);
  // One from beyond a join whose end this rank has not noticed yet has to wait.
  if (latest == seen || joins_of(latest) != world_series_.joins) return false;
  seen = latest;
  bool any = false;
  const std::uint64_t end = number_after(latest);
  for (std::uint64_t number = end > Board::kOffers ? end - Board::kOffers : 0; number < end; ++number) {
    if (!take_offer(peer, number)) continue;
    begin_if_complete(identity_by_order(negotiation::kWorld, world_series_.joins, number));
    any = true;
  }
  return any;
}

// An offer for something that this rank has not submitted yet stays where it is until then.
bool Core::take_offer(int peer, std::uint64_t number) {
  Offer& offer = transport_->shared()->board(peer).at(number);
  if (offer.stamp.load(std::memory_order_acquire) != stamp_of(world_series_.joins, number)) return false;
  std::uint64_t& ended = ended_before_[static_cast<std::size_t>(peer)];
  ended = std::max(ended, number);
  const auto own = pending_.find(identity_by_order(negotiation::kWorld, world_series_.joins, number));
  if (own == pending_.end()) return false;
  const negotiation::Gathering* gathering = matcher_.find(own->first);
  if (gathering != nullptr && gathering->has(peer)) return false;
  ++activity_;
  const transport::Notice& copy = own->second->offers.emplace_back(notice_of(offer, number));
  matcher_.arrive(peer, groups_.world(), {.head = &copy.head, .detail = &copy.detail, .offer = &offer});
  return true;
}

}  // namespace lockstep::engine
