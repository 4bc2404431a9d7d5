/* The entry points that stand before the allocator. Only those that hand out aligned memory serve from pools: that is
 * what frameworks take tensors from. malloc and calloc are not touched at all; whatever frees or changes a block must
 * know ours, from whatever library it is called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "heap/preload/pools.h"

#define SHOWN __attribute__((visibility("default")))

/* The next allocator: the user's, where one is preloaded, else the C library's. */
static struct {
  void (*free)(void*);
  void* (*realloc)(void*, size_t);
  int (*posix_memalign)(void**, size_t, size_t);
  void* (*aligned_alloc)(size_t, size_t);
  void* (*memalign)(size_t, size_t);
  size_t (*malloc_usable_size)(void*);
} next;
static int resolved;
static __thread int resolving __attribute__((tls_model("initial-exec")));

static void resolve(const char* name, void* function) {
  void* found = dlsym(RTLD_NEXT, name);
  memcpy(function, &found, sizeof found);
}

/* Also called before the constructors: by those of other libraries, and by the loader. */
__attribute__((constructor)) static void resolve_all(void) {
  if (__atomic_load_n(&resolved, __ATOMIC_ACQUIRE) || resolving) return;
  resolving = 1;
  resolve("free", &next.free);
  resolve("realloc", &next.realloc);
  resolve("posix_memalign", &next.posix_memalign);
  resolve("aligned_alloc", &next.aligned_alloc);
  resolve("memalign", &next.memalign);
  resolve("malloc_usable_size", &next.malloc_usable_size);
  resolving = 0;
  __atomic_store_n(&resolved, 1, __ATOMIC_RELEASE);
}

static inline void look_up(void) {
  if (__builtin_expect(!__atomic_load_n(&resolved, __ATOMIC_ACQUIRE), 0)) resolve_all();
}

static inline void* take(size_t alignment, size_t bytes) {
  return __builtin_expect(pools_may_have(bytes), 0) ? pools_take(alignment, bytes) : NULL;
}

SHOWN void free(void* block) {
  if (__builtin_expect(pools_may_hold(block), 0) && pools_give_back(block)) return;
  look_up();
  if (next.free != NULL) next.free(block); /* the loader's own, while it looks for the next: it is let go */
}

SHOWN int posix_memalign(void** block, size_t alignment, size_t bytes) {
  void* taken = alignment % sizeof(void*) == 0 ? take(alignment, bytes) : NULL;
  if (taken != NULL) {
    *block = taken;
    return 0;
  }
  look_up();
  return next.posix_memalign != NULL ? next.posix_memalign(block, alignment, bytes) : ENOMEM;
}

SHOWN void* aligned_alloc(size_t alignment, size_t bytes) {
  void* taken = take(alignment, bytes);
  if (taken != NULL) return taken;
  look_up();
  return next.aligned_alloc != NULL ? next.aligned_alloc(alignment, bytes) : NULL;
}

SHOWN void* memalign(size_t alignment, size_t bytes) {
  void* taken = take(alignment, bytes);
  if (taken != NULL) return taken;
  look_up();
  return next.memalign != NULL ? next.memalign(alignment, bytes) : NULL;
}

static void* move_out(void* block, size_t held, size_t bytes) {
  if (bytes == 0) {
    pools_give_back(block);
    return NULL;
  }
  void* moved = malloc(bytes);
  if (moved == NULL) return NULL;
  memcpy(moved, block, held < bytes ? held : bytes);
  pools_give_back(block);
  return moved;
}

SHOWN void* realloc(void* block, size_t bytes) {
  if (__builtin_expect(pools_may_hold(block), 0)) {
    const size_t held = pools_bytes_of(block);
    if (held != 0) return move_out(block, held, bytes);
  }
  look_up();
  return next.realloc != NULL ? next.realloc(block, bytes) : NULL;
}

SHOWN size_t malloc_usable_size(void* block) {
  if (__builtin_expect(pools_may_hold(block), 0)) {
    const size_t held = pools_bytes_of(block);
    if (held != 0) return held;
  }
  look_up();
  return next.malloc_usable_size != NULL ? next.malloc_usable_size(block) : 0;
}

static bool is_ours(const char* name) {
  Dl_info found, own;
  return dladdr(dlsym(RTLD_DEFAULT, name), &found) != 0 && dladdr(&resolved, &own) != 0 &&
         found.dli_fbase == own.dli_fbase;
}

/* Where the program, or a library before this one, has an allocator of its own, it would be given blocks to free that
 * it does not know. */
static bool comes_first(void) {
  return is_ours("free") && is_ours("realloc") && is_ours("malloc_usable_size") && is_ours("posix_memalign");
}

static int serve(const struct lockstep_preload_region* region, const char** why_not) {
  if (comes_first()) return pools_serve(region, why_not);
  if (why_not != NULL) *why_not = "another allocator comes before the preloaded library";
  return -1;
}

SHOWN const struct lockstep_preload_library* lockstep_preload(void) {
  static const struct lockstep_preload_library library = {.version = LOCKSTEP_PRELOAD_VERSION,
                                                          .room = pools_room,
                                                          .serve = serve,
                                                          .retire = pools_retire,
                                                          .count = pools_count};
  return &library;
}
