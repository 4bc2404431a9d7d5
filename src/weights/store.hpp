// Weights and state in memory that several ranks share, and how an update of them stays whole whoever dies.
//
// The update. Every rank leaves its gradients in the shared memory and then says on the board where (`submit`). When
// all have (a barrier, made by the caller), each works through the pieces of its own slice (`apply`): it reduces the
// gradients of all ranks, and updates weights and state in place. When all are through (a second barrier), the update
// is done (`complete`).
//
// The journal. Before a piece is touched its old weights and state are copied into the slice's undo buffer, which is
// small enough to stay in the cache, and the slice's sequence word becomes (update, piece, armed). After that the piece
// is changed, and then the word becomes (update, piece + 1, not armed).
//
// Why that suffices. A process that dies has executed a prefix of its instructions, and no store of these is lost:
// memory belongs to the file, not to the process. The exchanges of the sequence word keep the compiler from moving
// other stores across them. So whoever reads a dead rank's word knows: pieces before the one in the word are new; those
// after it are old; the one in it is old if the word is not armed, and otherwise anything, but then the undo buffer
// holds what was there.
//
// Forward, never back. Let T be the least update that is submitted on the rows of all ranks, dead or alive.
// - Nobody begins an update before all have submitted it, so nothing beyond T has begun.
// - Update T - 1 is complete: a rank submits T after the second barrier of T - 1.
// - If one rank has left the second barrier of T, every slice is at T, and there is nothing to do.
// - If none has, then every rank's gradients of T are still in the memory, and every survivor knows what the update was
//   to be, since it is inside of it. Undoing the torn piece of each dead rank and then working through the rest of its
//   slice gives the same bits as it would have given, for they do not depend on who works.
// - If all have submitted T but they want different updates, none begins: then no sequence word says T, and T - 1
// counts. So the survivors end with exactly T on every slice (`repair`), which is one of: the state before the update
// in which the failure came, when somebody had not submitted it, or the state after it.
//
// Several copies of the weights. Where ranks run on several memory nodes each node has a copy, and whoever works on a
// piece writes the new weights into all copies that a rank of this world reads, its dead ones included. All that
// happens while the word is armed. Before it the copies had the same bits, so one undo buffer holds what was in any of
// them, and to undo is to put it back into all: again nobody need know how far the dead one came. After it they have
// the same bits once more. A copy that nobody in the next world reads is written no more, and nothing is read from it:
// a seat keeps its copy, and worlds only lose seats.
//
// Dying in the repair. A slice has one worker at a time: its owner, or after the owner's death one survivor. That one
// uses the slice's journal as the owner did, so its death leaves a slice that can be repaired again; to undo twice is
// as good as once. Boards and journals of the survivors' world are prepared beside the old ones, and count from one
// store on (`publish_next`): until then the old ones are valid, and say that every slice is at T; afterwards the new
// ones are, and say the same.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/shared_weights.hpp"
#include "weights/layout.hpp"

namespace lockstep::weights {

/// What a rank says to the others. A word per tensor follows: where its gradient lies among those of the rank, plus
/// one; 0: it has none.
struct BoardRow {
  std::atomic<std::uint64_t> submitted;  ///< the last update that it has submitted
  std::uint64_t signature;               ///< what that update is to be
  std::uint64_t seat;
  std::int64_t pid;
};

/// One rank's access to the shared memory. No system calls, no waiting: the caller keeps ranks apart where said.
class Store {
 public:
  /// Where a rank is when it may die, for tests.
  enum class Point { saved, armed, spread, updated, done, undone };  // spread: into one copy, and others are to come

  struct Member {
    std::size_t seat = 0;
    pid_t pid = 0;  ///< 0: it has left
  };

  /// By one rank, before the others look; the memory is zeros.
  static void initialise(const Layout& layout, std::byte* base);

  /// Throws Error(internal) when the memory was made for another layout. `layout` and the memory must outlive it.
  Store(const Layout& layout, std::byte* base, std::size_t seat, pid_t pid);

