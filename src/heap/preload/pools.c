#define _GNU_SOURCE
#include "heap/preload/pools.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Each region is a pool, and each size has its own part of it, cut into blocks. A block that was never used comes from
 * the part's untouched rest, so that memory is taken only for as many as are needed at once; a block that was given
 * back goes to a stack of its size. Blocks are never split or joined: sizes of gradients stay the same for as long as a
 * program trains.
 *
 * Locks: `registry`, then that of one pool. Neither is held while `release` runs. A forked child may find them locked
 * for ever, and takes none. */

enum { kPools = 64, kPage = 4096, kLine = 128, kLarge = 64 * 1024 };
enum { kMostClasses = UINT16_MAX - 1 };

struct class {
  size_t bytes;
  size_t stride;
  size_t first;      /* offset of its part */
  uint32_t capacity; /* blocks of its part */
  uint32_t fresh;    /* so many of them were used before */
  uint32_t spare;    /* blocks on the stack */
  uint32_t* stack;   /* of block numbers */
  uint8_t* used;     /* by block number */
};

enum state { kEmpty, kServing, kRetired, kLeaving };

struct pool {
  pthread_mutex_t mutex;
  /* Read without the lock to find the pool of a block; while it has blocks in use they stay the same. */
  uintptr_t base;
  size_t bytes;
  /* All below is protected by the mutex. */
  enum state state;
  bool exhausted; /* no memory can be committed any more */
  size_t in_use;
  uint32_t class_count;
  uint32_t slots; /* of by_size: a power of two */
  struct class* classes;
  uint32_t* by_size;       /* class number + 1, by hash of the size; 0: none */
  uint16_t* class_of_page; /* class number */
  void* books;
  size_t books_bytes;
  int (*commit)(void*, void*, size_t);
  int (*meant)(void);
  void (*release)(void*);
  void* context;
};

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static struct pool pools[kPools];
static int pools_used; /* slots that were ever in use */
static uint64_t served, missed;

uintptr_t pools_first = UINTPTR_MAX, pools_end;
uint64_t pools_sizes[64];

/* A page that the kernel wipes in forked children: not 0 only in the process that has made it. */
static uint32_t* own_page;

static bool is_forked(void) {
  const uint32_t* page = __atomic_load_n(&own_page, __ATOMIC_ACQUIRE);
  return page != NULL && __atomic_load_n(page, __ATOMIC_RELAXED) == 0;
}

