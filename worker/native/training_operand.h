// Operands of a product by tiles (training_tiles.cpp): sixteen rows or columns at a time, as tiles are loaded from them.
#pragma once

#include "pairs.h"
#include "tiles.h"
#include "training.h"

#if defined(__x86_64__)
namespace ppo::training {

// A tile has kLines lines of kLines units. Of the left operand a line is a row, of the right one it is a pair, as tdpbf16ps wants them.
constexpr int64_t kLines = 16, kUnits = kLines * kLines, kDepth = 2 * kLines;
constexpr int64_t kTileBytes = kUnits * sizeof(uint32_t), kLineBytes = 64;
// bfloat16 whose sum is one number.
template <typename T>
constexpr int kPlanes = sizeof(T) == 4 ? 3 : 1;

// Numbers of one of the two dimensions are neighbours in memory.
struct Operand {
  const void* data;
  // Rows or columns of the result, over the dimension `depth` that is summed over.
  int64_t count, depth, stride_of_count, stride_of_depth;

  explicit Operand(const Tensor& matrix)
      : data(matrix.data_ptr()), count(matrix.size(0)), depth(matrix.size(1)), stride_of_count(matrix.stride(0)),
        stride_of_depth(matrix.stride(1)) {}
  bool reads() const { return stride_of_depth == 1 || stride_of_count == 1; }
  bool along() const { return stride_of_depth == 1; }
  int64_t groups() const { return (count + kLines - 1) / kLines; }
  int64_t blocks() const { return (depth + kDepth - 1) / kDepth; }
};

// Lines become columns, in four rounds over ever smaller squares.
template <int kHalf>
PPO_PAIRS static PPO_INLINE void transpose(__m512i (&lines)[kLines]) {
  alignas(64) int32_t upper[kLines], lower[kLines];
  for (int lane = 0; lane < kLines; lane++) {
    upper[lane] = lane & kHalf ? kLines + lane - kHalf : lane;
    lower[lane] = lane & kHalf ? kLines + lane : lane + kHalf;
  }
  const __m512i of_upper = _mm512_load_si512(upper), of_lower = _mm512_load_si512(lower);
#pragma GCC unroll 16
  for (int line = 0; line < kLines; line++) {
    if (line & kHalf) continue;
    const __m512i a = lines[line], b = lines[line + kHalf];
    lines[line] = _mm512_permutex2var_epi32(a, of_upper, b);
    lines[line + kHalf] = _mm512_permutex2var_epi32(a, of_lower, b);
  }
  if constexpr (kHalf > 1) transpose<kHalf / 2>(lines);
}

PPO_PAIRS static void transpose_tile(uint32_t* tile) {
  __m512i lines[kLines];
#pragma GCC unroll 16
  for (int line = 0; line < kLines; line++) lines[line] = _mm512_load_si512(tile + line * kLines);
  transpose<kLines / 2>(lines);
#pragma GCC unroll 16
  for (int line = 0; line < kLines; line++) _mm512_store_si512(tile + line * kLines, lines[line]);
}

// Units of 16 pairs, given as the first numbers and the second ones of each, or as 32 numbers in their order: to as many planes as their type
// needs, each what the planes before it leave.
template <bool kInOrder>
PPO_PAIRS static PPO_INLINE void put(__m512 x, __m512 y, uint32_t* to) {
#pragma GCC unroll 3
  for (int plane = 0; plane < 3; plane++, to += kUnits) {
    const __m256i a = rounded(x), b = rounded(y);
    if (kInOrder) _mm256_store_si256((__m256i*)to, a), _mm256_store_si256((__m256i*)to + 1, b);
    else _mm512_store_si512(to, pairs_of(a, b));
    x = _mm512_sub_ps(x, widened(a)), y = _mm512_sub_ps(y, widened(b));
  }
}

// What lies `ahead` bytes on will be read: lines are too many, or too far apart, for the processor to see. There may be nothing.
static PPO_INLINE void fetch(const void* from, int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from) + ahead));
}

// Of rows that are read side by side, how far on each the next bytes to be packed are fetched.
constexpr int64_t kAhead = 2 * kLineBytes;

