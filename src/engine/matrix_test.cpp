// Every operation x element type x reduction x place of the result x way of calling (blocking, asynchronous, grouped),
// against a plain reference, at 1 to 8 ranks on both transports. By default a covering subset; LOCKSTEP_TEST_FULL=1
// runs all of it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "collective/routes.hpp"
#include "engine/matrix_reference_test.hpp"
#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using matrix::Bytes;
using matrix::Case;
using matrix::Known;
using matrix::Submission;

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

using MatrixTensorPtr = std::shared_ptr<MatrixTensor>;

// Where the result of an operation goes.
enum class ResultPlace {
  in_place,  // where the input is
  given,     // into an output of the caller's
  made,      // into memory that the engine makes
};

// What operations there are, and which places each has.
struct Row {
  Kind kind;
  std::vector<ResultPlace> places;
};
const std::vector<Row> kOperations = {
    {Kind::all_reduce, {ResultPlace::in_place, ResultPlace::given}},
    {Kind::reduce, {ResultPlace::in_place, ResultPlace::given}},
    {Kind::reduce_scatter, {ResultPlace::given, ResultPlace::made}},
    {Kind::broadcast, {ResultPlace::in_place}},
    {Kind::all_gather, {ResultPlace::given, ResultPlace::made}},
    {Kind::gather, {ResultPlace::given, ResultPlace::made}},
    {Kind::scatter, {ResultPlace::given, ResultPlace::made}},
    {Kind::all_to_all, {ResultPlace::given, ResultPlace::made}},
    {Kind::barrier, {ResultPlace::made}},
};

const char* text_of(ResultPlace place) {
  if (place == ResultPlace::made) return "";
  return place == ResultPlace::in_place ? " in place" : " into an output";
}

const char* text_of(Submission submission) {
  if (submission == Submission::blocking) return " blocking";
  return submission == Submission::async ? " async" : " grouped";
}

Bytes content_of(const Operation& operation) {
  const auto* data = static_cast<const unsigned char*>(operation.result.data);
  return data != nullptr ? Bytes(data, data + operation.result.bytes()) : Bytes();
}

Bytes rows_of(const Bytes& all, collective::Rows part, std::size_t row_bytes) {
  const auto* first = all.data() + static_cast<std::size_t>(part.first) * row_bytes;
  return {first, first + static_cast<std::size_t>(part.count) * row_bytes};
}

// One operation, and what is looked at when it has ended.
struct Trial {
  Request request;
  std::function<void(const Operation&)> check;
};

// All operations of a case on one rank, as the table says.
class CaseOnRank {
 public:
  CaseOnRank(Core& core, const Known& known)
      : core_(core), known_(known), one_(known.one), size_(core.options().size), rank_(core.options().rank) {
    for (const Row& row : kOperations) {
      for (ResultPlace place : row.places) {
        if (is_reduction(row.kind)) {
          for (const auto& [op, expected] : known.reduced) add_reduction(row.kind, place, op, expected);
        } else {
          add_movement(row.kind, place);
        }
      }
    }
    add_pairs();
  }

  // Blocking, one ends before the next begins; otherwise all of them are under way at once, as one unit or each by
  // itself.
  void run() {
    std::vector<Core::OperationPtr> operations;
    if (one_.submission == Submission::grouped) {
      std::vector<Request> requests;
      for (const Trial& trial : trials_) requests.push_back(trial.request);
      operations = core_.submit_together(std::move(requests));
    }
    for (std::size_t i = 0; i < trials_.size(); ++i) {
      // Nobody can wait for a message that the same thread is to send later.
      const bool pair = trials_[i].request.kind == Kind::send || trials_[i].request.kind == Kind::receive;
      const bool background = one_.submission != Submission::blocking || pair;
      if (one_.submission != Submission::grouped) operations.push_back(core_.submit(trials_[i].request, background));
      if (!background) core_.wait(*operations.back());
    }
    for (const auto& operation : operations) core_.wait(*operation);
    for (const auto& operation : operations) Core::check(*operation);
    for (std::size_t i = 0; i < trials_.size(); ++i) trials_[i].check(*operations[i]);
  }

 private:
  std::size_t index() const { return static_cast<std::size_t>(rank_); }
  collective::Rows own_part(std::int64_t rows) const {
    return collective::equal_part(rows, index(), static_cast<std::size_t>(size_));
  }

