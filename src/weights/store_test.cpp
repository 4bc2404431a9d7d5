// An update of shared weights is whole, wherever ranks die: the hash afterwards is that of step k or k + 1.
#include "weights/store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "base/half.hpp"
#include "base/sanitizer_test.hpp"
#include "lockstep/error.hpp"
#include "optim/every_option_test.hpp"

namespace lockstep::weights {
namespace {

const std::vector<SharedTensor> kTensors = {{.name = "large", .elements = 20'000},
                                            {.name = "double", .dtype = DType::f64, .elements = 7, .group = 1},
                                            {.name = "half", .dtype = DType::bf16, .elements = 9'000},
                                            {.name = "one", .elements = 1, .group = 1},
                                            {.name = "none", .elements = 0}};
const std::vector<OptimizerOptions> kOptimizers = {{.kind = OptimizerKind::adam, .weight_decay = 0.01},
                                                   {.kind = OptimizerKind::sgd, .learning_rate = 0.1, .momentum = 0.9}};

struct Death {};

using Copies = std::vector<std::size_t>;
const std::vector<Copies> kTwoCopies = {{0, 1}, {0, 0, 1}, {0, 1, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}};

void fill(DType dtype, void* to, std::size_t count, std::uint64_t salt) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = number_at(i, salt);
    if (dtype == DType::f64) static_cast<double*>(to)[i] = static_cast<double>(value);
    if (dtype == DType::f32) static_cast<float*>(to)[i] = value;
    if (dtype == DType::bf16) static_cast<std::uint16_t*>(to)[i] = bf16_from_f32(value);
  }
}

// Ranks that take turns on one thread, so that a death can be put at every point.
class Ranks {
 public:
  explicit Ranks(std::size_t count) : Ranks(Copies(count, 0)) {}

  // Seat i reads copy `copies[i]` of the weights.
  explicit Ranks(const Copies& copies) : layout_(kTensors, kOptimizers, copies), memory_(layout_.bytes()) {
    Store::initialise(layout_, memory_.data());
    for (std::size_t seat = 0; seat < copies.size(); ++seat) add(seat);
    for (std::size_t i = 0; i < kTensors.size(); ++i) {
      std::vector<std::byte> values(kTensors[i].elements * size_of(kTensors[i].dtype));
      fill(kTensors[i].dtype, values.data(), kTensors[i].elements, i);
      stores_.begin()->second->load(i, {.weights = values.data()});
    }
  }

  Store& operator[](std::size_t seat) { return *stores_.at(seat); }
  void lose(std::size_t seat) { stores_.erase(seat); }
  std::vector<std::size_t> seats() const {
    std::vector<std::size_t> seats;
    for (const auto& [seat, store] : stores_) seats.push_back(seat);
    return seats;
  }

  void submit(std::size_t seat) {
    Store& store = *stores_.at(seat);
    const std::uint64_t update = store.updates() + 1;
    SharedUpdate wanted{.optimizers = kOptimizers};
    for (std::size_t i = 0; i < kTensors.size(); ++i) {
      // Some lie where they were born; some are copied to their place.
      std::byte* const born = memory_.data() + layout_.born(seat) + 128 * update;
      std::byte* const at = i == 0 && (update + seat) % 3 == 1 ? born
                            : i == 0 && seat == 2              ? elsewhere_
                                                               : store.gradient(i);
      fill(kTensors[i].dtype, at, kTensors[i].elements, update * 100 + seat * 10 + i);
      EXPECT_EQ(store.holds(i, at), at != elsewhere_);
      wanted.gradients.push_back(at);
    }
    wanted.gradients[1] = update % 2 == 0 ? nullptr : wanted.gradients[1];  // by nobody in every second update
    if (seat == 1) wanted.gradients[3] = nullptr;
    store.submit(wanted);
  }

