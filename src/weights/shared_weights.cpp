// The public class: the memory file and on which memory nodes it lies, the guard over what users see of it, and the
// barriers between what a Store does.
#include "lockstep/shared_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/log.hpp"
#include "base/memory_node.hpp"
#include "heap/preloaded.hpp"
#include "heap/served_region.hpp"
#include "lockstep/error.hpp"
#include "weights/fence.hpp"
#include "weights/guard.hpp"
#include "weights/layout.hpp"
#include "weights/memory_file.hpp"
#include "weights/store.hpp"

namespace lockstep {
namespace {

using weights::FileAddress;
using weights::FilePart;
using weights::GuardedRange;
using weights::Layout;
using weights::Mapping;
using weights::Store;
using weights::TensorPlace;

/// What each rank says, by rank.
template <class Word>
std::vector<Word> told_by_all(Engine& engine, Word own, const char* name) {
  const TensorView input{
      .data = &own, .dtype = DType::u8, .shape = {1, static_cast<std::int64_t>(sizeof(Word))}, .name = name};
  std::vector<Word> all(static_cast<std::size_t>(engine.size()));
  const Result result = engine.all_gather(input);
  std::memcpy(all.data(), result.tensor.data, all.size() * sizeof(Word));
  return all;
}

std::size_t checked_seats(const Engine& engine) {
  if (engine.size() == engine.local_size()) return static_cast<std::size_t>(engine.size());
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("shared weights are for ranks of one host; of {} ranks only {} are here. Go on without sharing "
                  "where ranks are on several hosts.",
                  engine.size(), engine.local_size()));
}

/// What a rank brings along.
struct Wish {
  std::uint64_t layout = 0;
  std::int64_t node = -1;  // the memory node it runs on; -1: on none; kRefused: it was given one that makes no sense
};
constexpr std::int64_t kRefused = -2;

struct Introduction {
  std::int64_t pid = 0;
  FileAddress file;
};

Error could_not_share(std::size_t rank, ErrorCode code) {
  return Error(code, fmt::format("rank {} could not share weights; its own message says why", rank));
}

void check_wishes(const std::vector<Wish>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].node == kRefused) throw could_not_share(rank, ErrorCode::invalid_argument);
    if (all[rank].layout == all[0].layout) continue;
    throw Error(
        ErrorCode::mismatch,
        fmt::format("rank {} wants to share other tensors, or for another optimizer, than rank 0. Likely cause: "
                    "ranks have built different models.",
                    rank));
  }
}

std::string warning_for(const TensorPlace& tensor, const char* part) {
  return fmt::format(
      "Lockstep: this process writes into {}'{}', which ranks of the host share, and dies of it. Next "
      "step: change shared weights by load (in Python: inside `with lockstep.torch.modify(parameters):`), or do not "
      "share them.\n",
      part, tensor.name);
}

}  // namespace

class SharedWeights::Impl {
 public:
  Impl(Engine& engine, const std::vector<SharedTensor>& tensors, const std::vector<OptimizerOptions>& optimizers)
      : engine_(&engine), layout_(tensors, optimizers, checked_seats(engine)) {
    for (const OptimizerOptions& optimizer : optimizers) {
      for (std::size_t i = 0; i < optimizer_state_count(optimizer); ++i) {
        if (state_names_.size() <= i) state_names_.emplace_back(optimizer_state_name(optimizer, i));
      }
    }
    taken_.assign(tensors.size(), false);
    std::optional<Error> refusal;  // a list of nodes may lack that of one rank alone; the others must not wait for it
    try {
      node_ = memory_node_of_rank(engine.local_rank()).value_or(-1);
    } catch (const Error& error) {
      refusal = error;
      node_ = kRefused;
    }
    const auto wishes = told_by_all(engine, Wish{layout_.hash(), node_}, "weights.wish");
    if (refusal) throw Error(*refusal);
    check_wishes(wishes);
    std::vector<std::int64_t> nodes;
    for (const Wish& wish : wishes) nodes.push_back(wish.node);
    layout_ = Layout(tensors, optimizers, weights::copies_by_node(nodes));
    meet();
    guard_ = std::make_unique<weights::Guard>(guarded_ranges());
  }

