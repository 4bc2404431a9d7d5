#include "weights/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

// As for arenas (heap/segment.cpp): what is read or written side by side must not be a multiple of 256 MB apart.
std::size_t apart(std::size_t stride) { return stride % (std::size_t{1} << 28) == 0 ? stride + kPageBytes : stride; }

bool can_be_updated(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

}  // namespace

std::vector<std::size_t> copies_by_node(std::span<const std::int64_t> nodes) {
  std::vector<std::size_t> copies(nodes.size(), 0);
  if (std::any_of(nodes.begin(), nodes.end(), [](std::int64_t node) { return node < 0; })) return copies;
  std::vector<std::int64_t> known;
  for (std::size_t seat = 0; seat < nodes.size(); ++seat) {
    const auto found = std::find(known.begin(), known.end(), nodes[seat]);
    copies[seat] = static_cast<std::size_t>(found - known.begin());
    if (found == known.end()) known.push_back(nodes[seat]);
  }
  return copies;
}

Layout::Layout(std::span<const SharedTensor> tensors, std::span<const OptimizerOptions> optimizers,
               std::vector<std::size_t> copy_of_seat)
    : copy_of_seat_(std::move(copy_of_seat)), groups_(optimizers.size()) {
  for (const OptimizerOptions& optimizer : optimizers) check_optimizer(optimizer);
  for (const std::size_t copy : copy_of_seat_) copies_ = std::max(copies_, copy + 1);
  board_stride_ = rounded(sizeof(BoardRow) + tensors.size() * sizeof(std::uint64_t), kLine);
  boards_ = kPageBytes;
  journals_ = boards_ + rounded(kGenerations * seats() * board_stride_, kPageBytes);
  undos_ = journals_ + rounded(kGenerations * seats() * kLine, kPageBytes);
  place_tensors(tensors, optimizers);
  cut();
  undo_bytes_ = rounded(undo_bytes_, kPageBytes);
  // Undo copies are as large as the largest piece, which is known only now: all that follows moves up.
  weights_ = undos_ + seats() * undo_bytes_;
  weights_stride_ = apart(weights_bytes_);
  state_ = weights_ + (copies_ - 1) * weights_stride_ + weights_bytes_;
  for (TensorPlace& tensor : tensors_) {
    for (std::size_t i = 0; i < tensor.states; ++i) tensor.state[i] += state_;
  }
  gradients_ = state_ + state_bytes_;
  gradient_stride_ = apart(gradient_stride_);
  bytes_ = gradients_ + seats() * gradient_stride_;
}

void Layout::place_tensors(std::span<const SharedTensor> tensors, std::span<const OptimizerOptions> optimizers) {
  Hasher hasher;
  hasher.add(static_cast<std::uint64_t>(seats()));
  for (const std::size_t copy : copy_of_seat_) hasher.add(static_cast<std::uint64_t>(copy));
  std::size_t next_weights = 0, next_state = 0, next_gradient = 0;
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
    place.weights = take(next_weights, place.elements * place.width());
    for (std::size_t i = 0; i < place.states; ++i) {
      place.state[i] = take(next_state, place.elements * place.state_width());
    }
    place.gradient = take(next_gradient, place.elements * place.width());
    hasher.add(tensor.name);
    hasher.add(static_cast<std::int32_t>(tensor.dtype));
    for (std::uint64_t number : {tensor.elements, tensor.group, place.states}) hasher.add(number);
    hasher.add(static_cast<std::int32_t>(optimizers[tensor.group].kind));
    tensors_.push_back(std::move(place));
  }
  weights_bytes_ = rounded(std::max<std::size_t>(next_weights, 1), kPageBytes);
  state_bytes_ = rounded(std::max<std::size_t>(next_state, 1), kPageBytes);
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
  return boards_ + (generation % kGenerations * seats() + place) * board_stride_;
}

std::size_t Layout::journal(std::size_t generation, std::size_t slice) const {
  return journals_ + (generation % kGenerations * seats() + slice) * kLine;
}

std::size_t Layout::undo(std::size_t slice) const { return undos_ + slice * undo_bytes_; }

std::vector<FilePart> Layout::state_of(PieceRange pieces) const {
  std::vector<FilePart> parts;
  // State lies tensor by tensor, so only tensors that are cut make it more than one part.
  for (std::size_t index = pieces.first; index < pieces.first + pieces.count; ++index) {
    const TensorPlace& tensor = tensors_[pieces_[index].tensor];
    for (std::size_t i = 0; i < tensor.states; ++i) {
      const std::size_t begin = tensor.state[i] + pieces_[index].offset * tensor.state_width();
      const std::size_t end = begin + pieces_[index].count * tensor.state_width();
      const std::size_t first = begin / kPageBytes * kPageBytes;
      parts.push_back({first, rounded(end, kPageBytes) - first});
    }
  }
  std::sort(parts.begin(), parts.end(), [](const FilePart& a, const FilePart& b) { return a.first < b.first; });
  std::vector<FilePart> joined;
  for (const FilePart& part : parts) {
    if (joined.empty() || part.first > joined.back().first + joined.back().bytes) {
      joined.push_back(part);
    } else {
      FilePart& last = joined.back();
      last.bytes = std::max(last.first + last.bytes, part.first + part.bytes) - last.first;
    }
  }
  return joined;
}

PieceRange Layout::slice(std::size_t index, std::size_t slices) const {
  auto border = [&](std::size_t i) {
    const std::size_t at = starts_.back() / slices * i + starts_.back() % slices * i / slices;
    return static_cast<std::size_t>(std::lower_bound(starts_.begin(), starts_.end() - 1, at) - starts_.begin());
  };
  const std::size_t first = border(index), end = index + 1 == slices ? pieces_.size() : border(index + 1);
  return {first, end - first};
}

}  // namespace lockstep::weights
