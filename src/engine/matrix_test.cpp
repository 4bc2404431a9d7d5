// Every operation x element type x reduction x way of calling, against a plain reference, at 1 to 8 ranks on both
// transports. By default a covering subset; LOCKSTEP_TEST_FULL=1 runs all of it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "collective/routes.hpp"
#include "engine/matrix_reference_test.hpp"
#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using matrix::Bytes;
using matrix::Case;
using matrix::Known;

bool run_everything() { return std::getenv("LOCKSTEP_TEST_FULL") != nullptr; }

// A tensor in private memory or in the heap.
class MatrixTensor {
 public:
  MatrixTensor(Core& core, const Bytes& content, DType dtype, std::vector<std::int64_t> shape, bool in_heap)
      : shared_(in_heap ? core.transport().shared() : nullptr), bytes_(content.size()) {
    if (shared_ != nullptr) {
      data_ = static_cast<unsigned char*>(shared_->allocate(bytes_));
    } else {
      own_.resize(bytes_ + 1);
      data_ = own_.data();
    }
    if (bytes_ > 0) std::memcpy(data_, content.data(), bytes_);
    view = {.data = data_, .dtype = dtype, .shape = std::move(shape)};
  }
  ~MatrixTensor() {
    if (shared_ != nullptr) shared_->deallocate(data_);
  }
  MatrixTensor(const MatrixTensor&) = delete;
  MatrixTensor& operator=(const MatrixTensor&) = delete;

  Bytes content() const { return {data_, data_ + bytes_}; }

  TensorView view;

 private:
  transport::SharedMemory* shared_;
  std::size_t bytes_;
  Bytes own_;
  unsigned char* data_ = nullptr;
};

Bytes content_of(const Operation& operation) {
  const auto* data = static_cast<const unsigned char*>(operation.result.data);
  return {data, data + operation.result.bytes()};
}

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

Bytes rows_of(const Bytes& all, collective::Rows part, std::size_t row_bytes) {
  const auto* first = all.data() + static_cast<std::size_t>(part.first) * row_bytes;
  return {first, first + static_cast<std::size_t>(part.count) * row_bytes};
}

