/* The allocator of the preloaded library: pools of blocks of a few known sizes. Functions are thread-safe and take
 * constant time. The books are private memory: a peer that writes nonsense into shared memory cannot corrupt them.
 */
#ifndef LOCKSTEP_HEAP_PRELOAD_POOLS_H
#define LOCKSTEP_HEAP_PRELOAD_POOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "heap/preload/preload.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t pools_room(const struct lockstep_preload_class* classes, size_t class_count);
int pools_serve(const struct lockstep_preload_region* region, const char** why_not);
void pools_retire(int handle);
void pools_count(struct lockstep_preload_counts* counts);

/* NULL: the block is for the normal heap. */
void* pools_take(size_t alignment, size_t bytes);
/* False: the block is not of a pool, and nothing was done. */
bool pools_give_back(void* block);
/* The bytes of a block; 0: it is not of a pool. */
size_t pools_bytes_of(const void* block);

/* Between which addresses all pools lie, so that a comparison tells most blocks from theirs. Each of the two moves by
 * itself and never leaves out a pool that is there, so they need no order. */
extern uintptr_t pools_first, pools_end;

static inline bool pools_may_hold(const void* block) {
  return (uintptr_t)block >= __atomic_load_n(&pools_first, __ATOMIC_RELAXED) &&
         (uintptr_t)block < __atomic_load_n(&pools_end, __ATOMIC_RELAXED);
}

/* A filter of the sizes that pools have: a bit for each value of a hash. */
extern uint64_t pools_sizes[64];

static inline unsigned pools_hash(size_t bytes) { return (unsigned)((uint64_t)bytes * 0x9e3779b97f4a7c15u >> 52); }

static inline bool pools_may_have(size_t bytes) {
  const unsigned hash = pools_hash(bytes);
  return (__atomic_load_n(&pools_sizes[hash / 64], __ATOMIC_RELAXED) >> hash % 64 & 1) != 0;
}

#ifdef __cplusplus
}
#endif
#endif