  ~Impl() {
    if (region_ >= 0) heap::find_preloaded()->retire(region_);
    store_->leave();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Layout& layout() const { return layout_; }
  Store& store() { return *store_; }
  const std::byte* shown_weights(const TensorPlace& tensor) const { return mapping_->shown_weights() + tensor.weights; }
  const std::byte* shown_state(const TensorPlace& tensor, std::size_t index) const {
    return mapping_->shown_state() + (tensor.state[index] - layout_.state().first);
  }

  void load(const std::vector<SharedValues>& values) {
    if (values.size() != layout_.tensors().size()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} values for {} shared tensors", values.size(), layout_.tensors().size()));
    }
    const bool first = engine_->rank() == 0;
    std::vector<std::int64_t> steps;
    for (const SharedValues& value : values) steps.push_back(value.steps);
    if (first) store_->begin_load();
    const TensorView view{.data = steps.data(),
                          .dtype = DType::i64,
                          .shape = {static_cast<std::int64_t>(steps.size())},
                          .name = "weights.load"};
    engine_->broadcast(view, 0);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i] >= 0) store_->set_steps(i, steps[i]);
    }
    engine_->barrier();  // nobody reads any more, and all have the steps
    if (first) {
      for (std::size_t i = 0; i < values.size(); ++i) store_->load(i, values[i]);
      store_->end_load();
    }
    engine_->barrier();
  }

  std::byte* gradient(std::size_t tensor) {
    const std::size_t bytes = layout_.tensors()[tensor].elements * layout_.tensors()[tensor].width();
    std::byte* const place = store_->gradient(tensor);
    if (bytes == 0 || taken_[tensor]) return place;
    if (!mapping_->commit(place, bytes)) {
      throw Error(
          ErrorCode::system,
          fmt::format("no memory for the {} MB of the gradient of '{}', which is to be shared. Raise the memory "
                      "limit of the job or container, or start fewer ranks.",
                      (bytes >> 20) + 1, layout_.tensors()[tensor].name));
    }
    taken_[tensor] = true;
    return place;
  }

  std::span<const std::byte> gradients() const {
    return {mapping_->base() + layout_.gradients(seat_), layout_.gradients_bytes()};
  }

  bool serve_gradients(int (*meant)()) {
    const std::string hindrance = why_not_served(meant);
    if (engine_->rank() == 0) {
      log::info(0, hindrance.empty()
                       ? "gradients are born where the ranks that share weights can read them"
                       : "gradients are copied to where the ranks that share weights can read them: " + hindrance);
    }
    return hindrance.empty();
  }

  void update(const SharedUpdate& update) {
    for (std::size_t i = 0; i < layout_.tensors().size(); ++i) {
      const bool in_place = update.gradients.empty();
      if (!in_place && i >= update.gradients.size()) break;  // as `submit` will say
      if (in_place || (update.gradients[i] != nullptr && !store_->holds(i, update.gradients[i]))) gradient(i);
    }
    store_->submit(update);
    engine_->barrier();
    if (!store_->agreed()) {
      store_->withdraw();
      engine_->barrier();
      throw Error(ErrorCode::mismatch,
                  "ranks want different updates of their shared weights. Likely cause: learning rates or other options "
                  "that differ from rank to rank, or a rank that has joined.");
    }
    store_->apply();
    engine_->barrier();
    store_->complete();
  }

  Recovery recover(Engine& next) {
    checked_seats(next);
    store_->enter_next();
    // When all have said where they sit, all have left whatever they were doing here.
    const auto told = told_by_all<std::uint64_t>(next, seat_, "weights.recover");
    const std::vector<std::size_t> seats(told.begin(), told.end());
    for (const Store::Member& member : store_->members()) {
      const bool stays = std::find(seats.begin(), seats.end(), member.seat) != seats.end();
      if (!stays && member.pid != 0) fence_->end(member.seat);
    }
    next.barrier();  // nobody else writes
    store_->repair(seats);
    next.barrier();
    store_->complete_repair();
    load_was_torn_ = load_was_torn_ || store_->load_was_torn();
    store_->prepare_next(seats);
    next.barrier();
    if (next.rank() == 0) {
      if (store_->load_was_torn()) store_->even_out();
      store_->end_load();
      store_->publish_next(seats.size());
    }
    next.barrier();
    store_->enter_next();
    if (next.rank() == 0) give_back_copies();
    engine_ = &next;
    return {.updates = store_->updates(), .load_was_torn = std::exchange(load_was_torn_, false)};
  }

 private:
  // Rank 0 makes the file, the others open it; each failure is told to all.
  void meet() {
    seat_ = static_cast<std::size_t>(engine_->rank());
    std::string trouble;
    Introduction own{.pid = ::getpid(), .file = {}};
    auto attempt = [&](auto&& action) {
      try {
        action();
      } catch (const Error& error) {
        trouble = error.what();
      }
    };
    if (seat_ == 0) {
      attempt([&] {
        Fd file = weights::make_memory_file(layout_.bytes(), bytes_of_first(), bytes_of_all(), layout_.copies());
        const FileAddress address = weights::address_of(file);
        map(std::move(file));
        mapping_->use_large_pages(bytes_of_first());
        Store::initialise(layout_, mapping_->base());
        own.file = address;
      });
    }
    const auto all = told_by_all(*engine_, own, "weights.meet");
    if (seat_ != 0 && all[0].file.fd >= 0) attempt([&] { map(weights::open_memory_file(all[0].file)); });
    if (mapping_) attempt([&] { settle(); });
    if (mapping_) attempt([&] { store_ = std::make_unique<Store>(layout_, mapping_->base(), seat_, ::getpid()); });
    std::vector<pid_t> pids;
    for (const Introduction& one : all) pids.push_back(static_cast<pid_t>(one.pid));
    attempt([&] { fence_ = std::make_unique<weights::Fence>(pids); });
    const auto ready = told_by_all<std::uint8_t>(*engine_, trouble.empty() && store_ ? 1 : 0, "weights.ready");
    if (!trouble.empty()) throw Error(ErrorCode::system, trouble);
    for (std::size_t rank = 0; rank < ready.size(); ++rank) {
      if (ready[rank] == 0) throw could_not_share(rank, ErrorCode::system);
    }
  }

  void map(Fd file) {
    mapping_ = std::make_shared<Mapping>(std::move(file), layout_.bytes(), layout_.weights(layout_.copy_of(seat_)),
                                         layout_.state());
  }

  // What rank 0 takes as it makes the file. Gradients come later, where they come; and where there are several copies
  // of the weights, ranks of their nodes see to them, and each rank to the state that it updates.
  std::size_t bytes_of_first() const { return layout_.copies() == 1 ? layout_.gradients(0) : layout_.weights(0).first; }
  std::size_t bytes_of_all() const { return layout_.gradients(0) + layout_.seats() * layout_.gradient_places_bytes(); }

  // Lets what this rank works on lie on its own memory node, where ranks run on several.
  void settle() {
    if (layout_.copies() == 1) return;
    const int node = static_cast<int>(node_);
    const std::size_t copy = layout_.copy_of(seat_);
    std::vector<FilePart> own = layout_.state_of(layout_.slice(seat_, layout_.seats()));
    std::size_t first = 0;
    while (layout_.copy_of(first) != copy) ++first;
    if (first == seat_) own.push_back(layout_.weights(copy));
    for (const FilePart& part : own) {
      if (!mapping_->commit_on_node(part, node)) throw weights::no_memory_for(bytes_of_all(), layout_.copies());
    }
    if (!prefer_memory_node(mapping_->base() + layout_.gradients(seat_), layout_.gradients_bytes(), node)) {
      log::debug(engine_->rank(),
                 fmt::format("memory of shared weights lies where it is first touched: the system does "
                             "not let this process choose memory node {}",
                             node));
    }
    if (seat_ == 0) {
      log::info(0,
                fmt::format("ranks run on {} memory nodes; each has a copy of the shared weights", layout_.copies()));
    }
  }

  void give_back_copies() const {
    const auto& read = store_->copies();
    for (std::size_t copy = 0; copy < layout_.copies(); ++copy) {
      if (std::find(read.begin(), read.end(), copy) == read.end()) mapping_->give_back(layout_.weights(copy));
    }
  }

  // Empty: they are.
  std::string why_not_served(int (*meant)()) {
    if (region_ >= 0) return {};
    const lockstep_preload_library* library = heap::find_preloaded();
    if (library == nullptr) {
      return "the library that makes them there is not preloaded. `lockstep run` does that, unless it is told not to";
    }
    const auto classes = heap::classes_for(layout_.gradient_sizes(), layout_.born_bytes());
    if (classes.empty()) return "they are too small to matter";
    std::string problem;
    heap::Room room{.base = mapping_->base() + layout_.born(seat_),
                    .bytes = layout_.born_bytes(),
                    .commit =
                        [mapping = mapping_.get(), rank = engine_->rank()](std::byte* first, std::size_t bytes) {
                          if (mapping->commit(first, bytes)) return true;
                          log::warn(rank,
                                    "a memory limit is near: gradients of shared weights that are new from now on are "
                                    "not born where the other ranks can read them, but copied there. Raise the memory "
                                    "limit.");
                          return false;
                        },
                    .memory = mapping_};
    region_ = heap::serve(*library, classes, std::move(room), meant, problem);
    return problem;
  }

  std::vector<GuardedRange> guarded_ranges() const {
    std::vector<GuardedRange> ranges;
    for (const TensorPlace& tensor : layout_.tensors()) {
      ranges.push_back({shown_weights(tensor), tensor.elements * tensor.width(), warning_for(tensor, "")});
      for (std::size_t i = 0; i < tensor.states; ++i) {
        const std::string part = fmt::format("the state {} of ", state_names_[i]);
        ranges.push_back(
            {shown_state(tensor, i), tensor.elements * tensor.state_width(), warning_for(tensor, part.c_str())});
      }
    }
    return ranges;
  }

  Engine* engine_;
  Layout layout_;
  std::int64_t node_ = -1;  // the memory node on which this rank runs; -1: on none
  std::size_t seat_ = 0;
  bool load_was_torn_ = false;  // found by an attempt to recover that was not the last
  std::vector<std::string> state_names_;
  std::shared_ptr<Mapping> mapping_;  // gradients that were born in it keep it
  std::vector<bool> taken_;           // by tensor: its place for the gradient has memory
  int region_ = -1;                   // of the preloaded library, that gradients are born in
  std::unique_ptr<Store> store_;
  std::unique_ptr<weights::Fence> fence_;
  std::unique_ptr<weights::Guard> guard_;
};