void check_reductions(Core& core, const Known& known) {
  const Case& one = known.one;
  const int size = core.options().size, rank = core.options().rank;
  const Bytes& mine = known.leaves[static_cast<std::size_t>(rank)];
  for (const auto& [op, expected] : known.reduced) {
    MatrixTensor input(core, mine, one.dtype, {one.rows, one.columns}, one.in_heap);
    MatrixTensor output(core, Bytes(mine.size()), one.dtype, {one.rows, one.columns}, one.in_heap);
    Request request{.kind = Kind::all_reduce, .input = input.view, .output = output.view, .op = op};
    complete(core, request, one.background);
    EXPECT_EQ(output.content(), expected) << text_of(one, "all-reduce", core) << " " << lockstep::name_of(op);
    EXPECT_EQ(input.content(), mine) << text_of(one, "all-reduce input", core);

    const int root = (static_cast<int>(one.dtype) + static_cast<int>(op)) % size;
    MatrixTensor reduced(core, Bytes(mine.size()), one.dtype, {one.rows, one.columns}, one.in_heap);
    request = {.kind = Kind::reduce, .input = input.view, .output = reduced.view, .op = op, .root = root};
    complete(core, request, one.background);
    EXPECT_EQ(reduced.content(), rank == root ? expected : Bytes(mine.size()))
        << text_of(one, "reduce", core) << " " << lockstep::name_of(op);

    request = {.kind = Kind::reduce_scatter, .input = input.view, .output = {}, .op = op};
    const auto scattered = complete(core, request, one.background);
    const auto part = collective::equal_part(one.rows, static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    EXPECT_EQ(content_of(*scattered), rows_of(expected, part, known.row_bytes()))
        << text_of(one, "reduce-scatter", core);
    EXPECT_EQ(scattered->result.shape, (std::vector<std::int64_t>{part.count, one.columns}));

    MatrixTensor in_place(core, mine, one.dtype, {one.rows, one.columns}, one.in_heap);
    request = {.kind = Kind::all_reduce, .input = in_place.view, .output = in_place.view, .op = op};
    complete(core, request, one.background);
    EXPECT_EQ(in_place.content(), expected)
        << text_of(one, "all-reduce in place", core) << " " << lockstep::name_of(op);
  }
}

void check_gathers(Core& core, const Known& known) {
  const Case& one = known.one;
  const int size = core.options().size, rank = core.options().rank;
  const int root = static_cast<int>(one.dtype) % size;
  const Bytes& all = known.all_given;
  const auto own_rows = static_cast<std::int64_t>(known.given_rows(rank));
  MatrixTensor mine(core, known.given[static_cast<std::size_t>(rank)], one.dtype, {own_rows, one.columns}, one.in_heap);

  auto gathered = complete(core, {.kind = Kind::all_gather, .input = mine.view, .output = {}}, one.background);
  EXPECT_EQ(content_of(*gathered), all) << text_of(one, "all-gather", core);
  EXPECT_EQ(gathered->result.shape, (std::vector<std::int64_t>{known.all_rows, one.columns}));
  MatrixTensor given(core, Bytes(all.size()), one.dtype, {known.all_rows, one.columns}, one.in_heap);
  complete(core, {.kind = Kind::all_gather, .input = mine.view, .output = given.view}, one.background);
  EXPECT_EQ(given.content(), all) << text_of(one, "all-gather into an output", core);

  gathered = complete(core, {.kind = Kind::gather, .input = mine.view, .output = {}, .root = root}, one.background);
  EXPECT_EQ(content_of(*gathered), rank == root ? all : Bytes()) << text_of(one, "gather", core);
}

void check_scatter_and_broadcast(Core& core, const Known& known) {
  const Case& one = known.one;
  const int size = core.options().size, rank = core.options().rank;
  const int root = static_cast<int>(one.dtype) % size;

  // The root cuts all rows among the ranks.
  MatrixTensor whole(core, known.all_given, one.dtype, {known.all_rows, one.columns}, one.in_heap);
  TensorView input = whole.view;
  if (rank != root) input = {.data = nullptr, .dtype = one.dtype, .shape = {}};
  const auto scattered =
      complete(core, {.kind = Kind::scatter, .input = input, .output = {}, .root = root}, one.background);
  const auto part =
      collective::equal_part(known.all_rows, static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
  EXPECT_EQ(content_of(*scattered), rows_of(known.all_given, part, known.row_bytes())) << text_of(one, "scatter", core);

  const Bytes& expected = known.given[static_cast<std::size_t>(root)];
  const auto rows = static_cast<std::int64_t>(known.given_rows(root));
  MatrixTensor copy(core, rank == root ? expected : Bytes(expected.size(), 0x5A), one.dtype, {rows, one.columns},
                    one.in_heap);
  complete(core, {.kind = Kind::broadcast, .input = copy.view, .output = copy.view, .root = root}, one.background);
  EXPECT_EQ(copy.content(), expected) << text_of(one, "broadcast", core);
}

void check_exchange(Core& core, const Known& known) {
  const Case& one = known.one;
  const int size = core.options().size, rank = core.options().rank;
  const auto sent = static_cast<std::int64_t>(Known::sent_rows(rank, size));
  MatrixTensor outgoing(core, known.sent[static_cast<std::size_t>(rank)], one.dtype, {sent, one.columns}, one.in_heap);
  Request exchange{.kind = Kind::all_to_all, .input = outgoing.view, .output = {}};
  std::vector<std::int64_t> expected_splits;
  Bytes expected;
  for (int peer = 0; peer < size; ++peer) {
    exchange.splits.push_back(static_cast<std::int64_t>(Known::rows_between(rank, peer)));
    const collective::Rows part{static_cast<std::int64_t>(Known::sent_rows(peer, rank)),
                                static_cast<std::int64_t>(Known::rows_between(peer, rank))};
    expected_splits.push_back(part.count);
    const Bytes theirs = rows_of(known.sent[static_cast<std::size_t>(peer)], part, known.row_bytes());
    expected.insert(expected.end(), theirs.begin(), theirs.end());
  }
  const auto received = complete(core, exchange, one.background);
  EXPECT_EQ(content_of(*received), expected) << text_of(one, "all-to-all", core);
  EXPECT_EQ(received->received, expected_splits) << text_of(one, "all-to-all", core);
}

// A ring: everybody sends to the next and receives from the one before, under two tags, in opposite order.
void check_pairs(Core& core, const Known& known) {
  const Case& one = known.one;
  const int size = core.options().size, rank = core.options().rank;
  if (size == 1) return;
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  std::vector<Core::OperationPtr> operations;
  std::vector<std::unique_ptr<MatrixTensor>> tensors;
  for (int tag : {0, 1}) {
    tensors.push_back(std::make_unique<MatrixTensor>(core, known.passed[tag][static_cast<std::size_t>(rank)], one.dtype,
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
    tensors.push_back(std::make_unique<MatrixTensor>(core, Bytes(one.elements() * size_of(one.dtype)), one.dtype,
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
  EXPECT_EQ(tensors[2]->content(), known.passed[1][static_cast<std::size_t>(before)]) << text_of(one, "receive", core);
  EXPECT_EQ(tensors[3]->content(), known.passed[0][static_cast<std::size_t>(before)]) << text_of(one, "receive", core);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {{1, 1}, {5, 3}, {0, 4}, {67, 129}};
  unsigned turn = 0;
  for (int type = 0; type < kDTypeCount; ++type) {
    for (auto [rows, columns] : shapes) {
      for (bool in_heap : {false, true}) {
        for (bool background : {false, true}) {
          // The covering subset takes one of the four ways per type and shape, another for each neighbour. Sanitizers
          // look at how memory is used, not at numbers: for them one shape per type, another for each neighbour.
          const bool chosen =
              (turn + turn / 4 + type) % 4 == 0 && (!under_sanitizer() || (type / 4 + turn / 4) % 4 == 0);
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
  std::vector<Known> all;
  for (const Case& one : cases()) all.emplace_back(one, size);
  run_world(over, size, [&](Core& core) {
    for (const Known& known : all) {
      check_reductions(core, known);
      check_gathers(core, known);
      check_scatter_and_broadcast(core, known);
      check_exchange(core, known);
      check_pairs(core, known);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Matrix,
                         testing::Combine(testing::Values(Over::memory, Over::shm), testing::Values(1, 2, 3, 4, 5, 8)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });
INSTANTIATE_TEST_SUITE_P(OverTcp, Matrix,
                         testing::Combine(testing::Values(Over::tcp), testing::ValuesIn(tcp_sizes({3}))),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace lockstep::engine