  void update() {
    for (auto& [seat, store] : stores_) submit(seat);
    for (auto& [seat, store] : stores_) ASSERT_TRUE(store->agreed());
    for (auto& [seat, store] : stores_) store->apply();
    for (auto& [seat, store] : stores_) store->complete();
  }

  // All survivors, phase by phase. `dies`: a second one does, while it repairs.
  void recover(std::optional<std::size_t> dies = {}) {
    for (auto& [seat, store] : stores_) store->enter_next();
    const auto survivors = seats();
    for (const std::size_t seat : survivors) {
      try {
        stores_.at(seat)->repair(survivors);
      } catch (const Death&) {
        EXPECT_EQ(dies, seat);
        lose(seat);
      }
    }
    if (dies) return recover();
    for (auto& [seat, store] : stores_) store->complete_repair();
    for (auto& [seat, store] : stores_) store->prepare_next(survivors);
    stores_.begin()->second->publish_next(survivors.size());
    for (auto& [seat, store] : stores_) store->enter_next();
  }

  std::uint64_t hash() {
    std::set<std::uint64_t> all;
    for (auto& [seat, store] : stores_) all.insert(store->hash());
    EXPECT_EQ(all.size(), 1U);
    return *all.begin();
  }

  // The rank dies at its n-th point from now on; when it is inside a piece, that is left torn.
  void let_die(std::size_t seat, int at) {
    stores_.at(seat)->observer = [this, at](Store::Point point, const Piece& piece) mutable {
      if (at-- != 0) return;
      const TensorPlace& tensor = layout_.tensors()[piece.tensor];
      if (point == Store::Point::armed && piece.count > 0) {
        const std::size_t torn = layout_.weights(layout_.copies() - 1).first + tensor.weights;
        std::memset(memory_.data() + torn + piece.offset * tensor.width(), 0xA5, tensor.width());
        std::memset(memory_.data() + tensor.state[0] + piece.offset * tensor.state_width(), 0x5A, 2);
      }
      throw Death();
    };
  }

  const Layout& layout() const { return layout_; }
  std::byte* memory() { return memory_.data(); }

 private:
  void add(std::size_t seat) {
    stores_[seat] = std::make_unique<Store>(layout_, memory_.data(), seat, static_cast<pid_t>(seat) + 1);
  }

