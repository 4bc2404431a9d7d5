// Every operation x element type x reduction x way of calling, against a plain reference, at 1 to 8 ranks on both
// transports. By default a covering subset; LOCKSTEP_TEST_FULL=1 runs all of it.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>

#include "base/half.hpp"
#include "base/reduction_tree.hpp"
#include "collective/reduce_kernel.hpp"
#include "collective/routes.hpp"
#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using Bytes = std::vector<std::byte>;

bool run_everything() { return std::getenv("LOCKSTEP_TEST_FULL") != nullptr; }

// --- element types, for the reference: T lies in memory, A is what it is added in

template <class T, class A = T>
struct Plain {
  using Element = T;
  using Sum = A;
  static A up(T value) { return static_cast<A>(value); }
  static T down(A value) { return static_cast<T>(value); }
};
struct Half : Plain<std::uint16_t, float> {
  static float up(std::uint16_t value) { return f32_from_f16(value); }
  static std::uint16_t down(float value) { return f16_from_f32(value); }
};
struct Brain : Plain<std::uint16_t, float> {
  static float up(std::uint16_t value) { return f32_from_bf16(value); }
  static std::uint16_t down(float value) { return bf16_from_f32(value); }
};

template <class Visitor>
auto visit_type(DType dtype, ReduceOp op, const Visitor& visit) {
  const bool average = op == ReduceOp::average;
  switch (dtype) {
    case DType::boolean:
      return visit(Plain<std::uint8_t>());
    case DType::u8:
      return average ? visit(Plain<std::uint8_t, std::uint64_t>()) : visit(Plain<std::uint8_t>());
    case DType::i8:
      return average ? visit(Plain<std::int8_t, std::int64_t>()) : visit(Plain<std::int8_t>());
    case DType::u16:
      return average ? visit(Plain<std::uint16_t, std::uint64_t>()) : visit(Plain<std::uint16_t>());
    case DType::i16:
      return average ? visit(Plain<std::int16_t, std::int64_t>()) : visit(Plain<std::int16_t>());
    case DType::u32:
      return average ? visit(Plain<std::uint32_t, std::uint64_t>()) : visit(Plain<std::uint32_t>());
    case DType::i32:
      return average ? visit(Plain<std::int32_t, std::int64_t>()) : visit(Plain<std::int32_t>());
    case DType::u64:
      return visit(Plain<std::uint64_t>());
    case DType::i64:
      return visit(Plain<std::int64_t>());
    case DType::f16:
      return visit(Half());
    case DType::bf16:
      return visit(Brain());
    case DType::f32:
      return visit(Plain<float>());
    case DType::f64:
      return visit(Plain<double>());
    case DType::c64:
      return visit(Plain<std::complex<float>>());
    case DType::c128:
      return visit(Plain<std::complex<double>>());
  }
  return visit(Plain<float>());
}

template <class A>
A join(DType dtype, ReduceOp op, A a, A b) {
  if constexpr (std::is_same_v<A, std::complex<float>> || std::is_same_v<A, std::complex<double>>) {
    return op == ReduceOp::product ? a * b : a + b;
  } else {
    if (dtype == DType::boolean) return op == ReduceOp::sum || op == ReduceOp::max ? std::max(a, b) : std::min(a, b);
    switch (op) {
      case ReduceOp::min:
        return std::min(a, b);
      case ReduceOp::max:
        return std::max(a, b);
      case ReduceOp::product:
        return static_cast<A>(a * b);
      default:
        return static_cast<A>(a + b);
    }
  }
}

