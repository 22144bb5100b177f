// How the C library's allocator and libtorch treat a training process's memory.
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>  // defines __GLIBC__ where it is glibc's

#ifdef __GLIBC__
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

// Where the heap ends now.
uintptr_t heap_end() { return reinterpret_cast<uintptr_t>(sbrk(0)); }

// libtorch's allocator, but what the heap grew by since is in huge pages before anyone writes to it, where the system leaves that to the
// program. A product reads weights of many megabytes: with 4 KiB pages a tenth of a step was spent in looking up addresses. Ranges are of
// the heap and not of tensors, so that none has to begin where a huge page does.
class HugePages final : public c10::Allocator {
 public:
  explicit HugePages(c10::Allocator* libtorchs) : libtorchs_(libtorchs), advised_(heap_end()) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr made = libtorchs_->allocate(bytes);
    if (bytes >= size_t{64} << 10) advise();
    return made;
  }
  c10::DeleterFnPtr raw_deleter() const override { return libtorchs_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { libtorchs_->copy_data(to, from, bytes); }

  void advise() {
    const uintptr_t end = heap_end(), page = static_cast<uintptr_t>(getpagesize());
    uintptr_t begin = advised_.load(std::memory_order_relaxed);
    if (end <= begin || !advised_.compare_exchange_strong(begin, end)) return;
    begin = begin / page * page;
    // A system without huge pages says no, and loses nothing.
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }

  // The heap gave its end back: what it grows by over the same addresses are pages that nobody has asked about.
  void shrunk() {
    const uintptr_t end = heap_end();
    uintptr_t advised = advised_.load(std::memory_order_relaxed);
    while (end < advised && !advised_.compare_exchange_weak(advised, end)) {
    }
  }

 private:
  c10::Allocator* libtorchs_;
  std::atomic<uintptr_t> advised_;
};

// Null while this process does not keep what it frees.
HugePages* huge_pages = nullptr;

}  // namespace
#endif

// Keeps freed tensors on the heap for the next ones. Returns whether the allocator agreed: it must be glibc's.
extern "C" bool ppo_training_keep_memory() {
#ifdef __GLIBC__
  // Tensors lie on the heap and not in mappings of their own; its top is not given back unasked (the greatest int would still be a
  // threshold, of 2 GiB), and grows by 64 MiB at a time. One heap serves all threads, so that what one frees another can use.
  const bool agreed = mallopt(M_MMAP_MAX, 0) && mallopt(M_TRIM_THRESHOLD, -1) &&
                      mallopt(M_TOP_PAD, 64 << 20) && mallopt(M_ARENA_MAX, 1);
  // For as long as the process lives.
  if (agreed) c10::SetCPUAllocator(huge_pages = new HugePages(c10::GetCPUAllocator()), 1);
  return agreed;
#else
  return false;
#endif
}

// Does for the heap what libtorch's allocator does there: for whoever takes memory of it without libtorch, and has not written to it yet.
extern "C" void ppo_training_advise_memory() {
#ifdef __GLIBC__
  if (huge_pages) huge_pages->advise();
#endif
}

// Gives the system the pages on which nothing lies.
extern "C" void ppo_training_return_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
  if (huge_pages) huge_pages->shrunk();
#endif
}