static bool make_own_page(void) {
  if (own_page != NULL) return true;
  uint32_t* page = mmap(NULL, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  if (madvise(page, kPage, MADV_WIPEONFORK) != 0) {
    munmap(page, kPage);
    return false;
  }
  *page = 1;
  __atomic_store_n(&own_page, page, __ATOMIC_RELEASE);
  return true;
}

static size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/* As in the rest of the heap: large blocks begin at a page. */
static size_t stride_of(size_t bytes) { return round_up(bytes, bytes >= kLarge ? kPage : kLine); }

size_t pools_room(const struct lockstep_preload_class* classes, size_t class_count) {
  size_t room = 0;
  for (size_t i = 0; i < class_count; ++i) room += round_up(stride_of(classes[i].bytes) * classes[i].count, kPage);
  return room;
}

/* --- a pool comes */

static size_t slots_for(size_t classes) {
  size_t slots = 4;
  while (slots < 2 * classes) slots *= 2;
  return slots;
}

static void cut(struct pool* pool, const struct lockstep_preload_region* region, size_t slots) {
  char* at = pool->books;
  pool->class_count = (uint32_t)region->class_count;
  pool->slots = (uint32_t)slots;
  pool->classes = (struct class*)at;
  at += region->class_count * sizeof(struct class);
  pool->by_size = (uint32_t*)at;
  at += slots * sizeof(uint32_t);
  size_t first = 0;
  for (size_t i = 0; i < region->class_count; ++i) {
    const struct lockstep_preload_class* wanted = &region->classes[i];
    struct class* class = &pool->classes[i];
    *class = (struct class){.bytes = wanted->bytes,
                            .stride = stride_of(wanted->bytes),
                            .first = first,
                            .capacity = (uint32_t)wanted->count,
                            .stack = (uint32_t*)at};
    at += wanted->count * sizeof(uint32_t);
    first += round_up(class->stride * wanted->count, kPage);
    size_t slot = pools_hash(wanted->bytes) & (slots - 1);
    while (pool->by_size[slot] != 0) slot = (slot + 1) & (slots - 1);
    pool->by_size[slot] = (uint32_t)i + 1;
  }
  pool->class_of_page = (uint16_t*)at;
  at += round_up(first / kPage * sizeof(uint16_t), sizeof(uint32_t));
  for (size_t i = 0; i < region->class_count; ++i) {
    struct class* class = &pool->classes[i];
    class->used = (uint8_t*)at;
    at += class->capacity;
    const size_t end = class->first + round_up(class->stride * class->capacity, kPage);
    for (size_t page = class->first / kPage; page < end / kPage; ++page) pool->class_of_page[page] = (uint16_t)i;
  }
}

static bool make_books(struct pool* pool, const struct lockstep_preload_region* region) {
  const size_t slots = slots_for(region->class_count);
  size_t bytes = region->class_count * sizeof(struct class) + slots * sizeof(uint32_t) +
                 round_up(region->bytes / kPage * sizeof(uint16_t), sizeof(uint32_t)) + kPage;
  for (size_t i = 0; i < region->class_count; ++i) {
    bytes += region->classes[i].count * (sizeof(uint32_t) + sizeof(uint8_t));
  }
  void* books = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (books == MAP_FAILED) return false;
  pool->books = books;
  pool->books_bytes = bytes;
  cut(pool, region, slots);
  return true;
}

static bool makes_sense(const struct lockstep_preload_region* region) {
  if ((uintptr_t)region->base % kPage != 0 || region->class_count == 0 || region->class_count > kMostClasses)
    return false;
  for (size_t i = 0; i < region->class_count; ++i) {
    const struct lockstep_preload_class* class = &region->classes[i];
    if (class->bytes == 0 || class->count == 0 || class->count > UINT32_MAX) return false;
    if (class->count > region->bytes / class->bytes) return false; /* also keeps the sums below from wrapping around */
  }
  return pools_room(region->classes, region->class_count) <= region->bytes;
}

/* Says anew where pools are and which sizes they have. REQUIRES registry. */
static void describe_pools(void) {
  uintptr_t first = UINTPTR_MAX, end = 0;
  uint64_t sizes[64] = {0};
  for (int i = 0; i < pools_used; ++i) {
    struct pool* pool = &pools[i];
    pthread_mutex_lock(&pool->mutex);
    if (pool->state == kServing || pool->state == kRetired) {
      if (pool->base < first) first = pool->base;
      if (pool->base + pool->bytes > end) end = pool->base + pool->bytes;
    }
    for (uint32_t c = 0; pool->state == kServing && c < pool->class_count; ++c) {
      const unsigned hash = pools_hash(pool->classes[c].bytes);
      sizes[hash / 64] |= (uint64_t)1 << hash % 64;
    }
    pthread_mutex_unlock(&pool->mutex);
  }
  __atomic_store_n(&pools_first, first, __ATOMIC_RELAXED);
  __atomic_store_n(&pools_end, end, __ATOMIC_RELAXED);
  for (int i = 0; i < 64; ++i) __atomic_store_n(&pools_sizes[i], sizes[i], __ATOMIC_RELAXED);
}

/* Before the pool serves: another one may have its sizes, so that blocks are taken from it, and given back, before all
 * is described anew. REQUIRES registry. */
static void include(const struct pool* pool) {
  const uintptr_t end = pool->base + pool->bytes;
  if (pool->base < pools_first) __atomic_store_n(&pools_first, pool->base, __ATOMIC_RELAXED);
  if (end > pools_end) __atomic_store_n(&pools_end, end, __ATOMIC_RELAXED);
}

/* REQUIRES registry. */
static struct pool* find_empty(void) {
  for (int i = 0; i < kPools; ++i) {
    struct pool* pool = &pools[i];
    if (i >= __atomic_load_n(&pools_used, __ATOMIC_RELAXED)) {
      pthread_mutex_init(&pool->mutex, NULL);
      __atomic_store_n(&pools_used, i + 1, __ATOMIC_RELEASE);
      return pool;
    }
    pthread_mutex_lock(&pool->mutex);
    const bool empty = pool->state == kEmpty;
    pthread_mutex_unlock(&pool->mutex);
    if (empty) return pool;
  }
  return NULL;
}

static const char* open_pool(const struct lockstep_preload_region* region, int* handle) {
  if (!make_own_page()) return "this kernel does not tell forked children apart (MADV_WIPEONFORK)";
  struct pool* pool = find_empty();
  if (pool == NULL) return "blocks of too many engines are still in use";
  pthread_mutex_lock(&pool->mutex);
  const bool made = make_books(pool, region);
  if (made) {
    pool->commit = region->commit;
    pool->meant = region->meant;
    pool->release = region->release;
    pool->context = region->context;
    pool->exhausted = false;
    pool->in_use = 0;
    __atomic_store_n(&pool->base, (uintptr_t)region->base, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->bytes, pools_room(region->classes, region->class_count), __ATOMIC_RELAXED);
    include(pool);
    pool->state = kServing;
  }
  pthread_mutex_unlock(&pool->mutex);
  if (!made) return "there is no memory for the books";
  *handle = (int)(pool - pools);
  describe_pools();
  return NULL;
}

int pools_serve(const struct lockstep_preload_region* region, const char** why_not) {
  int handle = -1;
  const char* problem = NULL;
  if (is_forked()) {
    problem = "this process was forked from one that has an engine";
  } else if (!makes_sense(region)) {
    problem = "the region and its sizes do not fit";
  } else {
    pthread_mutex_lock(&registry);
    problem = open_pool(region, &handle);
    pthread_mutex_unlock(&registry);
  }
  if (why_not != NULL) *why_not = problem;
  return handle;
}

/* --- a pool goes */

/* The last block is back. The pool is `kLeaving`, and nobody finds it any more. */
static void close_pool(struct pool* pool) {
  pthread_mutex_lock(&registry);
  pthread_mutex_lock(&pool->mutex);
  void (*release)(void*) = pool->release;
  void* context = pool->context;
  munmap(pool->books, pool->books_bytes);
  pool->state = kEmpty;
  pthread_mutex_unlock(&pool->mutex);
  describe_pools();
  pthread_mutex_unlock(&registry);
  if (release != NULL) release(context);
}

/* True: the caller closes it, after it has let go of the lock. REQUIRES the pool's mutex. */
static bool leaves(struct pool* pool) {
  if (pool->state != kRetired || pool->in_use != 0) return false;
  pool->state = kLeaving;
  __atomic_store_n(&pool->bytes, 0, __ATOMIC_RELAXED);
  return true;
}

void pools_retire(int handle) {
  if (handle < 0 || handle >= kPools || is_forked()) return;
  struct pool* pool = &pools[handle];
  pthread_mutex_lock(&registry);
  pthread_mutex_lock(&pool->mutex);
  const bool serving = pool->state == kServing;
  if (serving) pool->state = kRetired;
  const bool closes = serving && leaves(pool);
  pthread_mutex_unlock(&pool->mutex);
  if (serving && !closes) describe_pools();
  pthread_mutex_unlock(&registry);
  if (closes) close_pool(pool);
}

/* --- blocks */

static bool holds(const struct pool* pool, const void* block) {
  return (uintptr_t)block - __atomic_load_n(&pool->base, __ATOMIC_RELAXED) <
         __atomic_load_n(&pool->bytes, __ATOMIC_RELAXED);
}

static void unlock(struct pool* pool) {
  if (!is_forked()) pthread_mutex_unlock(&pool->mutex);
}

/* The pool of a block, locked, except in a forked child. NULL: it is of none. What is read without the lock may be half
 * of a pool that goes and half of one that comes, so it is looked at again; of the right pool it stays the same. */
static struct pool* lock_pool_of(const void* block) {
  if (!pools_may_hold(block)) return NULL;
  const int used = __atomic_load_n(&pools_used, __ATOMIC_ACQUIRE);
  for (int i = 0; i < used; ++i) {
    struct pool* pool = &pools[i];
    if (!holds(pool, block)) continue;
    if (is_forked()) return pool;
    pthread_mutex_lock(&pool->mutex);
    if (holds(pool, block)) return pool;
    pthread_mutex_unlock(&pool->mutex);
  }
  return NULL;
}

static struct class* class_for(struct pool* pool, size_t bytes) {
  for (size_t slot = pools_hash(bytes);; ++slot) {
    const uint32_t number = pool->by_size[slot & (pool->slots - 1)];
    if (number == 0) return NULL;
    if (pool->classes[number - 1].bytes == bytes) return &pool->classes[number - 1];
  }
}

static bool find_block(struct pool* pool, struct class* class, uint32_t* number) {
  if (class->spare > 0) {
    *number = class->stack[--class->spare];
    return true;
  }
  if (class->fresh == class->capacity || pool->exhausted) return false;
  char* first = (char*)pool->base + class->first + class->fresh * class->stride;
  if (pool->commit != NULL && pool->commit(pool->context, first, class->stride) == 0) {
    pool->exhausted = true; /* to ask again and again would cost more than it could bring */
    return false;
  }
  *number = class->fresh++;
  return true;
}

/* With `*had` it says whether the pool has that size at all. */
static void* take_from(struct pool* pool, size_t alignment, size_t bytes, bool* had) {
  void* block = NULL;
  pthread_mutex_lock(&pool->mutex);
  struct class* class = pool->state == kServing ? class_for(pool, bytes) : NULL;
  uint32_t number = 0;
  if (class != NULL && alignment <= (class->stride % kPage == 0 ? kPage : kLine)) {
    if (pool->meant == NULL || pool->meant() >= 0) {
      *had = true;
      if (find_block(pool, class, &number)) {
        block = (char*)pool->base + class->first + number * class->stride;
        class->used[number] = 1;
        ++pool->in_use;
      }
    }
  }
  pthread_mutex_unlock(&pool->mutex);
  return block;
}

void* pools_take(size_t alignment, size_t bytes) {
  if (!pools_may_have(bytes) || is_forked()) return NULL;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) return NULL; /* an error, of which the next one tells */
  bool had = false;
  const int used = __atomic_load_n(&pools_used, __ATOMIC_ACQUIRE);
  for (int i = 0; i < used; ++i) {
    void* block = take_from(&pools[i], alignment, bytes, &had);
    if (block == NULL) continue;
    __atomic_fetch_add(&served, 1, __ATOMIC_RELAXED);
    return block;
  }
  if (had) __atomic_fetch_add(&missed, 1, __ATOMIC_RELAXED);
  return NULL;
}

