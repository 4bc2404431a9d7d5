// Does every operation once, in several sizes and types, and prints a hash of what this rank got: "NAME HASH". The
// lines must be the same wherever the ranks are and however they reach each other.
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/lockstep.hpp"

namespace {

using namespace lockstep;

/// Memory with a tensor in it, of values whose sum depends on the order of the additions.
class Values {
 public:
  Values(DType type, std::int64_t rows, std::int64_t columns, int seed) : bytes_(size(type, rows, columns)) {
    view_ = {.data = bytes_.data(), .dtype = type, .shape = {rows, columns}};
    std::uint64_t state = static_cast<std::uint64_t>(seed) * 0x9E3779B97F4A7C15ULL + 1;
    const std::size_t count = static_cast<std::size_t>(view_.elements());
    for (std::size_t i = 0; i < count; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      put(i, static_cast<std::uint32_t>(state >> 32));
    }
  }

  TensorView view(const std::string& name) const {
    TensorView named = view_;
    named.name = name;
    return named;
  }

 private:
  static std::size_t size(DType type, std::int64_t rows, std::int64_t columns) {
    return static_cast<std::size_t>(rows * columns) * size_of(type);
  }

  template <class T>
  void set(std::size_t index, T value) {
    std::memcpy(bytes_.data() + index * sizeof value, &value, sizeof value);
  }

  // The 16-bit floats are made of their bits: any fraction, and an exponent close to that of 1.
  void put(std::size_t index, std::uint32_t random) {
    const float number = static_cast<float>(random >> 8) / 16777216.0F - 0.5F;
    switch (view_.dtype) {
      case DType::f16:
        return set(index, static_cast<std::uint16_t>((random & 0x83FF) | ((12 + (random >> 20 & 3)) << 10)));
      case DType::bf16:
        return set(index, static_cast<std::uint16_t>((random & 0x807F) | ((124 + (random >> 20 & 3)) << 7)));
      case DType::f32:
        return set(index, number);
      case DType::f64:
        return set(index, static_cast<double>(number) / 3);
      case DType::c64:
        set(2 * index, number);
        return set(2 * index + 1, -number / 3);
      default:
        return set(index, static_cast<std::int64_t>(random));
    }
  }

  std::vector<std::byte> bytes_;
  TensorView view_;
};

class Report {
 public:
  explicit Report(Engine& engine) : engine_(engine) {}