// The reduction of all ranks' tensors, by definition; an empty leaf is absent.
Bytes reference(DType dtype, ReduceOp op, const std::vector<Bytes>& leaves, std::size_t elements,
                std::uint64_t divisor) {
  Bytes result(elements * size_of(dtype));
  visit_type(dtype, op, [&](auto type) {
    using Type = decltype(type);
    using T = typename Type::Element;
    using A = typename Type::Sum;
    for (std::size_t i = 0; i < elements; ++i) {
      A value = *reduce_tree(
          0, leaves.size(),
          [&](std::size_t leaf) -> std::optional<A> {
            if (leaves[leaf].empty()) return std::nullopt;
            T element;
            std::memcpy(&element, leaves[leaf].data() + i * sizeof(T), sizeof(T));
            return Type::up(element);
          },
          [&](A a, A b) { return join(dtype, op, a, b); });
      if (op == ReduceOp::average) value = value / static_cast<A>(divisor);
      const T element = Type::down(value);
      std::memcpy(result.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return result;
}

// Small numbers, so that nothing overflows and products stay finite; fractions where the type has them.
Bytes values(DType dtype, int rank, std::size_t elements, unsigned salt = 0) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919 + salt * 104'729 + static_cast<unsigned>(dtype));
  Bytes bytes(elements * size_of(dtype));
  visit_type(dtype, ReduceOp::sum, [&](auto type) {
    using T = typename decltype(type)::Element;
    for (std::size_t i = 0; i < elements; ++i) {
      T element{};
      const int number = static_cast<int>(random() % 5);
      if (dtype == DType::boolean) {
        element = static_cast<T>(number % 2);
      } else if (dtype == DType::f16) {
        if constexpr (sizeof(T) == 2)
          element = static_cast<T>(f16_from_f32(static_cast<float>(random() % 4096) / 1024 - 2));
      } else if (dtype == DType::bf16) {
        if constexpr (sizeof(T) == 2)
          element = static_cast<T>(bf16_from_f32(static_cast<float>(random() % 4096) / 1024 - 2));
      } else if constexpr (std::is_integral_v<T>) {
        element = static_cast<T>(number - (std::is_signed_v<T> ? 2 : 0));
      } else {
        element = T(static_cast<float>(random() % 100'000) / 33'333 - 1);
      }
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return bytes;
}

// A tensor in private memory or in the heap.
class Tensor {
 public:
  Tensor(Core& core, const Bytes& content, DType dtype, std::vector<std::int64_t> shape, bool in_heap)
      : shared_(in_heap ? core.transport().shared() : nullptr), bytes_(content.size()) {
    if (shared_ != nullptr) {
      data_ = static_cast<std::byte*>(shared_->allocate(bytes_));
    } else {
      own_.resize(bytes_ + 1);
      data_ = own_.data();
    }
    if (bytes_ > 0) std::memcpy(data_, content.data(), bytes_);
    view = {.data = data_, .dtype = dtype, .shape = std::move(shape)};
  }
  ~Tensor() {
    if (shared_ != nullptr) shared_->deallocate(data_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  Bytes content() const { return {data_, data_ + bytes_}; }

  TensorView view;

 private:
  transport::SharedMemory* shared_;
  std::size_t bytes_;
  Bytes own_;
  std::byte* data_ = nullptr;
};

Bytes content_of(const Operation& operation) {
  const auto* data = static_cast<const std::byte*>(operation.result.data);
  return {data, data + operation.result.bytes()};
}

struct Case {
  DType dtype;
  std::int64_t rows;
  std::int64_t columns;
  bool in_heap;
  bool background;
};

std::string text_of(const Case& one, const char* what, const Core& core) {
  return std::string(what) + " of " + lockstep::name_of(one.dtype) + " [" + std::to_string(one.rows) + ", " +
         std::to_string(one.columns) + "]" + (one.in_heap ? " in the heap" : " in private memory") +
         (one.background ? " async" : "") + " on rank " + std::to_string(core.options().rank) + " of " +
         std::to_string(core.options().size);
}

Core::OperationPtr complete(Core& core, const Request& request, bool background) {
  auto operation = core.submit(request, background);
  core.wait(*operation);
  Core::check(*operation);
  return operation;
}

void check_reductions(Core& core, const Case& one) {
  const int size = core.options().size, rank = core.options().rank;
  const auto elements = static_cast<std::size_t>(one.rows * one.columns);
  const auto width = size_of(one.dtype);
  std::vector<Bytes> leaves;
  for (int peer = 0; peer < size; ++peer) leaves.push_back(values(one.dtype, peer, elements));
  for (ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    if (!collective::is_defined(one.dtype, op) || elements == 0) continue;
    const Bytes expected = reference(one.dtype, op, leaves, elements, static_cast<std::uint64_t>(size));
    const Bytes& mine = leaves[static_cast<std::size_t>(rank)];
    Tensor input(core, mine, one.dtype, {one.rows, one.columns}, one.in_heap);
    Tensor output(core, Bytes(mine.size()), one.dtype, {one.rows, one.columns}, one.in_heap);
    Request request{.kind = Kind::all_reduce, .input = input.view, .output = output.view, .op = op};
    complete(core, request, one.background);
    EXPECT_EQ(output.content(), expected) << text_of(one, "all-reduce", core) << " " << lockstep::name_of(op);
    EXPECT_EQ(input.content(), mine) << text_of(one, "all-reduce input", core);

    const int root = (static_cast<int>(one.dtype) + static_cast<int>(op)) % size;
    Tensor reduced(core, Bytes(mine.size()), one.dtype, {one.rows, one.columns}, one.in_heap);
    request = {.kind = Kind::reduce, .input = input.view, .output = reduced.view, .op = op, .root = root};
    complete(core, request, one.background);
    EXPECT_EQ(reduced.content(), rank == root ? expected : Bytes(mine.size()))
        << text_of(one, "reduce", core) << " " << lockstep::name_of(op);

    request = {.kind = Kind::reduce_scatter, .input = input.view, .output = {}, .op = op};
    const auto scattered = complete(core, request, one.background);
    const auto part = collective::equal_part(one.rows, static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    const auto row = static_cast<std::size_t>(one.columns) * width;
    const auto* first = expected.data() + static_cast<std::size_t>(part.first) * row;
    EXPECT_EQ(content_of(*scattered), Bytes(first, first + static_cast<std::size_t>(part.count) * row))
        << text_of(one, "reduce-scatter", core);
    EXPECT_EQ(scattered->result.shape, (std::vector<std::int64_t>{part.count, one.columns}));

    Tensor in_place(core, mine, one.dtype, {one.rows, one.columns}, one.in_heap);
    request = {.kind = Kind::all_reduce, .input = in_place.view, .output = in_place.view, .op = op};
    complete(core, request, one.background);
    EXPECT_EQ(in_place.content(), expected)
        << text_of(one, "all-reduce in place", core) << " " << lockstep::name_of(op);
  }
}

void append(Bytes& to, const Bytes& from) { to.insert(to.end(), from.begin(), from.end()); }

void check_movements(Core& core, const Case& one) {
  const int size = core.options().size, rank = core.options().rank;
  const auto row = static_cast<std::size_t>(one.columns);
  const auto row_bytes = row * size_of(one.dtype);
  // Rank r gives rows + r rows, rank 1 none at all.
  auto rows_of = [&](int peer) { return peer == 1 ? 0 : one.rows + peer; };
  auto given_by = [&](int peer) { return values(one.dtype, peer, static_cast<std::size_t>(rows_of(peer)) * row, 1); };
  Bytes all;
  std::int64_t all_rows = 0;
  for (int peer = 0; peer < size; ++peer) {
    append(all, given_by(peer));
    all_rows += rows_of(peer);
  }
  Tensor mine(core, given_by(rank), one.dtype, {rows_of(rank), one.columns}, one.in_heap);
  const int root = static_cast<int>(one.dtype) % size;

  auto gathered = complete(core, {.kind = Kind::all_gather, .input = mine.view, .output = {}}, one.background);
  EXPECT_EQ(content_of(*gathered), all) << text_of(one, "all-gather", core);
  EXPECT_EQ(gathered->result.shape, (std::vector<std::int64_t>{all_rows, one.columns}));
  Tensor given(core, Bytes(all.size()), one.dtype, {all_rows, one.columns}, one.in_heap);
  complete(core, {.kind = Kind::all_gather, .input = mine.view, .output = given.view}, one.background);
  EXPECT_EQ(given.content(), all) << text_of(one, "all-gather into an output", core);

  gathered = complete(core, {.kind = Kind::gather, .input = mine.view, .output = {}, .root = root}, one.background);
  EXPECT_EQ(content_of(*gathered), rank == root ? all : Bytes()) << text_of(one, "gather", core);

  // The root cuts all rows among the ranks.
  Tensor whole(core, all, one.dtype, {all_rows, one.columns}, one.in_heap);
  TensorView scattered_input = whole.view;
  if (rank != root) scattered_input = {.data = nullptr, .dtype = one.dtype, .shape = {}};
  const auto scattered =
      complete(core, {.kind = Kind::scatter, .input = scattered_input, .output = {}, .root = root}, one.background);
  const auto part = collective::equal_part(all_rows, static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
  const auto* first = all.data() + static_cast<std::size_t>(part.first) * row_bytes;
  EXPECT_EQ(content_of(*scattered), Bytes(first, first + static_cast<std::size_t>(part.count) * row_bytes))
      << text_of(one, "scatter", core);

  // Rank a sends (a + b) % 3 rows to rank b.
  auto rows_between = [](int from, int to) { return static_cast<std::int64_t>((from + to) % 3); };
  auto rows_from = [&](int from) {
    std::int64_t rows = 0;
    for (int to = 0; to < size; ++to) rows += rows_between(from, to);
    return rows;
  };
  auto sent_by = [&](int from) { return values(one.dtype, from, static_cast<std::size_t>(rows_from(from)) * row, 2); };
  Request exchange{.kind = Kind::all_to_all, .input = {}, .output = {}};
  Tensor outgoing(core, sent_by(rank), one.dtype, {rows_from(rank), one.columns}, one.in_heap);
  exchange.input = outgoing.view;
  std::vector<std::int64_t> expected_splits;
  Bytes expected;
  for (int peer = 0; peer < size; ++peer) {
    exchange.splits.push_back(rows_between(rank, peer));
    expected_splits.push_back(rows_between(peer, rank));
    std::int64_t before = 0;
    for (int to = 0; to < rank; ++to) before += rows_between(peer, to);
    const Bytes theirs = sent_by(peer);
    const auto start = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(before) * row_bytes);
    expected.insert(expected.end(), theirs.begin() + start,
                    theirs.begin() + start +
                        static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows_between(peer, rank)) * row_bytes));
  }
  const auto received = complete(core, exchange, one.background);
  EXPECT_EQ(content_of(*received), expected) << text_of(one, "all-to-all", core);
  EXPECT_EQ(received->received, expected_splits) << text_of(one, "all-to-all", core);

  Tensor copy(core, given_by(root), one.dtype, {rows_of(root), one.columns}, one.in_heap);
  if (rank != root) std::memset(copy.view.data, 0x5A, copy.content().size());
  complete(core, {.kind = Kind::broadcast, .input = copy.view, .output = copy.view, .root = root}, one.background);
  EXPECT_EQ(copy.content(), given_by(root)) << text_of(one, "broadcast", core);
}

// A ring: everybody sends to the next and receives from the one before, under two tags, in opposite order.
void check_pairs(Core& core, const Case& one) {
  const int size = core.options().size, rank = core.options().rank;
  if (size == 1) return;
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  const auto elements = static_cast<std::size_t>(one.rows * one.columns);
  std::vector<Core::OperationPtr> operations;
  std::vector<std::unique_ptr<Tensor>> tensors;
  for (int tag : {0, 1}) {
    tensors.push_back(
        std::make_unique<Tensor>(core, values(one.dtype, rank, elements, 10U + static_cast<unsigned>(tag)), one.dtype,
                                 std::vector<std::int64_t>{one.rows, one.columns}, one.in_heap));
    operations.push_back(core.submit({.kind = Kind::send,
                                      .input = tensors.back()->view,
                                      .output = {},
                                      .root = rank,
                                      .partner = next,
                                      .receiver = next,
                                      .tag = tag},
                                     true));
  }
  for (int tag : {1, 0}) {
    tensors.push_back(std::make_unique<Tensor>(core, Bytes(elements * size_of(one.dtype)), one.dtype,
                                               std::vector<std::int64_t>{one.rows, one.columns}, one.in_heap));
    operations.push_back(core.submit({.kind = Kind::receive,
                                      .input = tensors.back()->view,
                                      .output = tensors.back()->view,
                                      .root = before,
                                      .partner = before,
                                      .receiver = rank,
                                      .tag = tag},
                                     true));
  }
  for (const auto& operation : operations) core.wait(*operation);
  for (const auto& operation : operations) Core::check(*operation);
  EXPECT_EQ(tensors[2]->content(), values(one.dtype, before, elements, 11)) << text_of(one, "receive", core);
  EXPECT_EQ(tensors[3]->content(), values(one.dtype, before, elements, 10)) << text_of(one, "receive", core);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {{1, 1}, {5, 3}, {0, 4}, {67, 129}};
  unsigned turn = 0;
  for (int type = 0; type < kDTypeCount; ++type) {
    for (auto [rows, columns] : shapes) {
      for (bool in_heap : {false, true}) {
        for (bool background : {false, true}) {
          // The covering subset takes one of the four ways per type and shape, another for each neighbour.
          const bool chosen = (turn + turn / 4) % 4 == 0;
          ++turn;
          if (chosen || run_everything()) all.push_back({static_cast<DType>(type), rows, columns, in_heap, background});
        }
      }
    }
  }
  return all;
}

class Matrix : public testing::TestWithParam<std::tuple<Over, int>> {};

TEST_P(Matrix, EveryOperationMatchesItsDefinition) {
  const auto [over, size] = GetParam();
  run_world(over, size, [&](Core& core) {
    for (const Case& one : cases()) {
      check_reductions(core, one);
      check_movements(core, one);
      check_pairs(core, one);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Matrix,
                         testing::Combine(testing::Values(Over::memory, Over::shm), testing::Values(1, 2, 3, 4, 5, 8)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace lockstep::engine