static struct class* class_of(const struct pool* pool, const void* block, uint32_t* number) {
  const size_t offset = (uintptr_t)block - pool->base;
  struct class* class = &pool->classes[pool->class_of_page[offset / kPage]];
  *number = (uint32_t)((offset - class->first) / class->stride);
  return (offset - class->first) % class->stride == 0 && *number < class->capacity ? class : NULL;
}

/* As the C library does: to go on would hand one block to two owners. */
__attribute__((noreturn)) static void end_program(void) {
  static const char text[] = "lockstep: free(): not a block, or freed twice\n";
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) {
  }
  abort();
}

bool pools_give_back(void* block) {
  struct pool* pool = lock_pool_of(block);
  if (pool == NULL) return false;
  if (is_forked()) return true; /* the parent's */
  uint32_t number = 0;
  struct class* class = class_of(pool, block, &number);
  if (class == NULL || class->used[number] == 0) end_program();
  class->used[number] = 0;
  class->stack[class->spare++] = number;
  --pool->in_use;
  const bool closes = leaves(pool);
  pthread_mutex_unlock(&pool->mutex);
  if (closes) close_pool(pool);
  return true;
}

size_t pools_bytes_of(const void* block) {
  struct pool* pool = lock_pool_of(block);
  if (pool == NULL) return 0;
  uint32_t number = 0;
  const struct class* class = class_of(pool, block, &number);
  const size_t bytes = class != NULL ? class->stride : 0;
  unlock(pool);
  return bytes;
}

void pools_count(struct lockstep_preload_counts* counts) {
  *counts = (struct lockstep_preload_counts){.served = __atomic_load_n(&served, __ATOMIC_RELAXED),
                                             .missed = __atomic_load_n(&missed, __ATOMIC_RELAXED)};
  if (is_forked()) return;
  pthread_mutex_lock(&registry);
  for (int i = 0; i < pools_used; ++i) {
    pthread_mutex_lock(&pools[i].mutex);
    counts->in_use += pools[i].state != kEmpty ? pools[i].in_use : 0;
    counts->regions += pools[i].state != kEmpty ? 1 : 0;
    pthread_mutex_unlock(&pools[i].mutex);
  }
  pthread_mutex_unlock(&registry);
}