  std::uint64_t updates() const { return updates_; }
  std::int64_t steps(std::size_t tensor) const { return steps_[tensor]; }
  void set_steps(std::size_t tensor, std::int64_t steps) { steps_[tensor] = steps; }
  std::byte* gradient(std::size_t tensor) const;
  const std::vector<std::size_t>& copies() const { return copies_; }  ///< of the weights, that are read now
  /// Whether a gradient of that tensor lies where the others can read it.
  bool holds(std::size_t tensor, const void* gradient) const;
  std::uint64_t hash() const;  ///< of the copy that this rank reads

  /// Throws Error(invalid_argument), with nobody told, when the update makes no sense.
  void submit(const SharedUpdate& update);

  /// When all have submitted. False, on all alike: they want different updates, or one was let through without; then
  /// `withdraw`, and wait for all.
  bool agreed();
  void withdraw();

  /// When all have submitted and agreed.
  void apply();

  /// When all have applied.
  void complete();

  /// This rank will write nothing any more: whoever recovers need not end its process.
  void leave() { row(place_).pid = 0; }

  /// Writes into weights and state from outside, by one rank, while nobody else reads or writes.
  void begin_load();
  void load(std::size_t tensor, const SharedValues& values);
  void end_load();
  bool load_was_torn() const;
  void even_out() const;  ///< after a torn one: the copy that this rank reads becomes that of all

  // After a failure; each when all survivors have come there.

  /// Who shares the memory now, by place.
  std::vector<Member> members() const;

  /// First of all: the world may have changed in an attempt to recover that this rank has not seen to its end.
  void enter_next();

  /// Does this rank's part of what is left of the update that all have submitted. `seats`: those of the survivors in
  /// their new order. `complete_repair` when all are through.
  void repair(std::span<const std::size_t> seats);
  void complete_repair();

  /// This rank's part of the next world's boards; the first also prepares what belongs to nobody.
  void prepare_next(std::span<const std::size_t> seats);
  void publish_next(std::size_t places);  ///< by one of them; then all enter it

  /// For tests: called at each point. May throw, which is a death.
  std::function<void(Point, const Piece&)> observer;

 private:
  struct Head;
  struct Mark;

  Head& head() const;
  BoardRow& row(std::size_t place) const;
  std::uint64_t* given(std::size_t place) const;
  std::atomic<std::uint64_t>& journal(std::size_t slice) const;
  std::byte* weights(const TensorPlace& tensor, std::size_t copy) const;
  std::byte* own_weights(const TensorPlace& tensor) const { return weights(tensor, layout_.copy_of(seat_)); }

  std::uint64_t target() const;
  void read_boards(std::uint64_t update);
  void finish_slice(std::size_t slice, std::uint64_t update);
  bool has_gradient(const Piece& piece) const;
  void save(const Piece& piece, std::byte* undo) const;
  void undo(const Piece& piece, const std::byte* undo) const;
  void update_piece(const Piece& piece);
  void observe(Point point, const Piece& piece) {
    if (observer) observer(point, piece);
  }

  const Layout& layout_;
  std::byte* base_;
  std::size_t seat_;
  pid_t pid_;
  std::size_t generation_ = 0;       // of boards and journals
  std::size_t places_ = 0;           // ranks that share now
  std::size_t place_ = 0;            // of this one among them
  std::vector<std::size_t> copies_;  // of the weights, that ranks of this world read
  std::uint64_t updates_ = 0;        // that are complete
  std::vector<std::int64_t> steps_;
  SharedUpdate wanted_;                  // the last that was submitted, without its gradients
  std::uint64_t boards_read_ = 0;        // the update for which the two below hold
  std::vector<std::uint64_t> given_;     // by place, then tensor: as on the boards
  std::vector<std::uint8_t> given_any_;  // by tensor: some rank has
  std::vector<std::byte> reduced_;       // of one piece
  std::vector<const std::byte*> leaves_;
};

}  // namespace lockstep::weights