// One block of sixteen rows or columns from `group` on to tiles: [planes][kLines][kLines]; what is beyond is zero.
template <typename T, bool kLeft>
PPO_PAIRS static void fill(const Operand& from, int64_t group, int64_t block, uint32_t* to) {
  const int64_t start = group * kLines, there = std::min(kLines, from.count - start), depth = block * kDepth, left = from.depth - depth;
  for (int64_t line = 0; line < kLines; line++) {
    uint32_t* out = to + line * kLines;
    if (from.along()) {
      const T* at = static_cast<const T*>(from.data) + (start + std::min(line, there - 1)) * from.stride_of_count + depth;
      fetch(at, 2 * kDepth * sizeof(T));
      const int64_t count = line < there ? left : 0;
      if constexpr (kPlanes<T> == 3) put<true>(_mm512_maskz_loadu_ps(first(count), at), _mm512_maskz_loadu_ps(first(count - 16), at + 16), out);
      else
        _mm512_store_si512(out, _mm512_maskz_loadu_epi16(count >= 32 ? ~0u : count <= 0 ? 0u : (1u << count) - 1, at));
    } else {
      const T* at = static_cast<const T*>(from.data) + (depth + std::min(2 * line, left - 1)) * from.stride_of_depth + start;
      const T* next = 2 * line + 1 < left ? at + from.stride_of_depth : at;
      fetch(at, kAhead), fetch(next, kAhead);
      const __mmask16 even = first(2 * line < left ? there : 0), odd = first(2 * line + 1 < left ? there : 0);
      if constexpr (kPlanes<T> == 3) put<false>(_mm512_maskz_loadu_ps(even, at), _mm512_maskz_loadu_ps(odd, next), out);
      else
        _mm512_store_si512(out, pairs_of(_mm256_maskz_loadu_epi16(even, at), _mm256_maskz_loadu_epi16(odd, next)));
    }
  }
  // Lines are rows or columns `along`, pairs otherwise; the left operand's are to be rows, the right one's pairs.
  if (from.along() != kLeft)
    for (int plane = 0; plane < kPlanes<T>; plane++) transpose_tile(to + plane * kUnits);
}

// Memory that starts at a line of the cache.
struct Buffer {
  Tensor memory;
  uint8_t* at;

  explicit Buffer(int64_t bytes)
      : memory(at::empty({bytes + kLineBytes}, at::kByte)),
        at(reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data_ptr()) + kLineBytes - 1) / kLineBytes * kLineBytes)) {}
};

// Groups of an operand: packed, or rows of the left one where they lie.
template <typename T, bool kLeft>
class Groups {
 public:
  // With room for so many at a time.
  Groups(const Operand& of, int64_t room)
      : of_(of), lie_(lie(of)), bytes_(of.blocks() * kPlanes<T> * kTileBytes), buffer_(lie_ ? kLines * line() : room * bytes_) {}

  bool as_they_lie() const { return lie_; }
  int64_t count() const { return of_.groups(); }
  // Bytes from a line to the next, and from a block to the next.
  int64_t line() const { return lie_ ? of_.stride_of_count * static_cast<int64_t>(sizeof(T)) : kLineBytes; }
  int64_t block() const { return lie_ ? kLineBytes : kPlanes<T> * kTileBytes; }
  // Bytes of a group.
  int64_t bytes() const { return lie_ ? kLines * line() : bytes_; }
  // Rows or columns of two groups from `group` on.
  int64_t size(int64_t group) const { return std::min(2 * kLines, of_.count - group * kLines); }
  const uint8_t* at(int64_t group) const {
    if (!lie_) return buffer_.at + (group - first_) * bytes_;
    return group == partial() ? buffer_.at : static_cast<const uint8_t*>(of_.data) + group * kLines * line();
  }

  // The groups from `begin` to `end`, in place of those that are there.
  PPO_PAIRS void pack(int64_t begin, int64_t end) {
    first_ = begin;
    pack_some(begin, end);
  }
  // Some of those that there is room for, by any thread. In the order in which they lie in memory.
  PPO_PAIRS void pack_some(int64_t begin, int64_t end) {
    if (lie_) {
      if (partial() >= begin && partial() < end) fill_up(partial());
      return;
    }
    const int64_t blocks = of_.blocks();
    const auto pack = [&](int64_t group, int64_t block) {
      fill<T, kLeft>(of_, group, block, reinterpret_cast<uint32_t*>(buffer_.at + (group - first_) * bytes_ + block * kPlanes<T> * kTileBytes));
    };
    if (of_.along()) {
      for (int64_t group = begin; group < end; group++)
        for (int64_t block = 0; block < blocks; block++) pack(group, block);
    } else {
      for (int64_t block = 0; block < blocks; block++)
        for (int64_t group = begin; group < end; group++) pack(group, block);
    }
  }

 private:
  // Lines of tiles are rows of bfloat16, which may be anywhere. Not so far apart that they share a few lines of the cache.
  static bool lie(const Operand& of) {
    const int64_t line = of.stride_of_count * static_cast<int64_t>(sizeof(T));
    return kLeft && kPlanes<T> == 1 && of.along() && of.depth % kDepth == 0 && line % kLineBytes == 0 && line % 2048 != 0 &&
           reinterpret_cast<uintptr_t>(of.data) % kLineBytes == 0;
  }
  // The last group, if rows are missing.
  int64_t partial() const { return of_.count % kLines ? of_.count / kLines : -1; }
  void fill_up(int64_t group) {
    const int64_t there = of_.count - group * kLines;
    const uint8_t* from = static_cast<const uint8_t*>(of_.data) + group * kLines * line();
    for (int64_t row = 0; row < kLines; row++) {
      if (row < there) std::memcpy(buffer_.at + row * line(), from + row * line(), of_.depth * sizeof(T));
      else std::memset(buffer_.at + row * line(), 0, of_.depth * sizeof(T));
    }
  }

  Operand of_;
  bool lie_;
  int64_t bytes_, first_ = 0;
  Buffer buffer_;
};

}  // namespace ppo::training
#endif
