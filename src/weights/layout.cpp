#include "weights/layout.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.hpp"
#include "heap/served_region.hpp"
#include "lockstep/error.hpp"
#include "weights/store.hpp"

namespace lockstep::weights {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kLine = 128;  // two cache lines, which some machines fetch together
// Of state per piece: with Adam the piece, its undo copy and its gradients are some 300 KB.
constexpr std::size_t kPieceStateBytes = 32 * 1024;
constexpr std::size_t kGenerations = 2;  // a world that ends, and the one that follows it

std::size_t rounded(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool can_be_updated(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

}  // namespace

Layout::Layout(std::span<const SharedTensor> tensors, std::span<const OptimizerOptions> optimizers, std::size_t seats)
    : seats_(seats), groups_(optimizers.size()) {
  for (const OptimizerOptions& optimizer : optimizers) check_optimizer(optimizer);
  board_stride_ = rounded(sizeof(BoardRow) + tensors.size() * sizeof(std::uint64_t), kLine);
  boards_ = kPageBytes;
  journals_ = boards_ + rounded(kGenerations * seats_ * board_stride_, kPageBytes);
  undos_ = journals_ + rounded(kGenerations * seats_ * kLine, kPageBytes);
  place_tensors(tensors, optimizers);
  cut();
  undo_bytes_ = rounded(undo_bytes_, kPageBytes);
  // Undo copies are as large as the largest piece, which is known only now: all that follows moves up.
  values_ = undos_ + seats_ * undo_bytes_;
  for (TensorPlace& tensor : tensors_) {
    tensor.weights += values_;
    for (std::size_t i = 0; i < tensor.states; ++i) tensor.state[i] += values_;
  }
  gradients_ = values_ + values_bytes_;
  // As for arenas (heap/segment.cpp): what ranks read side by side must not be a multiple of 256 MB apart.
  gradient_stride_ += gradient_stride_ % (std::size_t{1} << 28) == 0 ? kPageBytes : 0;
  bytes_ = gradients_ + seats_ * gradient_stride_;
}

void Layout::place_tensors(std::span<const SharedTensor> tensors, std::span<const OptimizerOptions> optimizers) {
  Hasher hasher;
  hasher.add(static_cast<std::uint64_t>(seats_));
  std::size_t next = 0, next_gradient = 0;
  auto take = [](std::size_t& from, std::size_t bytes) {
    const std::size_t taken = from;
    from += rounded(bytes, kLine);
    return taken;
  };
  for (const SharedTensor& tensor : tensors) {
    if (!can_be_updated(tensor.dtype)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("cannot share '{}': it is of type {}, and only real floats can be updated.", tensor.name,
                              lockstep::name_of(tensor.dtype)));
    }
    if (tensor.group >= optimizers.size()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("cannot share '{}': there is no optimizer number {}.", tensor.name, tensor.group));
    }
    TensorPlace place{.name = tensor.name, .dtype = tensor.dtype, .elements = tensor.elements, .group = tensor.group};
    place.states = optimizer_state_count(optimizers[tensor.group]);
    place.weights = take(next, place.elements * place.width());
    for (std::size_t i = 0; i < place.states; ++i) place.state[i] = take(next, place.elements * place.state_width());
    place.gradient = take(next_gradient, place.elements * place.width());
    hasher.add(tensor.name);
    hasher.add(static_cast<std::int32_t>(tensor.dtype));
    for (std::uint64_t number : {tensor.elements, tensor.group, place.states}) hasher.add(number);
    hasher.add(static_cast<std::int32_t>(optimizers[tensor.group].kind));
    tensors_.push_back(std::move(place));
  }
  values_bytes_ = rounded(std::max<std::size_t>(next, 1), kPageBytes);
  born_ = rounded(std::max<std::size_t>(next_gradient, 1), kPageBytes);
  born_bytes_ = rounded(heap::room_for_all(gradient_sizes()), kPageBytes);
  gradient_stride_ = born_ + born_bytes_;
  hash_ = hasher.value();
}

std::vector<std::size_t> Layout::gradient_sizes() const {
  std::vector<std::size_t> sizes;
  for (const TensorPlace& tensor : tensors_) sizes.push_back(tensor.elements * tensor.width());
  return sizes;
}

void Layout::cut() {
  std::size_t start = 0;
  for (std::size_t index = 0; index < tensors_.size(); ++index) {
    const TensorPlace& tensor = tensors_[index];
    const std::size_t most = kPieceStateBytes / tensor.state_width();
    for (std::size_t offset = 0; offset < tensor.elements; offset += most) {
      const std::size_t count = std::min(most, tensor.elements - offset);
      pieces_.push_back({index, offset, count});
      starts_.push_back(start);
      start += count * (tensor.width() + tensor.states * tensor.state_width());
      piece_bytes_ = std::max(piece_bytes_, count * tensor.width());
      undo_bytes_ = std::max(undo_bytes_, count * (tensor.width() + tensor.states * tensor.state_width()));
    }
  }
  starts_.push_back(start);
}

std::size_t Layout::board(std::size_t generation, std::size_t place) const {
  return boards_ + (generation % kGenerations * seats_ + place) * board_stride_;
}

std::size_t Layout::journal(std::size_t generation, std::size_t slice) const {
  return journals_ + (generation % kGenerations * seats_ + slice) * kLine;
}

std::size_t Layout::undo(std::size_t slice) const { return undos_ + slice * undo_bytes_; }

PieceRange Layout::slice(std::size_t index, std::size_t slices) const {
  auto border = [&](std::size_t i) {
    const std::size_t at = starts_.back() / slices * i + starts_.back() % slices * i / slices;
    return static_cast<std::size_t>(std::lower_bound(starts_.begin(), starts_.end() - 1, at) - starts_.begin());
  };
  const std::size_t first = border(index), end = index + 1 == slices ? pieces_.size() : border(index + 1);
  return {first, end - first};
}

}  // namespace lockstep::weights