  Layout layout_;
  std::vector<std::byte> memory_;
  alignas(64) std::byte elsewhere_[20'000 * sizeof(float)];
  std::map<std::size_t, std::unique_ptr<Store>> stores_;
};

// Hashes after 0, 1, 2, ... updates that nobody disturbs, with one copy.
std::vector<std::uint64_t> undisturbed(std::size_t ranks, int updates) {
  Ranks world(ranks);
  std::vector<std::uint64_t> hashes = {world.hash()};
  for (int i = 0; i < updates; ++i) {
    world.update();
    hashes.push_back(world.hash());
  }
  return hashes;
}

enum class Others { before, after, never };  // do their parts before the victims, after their death, or in the repair

struct Deaths {
  std::vector<std::size_t> victims = {};
  int at = 0;                                              // which point
  std::optional<std::pair<std::size_t, int>> second = {};  // who dies in the repair, and where
};

// False: a victim has so few points that it did not die.
bool die_and_are_whole(const Copies& copies, const Deaths& deaths, Others others, std::uint64_t expected) {
  Ranks world(copies);
  auto is_victim = [&](std::size_t seat) {
    return std::find(deaths.victims.begin(), deaths.victims.end(), seat) != deaths.victims.end();
  };
  world.update();
  const auto all = world.seats();
  for (const std::size_t seat : all) world.submit(seat);
  for (const std::size_t seat : all) {
    const bool takes_part = others != Others::never || is_victim(seat);
    EXPECT_TRUE(!takes_part || world[seat].agreed());
  }
  auto others_apply = [&] {
    for (const std::size_t seat : all) {
      if (!is_victim(seat)) world[seat].apply();
    }
  };
  if (others == Others::before) others_apply();
  for (const std::size_t victim : deaths.victims) {
    world.let_die(victim, deaths.at);
    bool died = false;
    try {
      world[victim].apply();
    } catch (const Death&) {
      died = true;
    }
    if (!died) return false;
    world.lose(victim);
  }
  if (others == Others::after) others_apply();
  if (deaths.second) world.let_die(deaths.second->first, deaths.second->second);
  world.recover(deaths.second ? std::optional(deaths.second->first) : std::nullopt);
  EXPECT_EQ(world.hash(), expected) << "victim " << deaths.victims[0] << " at point " << deaths.at;
  world.update();  // and they can go on
  world.hash();
  return true;
}

TEST(WeightStore, IsWholeWhereverARankDies) {
  const auto expected = undisturbed(3, 2);
  for (const Others others : {Others::before, Others::after, Others::never}) {
    for (std::size_t victim = 0; victim < 3; ++victim) {
      int at = 0;
      while (die_and_are_whole({0, 0, 0}, {.victims = {victim}, .at = at}, others, expected[2])) ++at;
      EXPECT_GE(at, 4) << "points of rank " << victim;
    }
  }
}

TEST(WeightStore, AllCopiesHaveTheBitsOfOne) {
  for (const Copies& copies : kTwoCopies) {
    const int updates = under_sanitizer() ? 5 : 40;
    const auto expected = undisturbed(copies.size(), updates);
    Ranks world(copies);
    EXPECT_EQ(world[0].copies(), (Copies{0, 1}));
    EXPECT_EQ(world.hash(), expected[0]);  // what was loaded
    for (int i = 1; i <= updates; ++i) {
      world.update();
      ASSERT_EQ(world.hash(), expected[static_cast<std::size_t>(i)]);
    }
  }
}

// Among the victims are all ranks of a copy.
TEST(WeightStore, AllCopiesAreWholeWhereverARankDies) {
  for (const Copies& copies : kTwoCopies) {
    const auto expected = undisturbed(copies.size(), 2);
    const auto several = under_sanitizer() ? std::vector{Others::never} : std::vector{Others::before, Others::never};
    for (const Others others : several) {
      for (std::size_t victim = 0; victim < copies.size(); ++victim) {
        int at = 0;
        while (die_and_are_whole(copies, {.victims = {victim}, .at = at}, others, expected[2])) ++at;
        EXPECT_GE(at, 5) << "points of rank " << victim;
      }
    }
  }
}

TEST(WeightStore, ACopyWithoutRanksIsDropped) {
  const auto expected = undisturbed(4, 2);
  for (const Copies& copies : {Copies{0, 0, 1, 1}, Copies{0, 1, 0, 1}}) {
    for (const std::size_t dead : {0U, 1U}) {
      Deaths deaths;
      for (std::size_t seat = 0; seat < 4; ++seat) {
        if (copies[seat] == dead) deaths.victims.push_back(seat);
      }
      while (die_and_are_whole(copies, deaths, Others::never, expected[2])) ++deaths.at;
      EXPECT_GE(deaths.at, 5);
    }
  }
  Ranks world(Copies{0, 1, 1});
  world.update();
  world.lose(0);
  world.recover();
  EXPECT_EQ(world[1].copies(), Copies{1});
  const FilePart dropped = world.layout().weights(0);
  std::memset(world.memory() + dropped.first, 0xA5, dropped.bytes);
  Ranks twin(Copies{0, 1, 1});
  twin.update();
  twin.lose(0);
  twin.recover();
  for (int i = 0; i < 3; ++i) {
    world.update();
    twin.update();
    EXPECT_EQ(world.hash(), twin.hash());
  }
  for (std::size_t i = 0; i < dropped.bytes; ++i) {
    ASSERT_EQ(world.memory()[dropped.first + i], std::byte{0xA5}) << "nobody writes into it any more";
  }
}

TEST(WeightStore, CopiesAreWholeWhenAnotherDiesInTheRepair) {
  const auto expected = undisturbed(4, 2);
  const Copies copies = {0, 0, 1, 1};
  for (int at : {0, 1, 2, 3, 4}) {
    for (int second = 0; second < 5; ++second) {
      // In its own slice: the second is of the same copy, which is dropped then, or of the other one.
      for (const std::size_t other : {2U, 1U}) {
        const Deaths deaths{.victims = {3}, .at = at, .second = std::pair(std::size_t{other}, second)};
        EXPECT_TRUE(die_and_are_whole(copies, deaths, Others::never, expected[2]));
      }
      // In the slice of the first, for instance when it has just undone: then one who reads the other copy goes on.
      const Deaths deaths{.victims = {3}, .at = at, .second = std::pair(std::size_t{0}, second)};
      EXPECT_TRUE(die_and_are_whole(copies, deaths, Others::before, expected[2]));
    }
  }
}

TEST(WeightStore, LoadsIntoAllCopiesAndEvensOutATornLoad) {
  Ranks world(Copies{0, 1, 0});
  world.update();
  std::vector<float> values(kTensors[0].elements, 0.5F);
  world[0].begin_load();
  world[0].load(0, {.weights = values.data(), .state = {nullptr, values.data()}});
  world[0].end_load();
  const auto loaded = world.hash();
  Ranks twin(3);
  twin.update();
  twin[2].load(0, {.weights = values.data(), .state = {nullptr, values.data()}});
  EXPECT_EQ(loaded, twin.hash());

  const std::size_t own = world.layout().weights(1).first + world.layout().tensors()[0].weights;
  world[0].begin_load();
  std::memset(world.memory() + own, 0xA5, 100);  // died in the middle of it
  EXPECT_NE(world[1].hash(), world[2].hash());
  EXPECT_TRUE(world[2].load_was_torn());
  world[2].even_out();
  EXPECT_EQ(world.hash(), loaded);
}

TEST(WeightStore, IsWholeWhenAnotherDiesInTheRepair) {
  const auto expected = undisturbed(3, 2);
  for (int at : {0, 1, 2, 3}) {
    for (int second = 0; second < 4; ++second) {
      for (const auto& [victim, other] : {std::pair(1U, 0U), std::pair(0U, 2U)}) {
        const Deaths deaths{.victims = {victim}, .at = at, .second = std::pair(std::size_t{other}, second)};
        EXPECT_TRUE(die_and_are_whole({0, 0, 0}, deaths, Others::never, expected[2]));
      }
    }
  }
}

TEST(WeightStore, StaysAtTheOldStepWhenOneHadNotSubmitted) {
  const auto expected = undisturbed(3, 1);
  Ranks world(3);
  world.update();
  world.submit(0);
  world.submit(2);
  world.lose(1);
  world.recover();
  EXPECT_EQ(world.hash(), expected[1]);
  EXPECT_EQ(world[0].updates(), 1U);
  world.update();
  EXPECT_EQ(world[2].updates(), 2U);
}

TEST(WeightStore, KnowsThatAnUpdateIsDoneWhenSomeWereAlreadyAtTheNext) {
  const auto expected = undisturbed(3, 1);
  Ranks world(3);
  for (std::size_t seat = 0; seat < 3; ++seat) world.submit(seat);
  for (std::size_t seat = 0; seat < 3; ++seat) EXPECT_TRUE(world[seat].agreed());
  for (std::size_t seat = 0; seat < 3; ++seat) world[seat].apply();
  world[0].complete();
  world.submit(0);  // overwrites its gradients, and what it says on the board
  world.lose(1);    // 2 has not heard that all are through
  world.recover();
  EXPECT_EQ(world.hash(), expected[1]);
}

TEST(WeightStore, OutlivesOneDeathAfterAnother) {
  Ranks world(3);
  for (std::size_t victim : {1U, 0U}) {
    world.update();
    for (const std::size_t seat : world.seats()) world.submit(seat);
    for (const std::size_t seat : world.seats()) EXPECT_TRUE(world[seat].agreed());
    world.let_die(victim, 1);
    EXPECT_THROW(world[victim].apply(), Death);
    world.lose(victim);
    world.recover();
  }
  EXPECT_EQ(world[2].updates(), 4U);
  world.update();
  EXPECT_EQ(world[2].members().size(), 1U);
}

TEST(WeightStore, BeginsNothingWhenRanksWantDifferentUpdates) {
  Ranks world(2);
  const auto before = world.hash();
  world.submit(0);
  auto other = kOptimizers;
  other[0].learning_rate = 0.5;
  world[1].submit({.optimizers = other});
  EXPECT_FALSE(world[0].agreed());
  EXPECT_FALSE(world[1].agreed());
  world.lose(1);
  world.recover();
  EXPECT_EQ(world.hash(), before);
}

TEST(WeightStore, RefusesWhatMakesNoSense) {
  Ranks world(1);
  auto message = [&](const SharedUpdate& update) -> std::string {
    try {
      world[0].submit(update);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({.optimizers = {}}).find("0 optimizers for 2 groups"), std::string::npos);
  EXPECT_NE(message({.optimizers = kOptimizers, .op = ReduceOp::max}).find("averaged or summed"), std::string::npos);
  EXPECT_NE(message({.optimizers = kOptimizers, .gradients = {nullptr}}).find("1 gradients for 5"), std::string::npos);
  auto other = kOptimizers;
  other[1].momentum = 0.0;
  EXPECT_NE(message({.optimizers = other}).find("'double', which was made with 1"), std::string::npos);
  const std::vector<SharedTensor> integers = {{.name = "table", .dtype = DType::i32, .elements = 3}};
  EXPECT_THROW(Layout(integers, kOptimizers, 2), Error);
}

// Ranks as threads on one mapping, for the thread sanitizer; and the bits are those of one rank after another.
void update_on_threads(const Copies& copies) {
  const int updates = under_sanitizer() ? 5 : 50;
  const auto expected = undisturbed(copies.size(), updates);
  Ranks world(copies);
  std::barrier<> all(static_cast<std::ptrdiff_t>(copies.size()));
  std::vector<std::thread> threads;
  for (std::size_t seat = 0; seat < copies.size(); ++seat) {
    threads.emplace_back([&, seat] {
      for (int i = 0; i < updates; ++i) {
        world.submit(seat);
        all.arrive_and_wait();
        EXPECT_TRUE(world[seat].agreed());
        world[seat].apply();
        all.arrive_and_wait();
        world[seat].complete();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(world.hash(), expected.back());
}

TEST(WeightStore, UpdatesOnSeveralThreadsAtOnce) { update_on_threads({0, 0, 0}); }
TEST(WeightStore, UpdatesCopiesOnSeveralThreadsAtOnce) { update_on_threads({0, 0, 1}); }

TEST(WeightStore, KnowsWhatOthersCanRead) {
  Ranks world(2);
  const std::size_t bytes = kTensors[0].elements * sizeof(float);
  std::byte* const first = world.memory() + world.layout().gradients(1);
  EXPECT_TRUE(world[1].holds(0, first));
  EXPECT_TRUE(world[1].holds(0, first + world.layout().gradients_bytes() - bytes));
  EXPECT_FALSE(world[1].holds(0, first - 1));
  EXPECT_FALSE(world[1].holds(0, first + world.layout().gradients_bytes() - bytes + 1));
  EXPECT_FALSE(world[0].holds(0, first));  // those of another rank
}

TEST(WeightLayout, CutsEverythingOnce) {
  const Layout layout(kTensors, kOptimizers, 4);
  std::vector<std::size_t> covered(kTensors.size(), 0);
  for (std::size_t slices : {1U, 2U, 3U, 4U}) {
    std::size_t next = 0;
    for (std::size_t i = 0; i < slices; ++i) {
      const PieceRange range = layout.slice(i, slices);
      EXPECT_EQ(range.first, next);
      next += range.count;
    }
    std::fill(covered.begin(), covered.end(), 0);
    for (std::size_t i = 0; i < next; ++i) {
      EXPECT_EQ(layout.piece(i).offset, covered[layout.piece(i).tensor]);
      covered[layout.piece(i).tensor] += layout.piece(i).count;
    }
    for (std::size_t i = 0; i < kTensors.size(); ++i) EXPECT_EQ(covered[i], kTensors[i].elements);
  }
}

TEST(WeightLayout, HasOneCopyPerNode) {
  auto copies = [](std::vector<std::int64_t> nodes) { return copies_by_node(nodes); };
  EXPECT_EQ(copies({0, 0, 0}), (Copies{0, 0, 0}));
  EXPECT_EQ(copies({5, 5, 2, 5}), (Copies{0, 0, 1, 0}));
  EXPECT_EQ(copies({1, 0, 3}), (Copies{0, 1, 2}));
  EXPECT_EQ(copies({0, 1, -1}), (Copies{0, 0, 0}));  // one that may run anywhere
  EXPECT_EQ(copies({}), Copies{});
}

// Weights for each copy, state for all of them, gradients for each seat.
TEST(WeightLayout, PutsNothingOverAnother) {
  const Layout layout(kTensors, kOptimizers, Copies{0, 1, 2, 1});
  EXPECT_EQ(layout.copies(), 3U);
  std::vector<FilePart> parts = {layout.weights(0), layout.weights(1), layout.weights(2), layout.state()};
  for (std::size_t seat = 0; seat < 4; ++seat) {
    parts.push_back({layout.gradients(seat), layout.gradients_bytes()});
    EXPECT_LT(layout.undo(seat), layout.weights(0).first);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].first % 4096, 0U);
    EXPECT_LE(parts[i].first + parts[i].bytes, i + 1 < parts.size() ? parts[i + 1].first : layout.bytes());
  }
  for (const TensorPlace& tensor : layout.tensors()) {
    EXPECT_LE(tensor.weights + tensor.elements * tensor.width(), layout.weights(0).bytes);
    for (std::size_t i = 0; i < tensor.states; ++i) {
      EXPECT_GE(tensor.state[i], layout.state().first);
      EXPECT_LE(tensor.state[i] + tensor.elements * tensor.state_width(), layout.gradients(0));
    }
  }
  const Layout other(kTensors, kOptimizers, Copies{0, 1, 2, 2});
  EXPECT_NE(layout.hash(), other.hash());
  EXPECT_EQ(layout.hash(), Layout(kTensors, kOptimizers, Copies{0, 1, 2, 1}).hash());
}

// Each rank sees to the state of its slice, in a few parts, and together they see to all of it.
TEST(WeightLayout, KnowsWhereTheStateOfASliceLies) {
  std::vector<SharedTensor> tensors(40, {.name = "x", .elements = 3'000});
  tensors[17].elements = 100'000;
  const Layout layout(tensors, kOptimizers, Copies{0, 1, 0});
  std::set<std::size_t> pages;
  for (std::size_t seat = 0; seat < 3; ++seat) {
    const auto parts = layout.state_of(layout.slice(seat, 3));
    EXPECT_LE(parts.size(), 5U);
    for (const FilePart& part : parts) {
      EXPECT_EQ(part.first % 4096 + part.bytes % 4096, 0U);
      for (std::size_t at = 0; at < part.bytes; at += 4096) pages.insert(part.first + at);
    }
  }
  EXPECT_EQ(pages.size() * 4096, layout.state().bytes);
  EXPECT_EQ(*pages.begin(), layout.state().first);
  EXPECT_TRUE(layout.state_of({0, 0}).empty());
}

}  // namespace
}  // namespace lockstep::weights
