/* The library that `lockstep run` preloads into its ranks, as the engine sees it.
 *
 * It stands before the C library's (or the user's) allocator and is passive: every call goes on to the next one. Once
 * the engine of the process has given it a region of shared memory, blocks of the sizes that the engine names come from
 * there, as long as there is room, and everything else as before. So a tensor of such a size is born where all ranks of
 * the host can read and write it. In a forked child it serves nothing any more, for ever.
 *
 * The engine finds it at run time, by the name `lockstep_preload`. Nothing links to it.
 */
#ifndef LOCKSTEP_HEAP_PRELOAD_PRELOAD_H
#define LOCKSTEP_HEAP_PRELOAD_PRELOAD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_PRELOAD_VERSION 1

/* Blocks of one size, to the byte: how many of them there may be. */
struct lockstep_preload_class {
  size_t bytes;
  size_t count;
};

/* Memory to serve from. It starts at a page and stays there until `release` is called. */
struct lockstep_preload_region {
  void* base;
  size_t bytes; /* at least what `room` says of the classes */
  const struct lockstep_preload_class* classes;
  size_t class_count;
  /* Makes sure that memory can be touched; 0: there is none. Called once for each part of the region, with a lock of
   * the library held, and never after `retire`. */
  int (*commit)(void* context, void* first, size_t bytes);
  /* Null, or a function that says whether the calling thread's allocations are meant: those for which it returns 0 or
   * more. Called inside of allocations. */
  int (*meant)(void);
  /* After `retire`, once the last block is given back, on any thread. The region is the caller's again. */
  void (*release)(void* context);
  void* context;
};

struct lockstep_preload_counts {
  uint64_t served; /* blocks handed out so far */
  uint64_t missed; /* meant, but there was no room */
  uint64_t in_use; /* blocks */
  uint64_t regions;
};

struct lockstep_preload_library {
  uint32_t version;
  /* The bytes of a region for these classes. */
  size_t (*room)(const struct lockstep_preload_class* classes, size_t class_count);
  /* Begins to serve. A handle for `retire`, or -1; *why_not then says why, in words that stay valid. */
  int (*serve)(const struct lockstep_preload_region* region, const char** why_not);
  /* Nothing is served from the region from now on. */
  void (*retire)(int handle);
  void (*count)(struct lockstep_preload_counts* counts);
};

#define LOCKSTEP_PRELOAD_SYMBOL "lockstep_preload"
__attribute__((visibility("default"))) const struct lockstep_preload_library* lockstep_preload(void);

#ifdef __cplusplus
}
#endif
#endif