  MatrixTensorPtr tensor(const Bytes& content, std::int64_t rows) {
    return std::make_shared<MatrixTensor>(core_, content, one_.dtype, std::vector<std::int64_t>{rows, one_.columns},
                                          one_.in_heap);
  }

  // What must come of an operation on this rank: these rows, or, where it gets none, nothing.
  struct Expected {
    Bytes rows;
    bool gets = true;
    std::vector<std::int64_t> received = {};
  };

  void add(Request request, ResultPlace place, const MatrixTensorPtr& input, const Expected& expected) {
    const auto rows =
        static_cast<std::int64_t>(known_.row_bytes() > 0 ? expected.rows.size() / known_.row_bytes() : std::size_t{0});
    if (input && request.input.data == nullptr && request.kind != Kind::scatter) request.input = input->view;
    const MatrixTensorPtr output = place == ResultPlace::given ? tensor(Bytes(expected.rows.size()), rows) : nullptr;
    if (place == ResultPlace::in_place) request.output = input->view;
    if (output && (expected.gets || request.kind == Kind::reduce)) request.output = output->view;
    const std::string text = text_of(request, place);
    const Bytes before = input ? input->content() : Bytes();
    trials_.push_back({request, [=, columns = one_.columns](const Operation& ended) {
                         const Bytes untouched = place == ResultPlace::in_place ? before : Bytes(expected.rows.size());
                         const Bytes& wanted = expected.gets || place == ResultPlace::made ? expected.rows : untouched;
                         const auto& target = place == ResultPlace::in_place ? input : output;
                         EXPECT_EQ(target ? target->content() : content_of(ended), wanted) << text;
                         if (input && place != ResultPlace::in_place) {
                           EXPECT_EQ(input->content(), before) << text;
                         }
                         if (expected.gets && request.kind != Kind::barrier) {
                           EXPECT_EQ(ended.result.shape, (std::vector<std::int64_t>{rows, columns})) << text;
                         }
                         EXPECT_EQ(ended.received, expected.received) << text;
                       }});
  }

  void add_reduction(Kind kind, ResultPlace place, ReduceOp op, const Bytes& all) {
    const auto input = tensor(known_.leaves[index()], one_.rows);
    Request request{.kind = kind, .input = input->view, .output = {}, .op = op};
    if (kind == Kind::reduce) request.root = (static_cast<int>(one_.dtype) + static_cast<int>(op)) % size_;
    const Bytes rows = kind == Kind::reduce_scatter ? rows_of(all, own_part(one_.rows), known_.row_bytes()) : all;
    add(request, place, input, {.rows = rows, .gets = kind != Kind::reduce || request.root == rank_});
  }

  void add_movement(Kind kind, ResultPlace place) {
    const int root = static_cast<int>(one_.dtype) % size_;
    Request request{.kind = kind, .input = {}, .output = {}};
    switch (kind) {
      case Kind::all_gather:
      case Kind::gather: {
        const bool gets = kind == Kind::all_gather || rank_ == root;
        if (kind == Kind::gather) request.root = root;
        return add(request, place, tensor(known_.given[index()], static_cast<std::int64_t>(known_.given_rows(rank_))),
                   {.rows = gets ? known_.all_given : Bytes(), .gets = gets});
      }
      case Kind::scatter: {  // the root cuts all rows among the ranks; elsewhere the input has only a type
        const auto whole = tensor(known_.all_given, known_.all_rows);
        request.root = root;
        request.input = {.data = nullptr, .dtype = one_.dtype, .shape = {}};
        if (rank_ == root) request.input = whole->view;
        return add(request, place, whole,
                   {.rows = rows_of(known_.all_given, own_part(known_.all_rows), known_.row_bytes())});
      }
      case Kind::broadcast: {
        const Bytes& sent = known_.given[static_cast<std::size_t>(root)];
        request.root = root;
        return add(
            request, place,
            tensor(rank_ == root ? sent : Bytes(sent.size(), 0x5A), static_cast<std::int64_t>(known_.given_rows(root))),
            {.rows = sent});
      }
      case Kind::all_to_all:
        return add_exchange(request, place);
      default:
        return add(request, place, nullptr, {.rows = {}});
    }
  }

