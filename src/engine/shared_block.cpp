#include "engine/shared_block.hpp"

#include <unistd.h>

#include <new>
#include <utility>

#include "engine/core.hpp"
#include "lockstep/block.hpp"
#include "lockstep/error.hpp"

namespace lockstep::engine {
namespace {

transport::SharedMemory& shared_memory_of(Core& core) {
  transport::SharedMemory* shared = core.transport().shared();
  if (shared == nullptr || core.options().size == 1) {
    throw Error(ErrorCode::unavailable, "the ranks of this world share no memory");
  }
  return *shared;
}

}  // namespace

void LentBlocks::add(BlockHead* block) {
  std::lock_guard lock(mutex_);
  blocks_.push_back(block);
}

void LentBlocks::reclaim(transport::SharedMemory& shared) {
  std::lock_guard lock(mutex_);
  std::erase_if(blocks_, [&](BlockHead* block) {
    if (block->users.load(std::memory_order_acquire) != 0) return false;
    shared.deallocate(block);
    return true;
  });
}

std::shared_ptr<SharedBlock> SharedBlock::make(const std::shared_ptr<Core>& core, std::size_t bytes,
                                               std::uint32_t users) {
  transport::SharedMemory& shared = shared_memory_of(*core);
  core->lent_blocks().reclaim(shared);
  if (bytes > SIZE_MAX - kBlockHeadBytes) return nullptr;
  void* memory = shared.allocate(kBlockHeadBytes + bytes);
  if (memory == nullptr) return nullptr;
  auto* head = new (memory) BlockHead{users};
  return std::make_shared<SharedBlock>(core, head, shared.place_of(memory, kBlockHeadBytes), /*owned=*/true);
}

std::shared_ptr<SharedBlock> SharedBlock::open(const std::shared_ptr<Core>& core, int owner, transport::Place place) {
  auto* head = reinterpret_cast<BlockHead*>(shared_memory_of(*core).at(owner, place));
  return std::make_shared<SharedBlock>(core, head, place, /*owned=*/false);
}

SharedBlock::SharedBlock(std::shared_ptr<Core> core, BlockHead* head, transport::Place place, bool owned)
    : core_(std::move(core)), head_(head), place_(place), owned_(owned), process_(::getpid()) {}

SharedBlock::~SharedBlock() {
  if (::getpid() != process_) return;
  const bool last = head_->users.fetch_sub(1, std::memory_order_acq_rel) == 1;
  if (!owned_) return;
  if (last) {
    core_->transport().shared()->deallocate(head_);
  } else {
    core_->lent_blocks().add(head_);
  }
}

}  // namespace lockstep::engine

namespace lockstep {

void* Block::data() const noexcept { return block_->data(); }
std::uint64_t Block::place() const noexcept { return block_->place(); }

}  // namespace lockstep
