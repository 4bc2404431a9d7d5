// An update of shared weights is whole, wherever ranks die: the hash afterwards is that of step k or k + 1.
#include "weights/store.hpp"

#include <gtest/gtest.h>

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
  explicit Ranks(std::size_t count) : layout_(kTensors, kOptimizers, count), memory_(layout_.bytes()) {
    Store::initialise(layout_, memory_.data());
    for (std::size_t seat = 0; seat < count; ++seat) add(seat);
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
        std::memset(memory_.data() + tensor.weights + piece.offset * tensor.width(), 0xA5, tensor.width());
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

// Hashes after 0, 1, 2, ... updates that nobody disturbs.
std::vector<std::uint64_t> undisturbed(std::size_t ranks, int updates) {
  Ranks world(ranks);
  std::vector<std::uint64_t> hashes = {world.hash()};
  for (int i = 0; i < updates; ++i) {
    world.update();
    hashes.push_back(world.hash());
  }
  return hashes;
}

enum class Others { before, after, never };  // do their parts before the victim, after its death, or in the repair

// False: the victim has so few points that it did not die.
bool dies_and_is_whole(std::size_t victim, int at, Others others, const std::vector<std::uint64_t>& expected,
                       std::optional<std::pair<std::size_t, int>> second = {}) {
  Ranks world(3);
  world.update();
  for (std::size_t seat = 0; seat < 3; ++seat) world.submit(seat);
  if (others != Others::never) {
    for (std::size_t seat = 0; seat < 3; ++seat) EXPECT_TRUE(world[seat].agreed());
  }
  EXPECT_TRUE(world[victim].agreed());
  auto others_apply = [&] {
    for (std::size_t seat = 0; seat < 3; ++seat) {
      if (seat != victim) world[seat].apply();
    }
  };
  if (others == Others::before) others_apply();
  world.let_die(victim, at);
  bool died = false;
  try {
    world[victim].apply();
  } catch (const Death&) {
    died = true;
  }
  if (!died) return false;
  world.lose(victim);
  if (others == Others::after) others_apply();
  if (second) world.let_die(second->first, second->second);
  world.recover(second ? std::optional(second->first) : std::nullopt);
  EXPECT_EQ(world.hash(), expected[2]) << "victim " << victim << " at point " << at;
  world.update();  // and they can go on
  return true;
}

TEST(WeightStore, IsWholeWhereverARankDies) {
  const auto expected = undisturbed(3, 2);
  for (const Others others : {Others::before, Others::after, Others::never}) {
    for (std::size_t victim = 0; victim < 3; ++victim) {
      int at = 0;
      while (dies_and_is_whole(victim, at, others, expected)) ++at;
      EXPECT_GE(at, 4) << "points of rank " << victim;
    }
  }
}

TEST(WeightStore, IsWholeWhenAnotherDiesInTheRepair) {
  const auto expected = undisturbed(3, 2);
  for (int at : {0, 1, 2, 3}) {
    for (int second = 0; second < 4; ++second) {
      EXPECT_TRUE(dies_and_is_whole(1, at, Others::never, expected, std::pair(std::size_t{0}, second)));
      EXPECT_TRUE(dies_and_is_whole(0, at, Others::never, expected, std::pair(std::size_t{2}, second)));
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
TEST(WeightStore, UpdatesOnSeveralThreadsAtOnce) {
  constexpr std::size_t kCount = 3;
  const int updates = under_sanitizer() ? 5 : 50;
  const auto expected = undisturbed(kCount, updates);
  Ranks world(kCount);
  std::barrier<> all(kCount);
  std::vector<std::thread> threads;
  for (std::size_t seat = 0; seat < kCount; ++seat) {
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

}  // namespace
}  // namespace lockstep::weights
