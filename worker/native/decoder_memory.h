// Memory of a decoder, cut into pieces: pages of its own, or a block of the program's heap.
#pragma once
#include <sys/mman.h>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace decoder {

// a * b, or out of memory.
inline size_t times(size_t a, size_t b) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) throw std::bad_alloc();
    return product;
}

constexpr size_t kHugePage = size_t(2) << 20;

struct Free {
    void operator()(char * data) const { std::free(data); }
};
using Block = std::unique_ptr<char, Free>;

// So many bytes of the program's heap, from a border of `alignment` on; contents are undefined. They are in huge pages, where the system
// gives them, if that is a border of those.
inline Block heap_block(size_t bytes, size_t alignment) {
    if (bytes > SIZE_MAX - alignment) throw std::bad_alloc();
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    Block block((char *) std::aligned_alloc(alignment, rounded));
    if (!block) throw std::bad_alloc();
    if (alignment == kHugePage) madvise(block.get(), rounded, MADV_HUGEPAGE);
    return block;
}

// Zeroed memory on its own pages, in huge pages where the system gives them: a cache is read front to back, as weights are, and the
// processor's prefetchers stop at page borders. Pages take no memory before they are written.
class Pages {
public:
    Pages() = default;
    Pages(const Pages &) = delete;
    Pages & operator=(const Pages &) = delete;
    ~Pages() { release(); }
    // At least `bytes`, contents undefined after growing.
    void reserve(size_t bytes) {
        if (bytes <= size_) return;
        release();
        const size_t huge = kHugePage,
                     rounded = bytes < huge ? (bytes + 4095) / 4096 * 4096 : (bytes + huge - 1) / huge * huge;
        // Huge pages need a border of 2 MiB: map a little more and give the ends back.
        const size_t slack = rounded < huge ? 0 : huge;
        char * mapped =
            (char *) mmap(nullptr, rounded + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        char * start = slack ? (char *) (((uintptr_t) mapped + huge - 1) / huge * huge) : mapped;
        if (start > mapped) munmap(mapped, start - mapped);
        if (slack && start < mapped + slack) munmap(start + rounded, mapped + slack - start);
        if (slack) madvise(start, rounded, MADV_HUGEPAGE);
        data_ = start, size_ = rounded;
    }
    // The system may take the memory when it needs some: contents are undefined until they are written again. What it did not take
    // costs nothing then; what is given away at once (MADV_DONTNEED) has to be cleared again, and on a virtual machine found by the host.
    void spare() {
        if (data_) madvise(data_, size_, MADV_FREE);
    }
    char * data() const { return data_; }

private:
    void release() {
        if (data_) munmap(data_, size_);
        data_ = nullptr, size_ = 0;
    }
    char * data_ = nullptr;
    size_t size_ = 0;
};

// Cuts one mapping into aligned pieces: first measure, then place.
class Arena {
public:
    char * take(size_t bytes) {
        char * at = base ? base + used : nullptr;
        used += (bytes + 255) / 256 * 256;
        return at;
    }
    char * base = nullptr;
    size_t used = 0;
};

} // namespace decoder