  void reductions() {
    for (const DType type : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::c64, DType::i64}) {
      for (const std::int64_t rows : {1, 61, 20'011}) {
        const std::string name = std::string(name_of(type)) + " x " + std::to_string(rows * 3);
        reduce("sum of " + name, Values(type, rows, 3, engine_.rank()), {});
        if (type == DType::c64) continue;
        reduce("max of " + name, Values(type, rows, 3, engine_.rank()), {.op = ReduceOp::max});
        if (type == DType::i64) continue;
        reduce("average of " + name, Values(type, rows, 3, engine_.rank()), {.op = ReduceOp::average});
      }
    }
    reduce("adasum", Values(DType::f32, 5'000, 3, engine_.rank()), {.op = ReduceOp::adasum});
    reduce("a large sum", Values(DType::f32, 1'000'003, 1, engine_.rank()), {});
  }

  void leaves() {
    const std::int64_t total = 13, columns = 1'001;
    const LeafRange range{
        .first = total * engine_.rank() / engine_.size(),
        .count = total * (engine_.rank() + 1) / engine_.size() - total * engine_.rank() / engine_.size(),
        .total = total};
    std::vector<Values> owned;
    std::vector<TensorView> views;
    for (std::int64_t leaf = range.first; leaf < range.first + range.count; ++leaf)
      owned.emplace_back(DType::bf16, 1, columns, 1000 + static_cast<int>(leaf));
    for (const Values& leaf : owned) views.push_back(leaf.view({}));
    const auto blocks = static_cast<std::int64_t>(leaf_blocks(range).size());
    std::vector<float> partials(static_cast<std::size_t>(blocks * columns));
    const TensorView input{.data = partials.data(), .shape = {blocks, 1, columns}, .name = "leaves"};
    sum_leaves(range, views, input);
    std::vector<float> sum(static_cast<std::size_t>(columns));
    const TensorView output{.data = sum.data(), .shape = {1, columns}, .name = "leaves"};
    engine_.all_reduce(input, output, {.leaves = range});
    tell("leaves", output);
  }

  void moves() {
    const int rank = engine_.rank(), size = engine_.size();
    const Values own(DType::f32, 100 + rank, 7, rank);
    const Values same(DType::f32, 1'009, 5, rank);
    tell("reduce_scatter", engine_.reduce_scatter(same.view("rs")).tensor);
    tell("all_gather", engine_.all_gather(own.view("ag")).tensor);
    const Result gathered = engine_.gather(own.view("g"), size - 1);
    if (rank == size - 1) tell("gather", gathered.tensor);
    tell("scatter", engine_.scatter(same.view("s"), 0).tensor);
    const Values copied(DType::f64, 501, 3, rank);
    engine_.broadcast(copied.view("b"), size - 1);
    tell("broadcast", copied.view("b"));
    std::vector<std::int64_t> splits(static_cast<std::size_t>(size), 1);
    splits.front() = 100 + rank - (size - 1);
    tell("all_to_all", engine_.all_to_all(own.view("a2a"), splits).tensor);
  }

  void group() {
    std::vector<int> ranks;
    for (int rank = engine_.rank() % 2; rank < engine_.size(); rank += 2) ranks.push_back(rank);
    const Group group = engine_.make_group(ranks);
    reduce("sum of every second rank", Values(DType::f32, 30'001, 1, engine_.rank()), {.group = group});
  }

  // From the third step on these travel together.
  void steps() {
    for (int step = 0; step < 5; ++step) {
      std::vector<Values> gradients;
      std::vector<std::string> names;
      for (int i = 0; i < 12; ++i) {
        gradients.emplace_back(i % 3 == 0 ? DType::bf16 : DType::f32, 1 + i * 997, 3, engine_.rank() * 100 + i);
        names.push_back("gradient " + std::to_string(i));
      }
      engine_.begin_step();
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const TensorView view = gradients[i].view(names[i]);
        engine_.all_reduce_async(view, view, {.op = ReduceOp::average});
      }
      engine_.end_step();
      for (std::size_t i = 0; i < gradients.size(); ++i)
        tell("step " + std::to_string(step) + ", " + names[i], gradients[i].view({}));
    }
  }

  // Gradients in, weights out: each rank updates what it owns, and has state for that alone.
  void updates() {
    const OptimizerOptions adam{.kind = OptimizerKind::adam, .learning_rate = 0.01};
    std::vector<Values> weights;
    std::vector<std::vector<float>> state;
    std::vector<OptimizedTensor> tensors;
    for (int i = 0; i < 12; ++i) {
      weights.emplace_back(i % 3 == 0 ? DType::bf16 : DType::f32, 1 + i * i * 997, 3, i);
      const TensorView view = weights.back().view({});
      const ElementRange mine =
          owned_slice(static_cast<std::size_t>(view.elements()), view.dtype, static_cast<std::size_t>(engine_.rank()),
                      static_cast<std::size_t>(engine_.size()));
      for (int which = 0; which < 2; ++which) state.emplace_back(mine.count);
      tensors.push_back({.weights = view.data,
                         .dtype = view.dtype,
                         .first = mine.offset,
                         .state = {state[state.size() - 2].data(), state.back().data()}});
    }
    for (int step = 1; step <= 3; ++step) {
      std::vector<Values> gradients;
      std::vector<TensorPair> pairs;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const std::string name = "weights " + std::to_string(i);
        const TensorView to = weights[i].view(name);
        gradients.emplace_back(to.dtype, to.shape[0], to.shape[1], engine_.rank() * 100 + step);
        pairs.push_back({gradients.back().view(name), to});
      }
      engine_.all_reduce(pairs, {.op = ReduceOp::average, .epilogue = update_epilogue(adam, step, tensors)});
      for (const TensorPair& pair : pairs)
        tell("update " + std::to_string(step) + ", " + pair.output.name, pair.output);
    }
  }

  // The last operations of the others go on without those that have joined.
  void join() {
    for (int round = 0; round < engine_.rank(); ++round)
      reduce("join " + std::to_string(round), Values(DType::f32, 4'001, 1, engine_.rank()), {});
    std::printf("join: %d\n", engine_.join());
  }

 private:
  void reduce(const std::string& name, const Values& values, const ReduceOptions& options) {
    engine_.all_reduce(values.view(name), values.view(name), options);
    tell(name, values.view(name));
  }

  static void tell(const std::string& name, const TensorView& tensor) {
    std::uint64_t hash = 1469598103934665603ULL;
    const auto* bytes = static_cast<const unsigned char*>(tensor.data);
    for (std::size_t i = 0; i < tensor.bytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ULL;
    std::printf("%s: %016lx\n", name.c_str(), hash);
  }

  Engine& engine_;
};

}  // namespace

int main() try {
  Engine engine;
  Report report(engine);
  report.reductions();
  report.leaves();
  report.moves();
  report.group();
  report.steps();
  report.updates();
  report.join();
  return 0;
} catch (const std::exception& error) {
  std::printf("failed: %s\n", error.what());
  return 1;
}
