// How the C library's allocator treats a training process's memory.
#include <cstdlib>  // defines __GLIBC__ where it is glibc's
#include <limits>

#ifdef __GLIBC__
#include <malloc.h>
#endif

// Keeps freed tensors on the heap for the next ones. Returns whether the allocator agreed: it must be glibc's.
extern "C" bool ppo_training_keep_memory() {
#ifdef __GLIBC__
  // Tensors lie on the heap and not in mappings of their own; its top is never given back, and grows by 64 MiB at a time.
  // One heap serves all threads, so that what one frees another can use.
  return mallopt(M_MMAP_MAX, 0) && mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max()) &&
         mallopt(M_TOP_PAD, 64 << 20) && mallopt(M_ARENA_MAX, 1);
#else
  return false;
#endif
}