  void add_exchange(Request request, ResultPlace place) {
    Expected expected{.rows = {}};
    for (int peer = 0; peer < size_; ++peer) {
      request.splits.push_back(static_cast<std::int64_t>(Known::rows_between(rank_, peer)));
      const collective::Rows part{static_cast<std::int64_t>(Known::sent_rows(peer, rank_)),
                                  static_cast<std::int64_t>(Known::rows_between(peer, rank_))};
      expected.received.push_back(part.count);
      const Bytes theirs = rows_of(known_.sent[static_cast<std::size_t>(peer)], part, known_.row_bytes());
      expected.rows.insert(expected.rows.end(), theirs.begin(), theirs.end());
    }
    add(request, place, tensor(known_.sent[index()], static_cast<std::int64_t>(Known::sent_rows(rank_, size_))),
        expected);
  }

  // A ring: everybody sends to the next and receives from the one before, under two tags, in opposite order.
  void add_pairs() {
    if (size_ == 1) return;
    const int next = (rank_ + 1) % size_, before = (rank_ + size_ - 1) % size_;
    for (int tag : {0, 1}) {
      const auto sent = tensor(known_.passed[tag][index()], one_.rows);
      trials_.push_back(
          {{.kind = Kind::send, .input = sent->view, .output = {}, .partner = next, .tag = tag},
           [sent, expected = known_.passed[tag][index()]](auto&) { EXPECT_EQ(sent->content(), expected); }});
    }
    for (int tag : {1, 0}) {
      const Bytes& expected = known_.passed[tag][static_cast<std::size_t>(before)];
      const auto got = tensor(Bytes(expected.size()), one_.rows);
      Request request{.kind = Kind::receive, .input = got->view, .output = got->view, .partner = before, .tag = tag};
      trials_.push_back({request, [got, &expected, text = text_of(request, ResultPlace::in_place)](auto&) {
                           EXPECT_EQ(got->content(), expected) << text;
                         }});
    }
  }

  std::string text_of(const Request& request, ResultPlace place) const {
    std::string text = collective::name_of(request.kind);
    if (is_reduction(request.kind)) text += std::string(" (") + lockstep::name_of(request.op) + ")";
    return text + engine::text_of(place) + " of " + lockstep::name_of(one_.dtype) + " [" + std::to_string(one_.rows) +
           ", " + std::to_string(one_.columns) + "]" + (one_.in_heap ? " in the heap" : " in private memory") +
           engine::text_of(one_.submission) + " on rank " + std::to_string(rank_) + " of " + std::to_string(size_);
  }

  Core& core_;
  const Known& known_;
  const Case& one_;
  const int size_;
  const int rank_;
  std::vector<Trial> trials_;
};

// The ways of calling, such that of any four in a row each way is one, and both kinds of memory are among them.
struct Manner {
  bool in_heap;
  Submission submission;
};
constexpr Manner kManners[] = {{false, Submission::blocking}, {true, Submission::async},  {false, Submission::grouped},
                               {true, Submission::blocking},  {false, Submission::async}, {true, Submission::grouped}};

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {{1, 1}, {5, 3}, {0, 4}, {67, 129}};
  for (int type = 0; type < kDTypeCount; ++type) {
    for (std::size_t shape = 0; shape < shapes.size(); ++shape) {
      for (std::size_t manner = 0; manner < std::size(kManners); ++manner) {
        // The covering subset takes one manner per type and shape, the next for each neighbour. Sanitizers look at how
        // memory is used, not at numbers: for them one shape per type, another for each neighbour.
        const auto turn = static_cast<std::size_t>(type) + shape;
        const bool chosen = turn % std::size(kManners) == manner &&
                            (!under_sanitizer() || (static_cast<std::size_t>(type) / 4 + shape) % 4 == 0);
        if (!chosen && !run_everything()) continue;
        all.push_back({static_cast<DType>(type), shapes[shape].first, shapes[shape].second, kManners[manner].in_heap,
                       kManners[manner].submission});
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
      CaseOnRank(core, known).run();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Matrix,
                         testing::Combine(testing::Values(Over::memory, Over::shm), testing::Values(1, 2, 3, 4, 5, 8)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });
INSTANTIATE_TEST_SUITE_P(OverTcp, Matrix, testing::ValuesIn(tcp_worlds({3}, {4})), [](const auto& test) {
  return std::string(name_of(std::get<0>(test.param))) + std::to_string(std::get<1>(test.param));
});

}  // namespace
}  // namespace lockstep::engine
