// Where everything lies in the memory file of shared weights, and how the work is cut. Pure: follows from the tensors,
// and from who reads which copy of the weights.
//
//     header | boards | journals | undo copies | weights, copy 0, 1, ... | state | gradients of rank 0, 1, ...
//
// There is one copy of the weights for each memory node on which ranks run, because every rank reads all of them in
// every step. The state of an element is touched by the rank alone that updates it, so there is one, and it lies on
// the node of the rank that did so in the first world.
//
// The gradients of a rank are a place for each tensor, and then room in which gradients can be born (Room of
// heap/served_region.hpp): where they lie there is known only once they are computed.
//
// Weights and state are cut into pieces that stay in the cache while they are worked on; a slice is a run of pieces,
// and each rank works on one slice. A seat is a rank's place in the world in which the file was made; it keeps that
// when survivors go on under new numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/optimizer.hpp"
#include "lockstep/shared_weights.hpp"

namespace lockstep::weights {

struct TensorPlace {
  std::string name;
  DType dtype = DType::f32;
  std::size_t elements = 0;
  std::size_t group = 0;
  std::size_t weights = 0;                                ///< in bytes, from the beginning of a copy
  std::array<std::size_t, kMostOptimizerStates> state{};  ///< offsets in the file, in bytes
  std::size_t states = 0;
  std::size_t gradient = 0;  ///< from the beginning of a seat's gradients

  std::size_t width() const { return size_of(dtype); }
  std::size_t state_width() const { return dtype == DType::f64 ? 8 : 4; }
};

/// A part of one tensor.
struct Piece {
  std::size_t tensor = 0;
  std::size_t offset = 0;  ///< in elements
  std::size_t count = 0;
};

struct PieceRange {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// A part of the file.
struct FilePart {
  std::size_t first = 0;
  std::size_t bytes = 0;

  bool operator==(const FilePart&) const = default;
};

/// For each seat the copy of the weights that it reads, given the memory node of each: one copy per node, numbered as
/// they come; the same for all where one is on no node (a negative number).
std::vector<std::size_t> copies_by_node(std::span<const std::int64_t> nodes);

class Layout {
 public:
  /// Seat i reads copy `copy_of_seat[i]` of the weights; no number is left out. Throws Error(invalid_argument) that
  /// names the tensor which cannot be shared.
  Layout(std::span<const SharedTensor> tensors, std::span<const OptimizerOptions> optimizers,
         std::vector<std::size_t> copy_of_seat);

  /// One copy for all.
  Layout(std::span<const SharedTensor> tensors, std::span<const OptimizerOptions> optimizers, std::size_t seats)
      : Layout(tensors, optimizers, std::vector<std::size_t>(seats, 0)) {}

  std::span<const TensorPlace> tensors() const { return tensors_; }
  std::size_t seats() const { return copy_of_seat_.size(); }
  std::size_t copies() const { return copies_; }
  std::size_t copy_of(std::size_t seat) const { return copy_of_seat_[seat]; }
  std::size_t groups() const { return groups_; }

  std::size_t bytes() const { return bytes_; }
  std::size_t board(std::size_t generation, std::size_t place) const;
  std::size_t journal(std::size_t generation, std::size_t slice) const;
  std::size_t undo(std::size_t slice) const;
  FilePart weights(std::size_t copy) const { return {weights_ + copy * weights_stride_, weights_bytes_}; }
  FilePart state() const { return {state_, state_bytes_}; }  ///< like a copy of the weights, whole pages
  /// The pages on which the state of some pieces lies; those at the borders may have more on them.
  std::vector<FilePart> state_of(PieceRange pieces) const;
  std::size_t gradients(std::size_t seat) const { return gradients_ + seat * gradient_stride_; }
  std::size_t gradients_bytes() const { return gradient_stride_; }  ///< of one seat
  std::size_t gradient_places_bytes() const { return born_; }       ///< of it, those that tensors have for sure
  std::size_t born(std::size_t seat) const { return gradients(seat) + born_; }  ///< whole pages
  std::size_t born_bytes() const { return born_bytes_; }

  std::vector<std::size_t> gradient_sizes() const;  ///< by tensor, in bytes

  Piece piece(std::size_t index) const { return pieces_[index]; }
  std::size_t piece_bytes() const { return piece_bytes_; }  ///< of the largest gradient of one piece
  /// Slice `index` when all is cut into `slices` of about the same size.
  PieceRange slice(std::size_t index, std::size_t slices) const;

  /// Differs when tensors, optimizers, seats or copies differ in anything that matters.
  std::uint64_t hash() const { return hash_; }

 private:
  void place_tensors(std::span<const SharedTensor> tensors, std::span<const OptimizerOptions> optimizers);
  void cut();

  std::vector<std::size_t> copy_of_seat_;
  std::size_t copies_ = 0;
  std::size_t groups_;
  std::vector<TensorPlace> tensors_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> starts_;  // of each piece, in bytes of weights; at the end, the whole
  std::size_t piece_bytes_ = 0;
  std::size_t undo_bytes_ = 0;
  std::size_t board_stride_ = 0;
  std::size_t boards_ = 0, journals_ = 0, undos_ = 0;
  std::size_t weights_ = 0, weights_bytes_ = 0, weights_stride_ = 0, state_ = 0, state_bytes_ = 0;
  std::size_t gradients_ = 0, gradient_stride_ = 0;
  std::size_t born_ = 0, born_bytes_ = 0;  // from the beginning of a seat's gradients
  std::size_t bytes_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace lockstep::weights