SharedWeights::SharedWeights(Engine& engine, std::vector<SharedTensor> tensors,
                             std::vector<OptimizerOptions> optimizers)
    : impl_(std::make_unique<Impl>(engine, tensors, optimizers)) {}
SharedWeights::~SharedWeights() = default;
SharedWeights::SharedWeights(SharedWeights&&) noexcept = default;
SharedWeights& SharedWeights::operator=(SharedWeights&&) noexcept = default;

std::size_t SharedWeights::copies() const noexcept { return impl_->store().copies().size(); }
std::size_t SharedWeights::count() const noexcept { return impl_->layout().tensors().size(); }

const void* SharedWeights::weights(std::size_t tensor) const {
  return impl_->shown_weights(impl_->layout().tensors()[tensor]);
}

std::size_t SharedWeights::states(std::size_t tensor) const { return impl_->layout().tensors()[tensor].states; }

const void* SharedWeights::state(std::size_t tensor, std::size_t index) const {
  const TensorPlace& place = impl_->layout().tensors()[tensor];
  if (index >= place.states) {
    throw Error(ErrorCode::invalid_argument, fmt::format("'{}' has no state number {}", place.name, index));
  }
  return impl_->shown_state(place, index);
}

void* SharedWeights::gradient(std::size_t tensor) { return impl_->gradient(tensor); }
std::span<const std::byte> SharedWeights::gradients() const noexcept { return impl_->gradients(); }
bool SharedWeights::serve_gradients(int (*meant)()) { return impl_->serve_gradients(meant); }
std::int64_t SharedWeights::steps(std::size_t tensor) const { return impl_->store().steps(tensor); }
std::uint64_t SharedWeights::updates() const noexcept { return impl_->store().updates(); }
void SharedWeights::load(const std::vector<SharedValues>& values) { impl_->load(values); }
void SharedWeights::update(const SharedUpdate& update) { impl_->update(update); }
Recovery SharedWeights::recover(Engine& next) { return impl_->recover(next); }
std::uint64_t SharedWeights::hash() const { return impl_->store().hash(); }

}  // namespace lockstep
