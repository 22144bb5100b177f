// Products on processors that multiply tiles (AMX), which do that in bfloat16 alone, at fourteen times the speed of float32. A float32 is
// the sum of three bfloat16, so a product of float32 is six of them, the smallest three being left out: numbers as exact as float32's own, in
// half the time (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// 2019, section II), between 1e-33 and 3.3e38: tiles take what is smaller than 1e-38 for zero, and what is infinite becomes NaN. In bfloat16
// it is faster than oneDNN in that each operand is packed once and that float32 results are not rounded on their way.
#include "instructions.h"
#include "tiles.h"
#include "training.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define PPO_TILED __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace ppo::training {

// A tile has kLines lines of kLines units; a unit holds two neighbours of the dimension that is summed over. Of the left operand a line is a
// row, of the right one it is a pair, as tdpbf16ps wants them.
constexpr int64_t kLines = 16, kUnits = kLines * kLines, kDepth = 2 * kLines;
// Packed columns of the wider operand that a thread multiplies at a time: with a tile of the other they stay in its L2 cache.
constexpr int64_t kBytes = 1024 * 1024;
// Of the dimension that is summed over, what is multiplied at a time: two groups of the narrower operand stay in that cache, too, beside some
// of the wider one, and a chain of sums that is not longer rounds less.
constexpr int64_t slice_of(at::ScalarType type) { return type == at::kFloat ? 640 : 2048; }

typedef uint32_t Units __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

PPO_TILED static inline __mmask16 first(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

// Lines become columns, in four rounds over ever smaller squares.
template <int kHalf>
PPO_TILED static PPO_INLINE void transpose(__m512i (&lines)[kLines]) {
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

PPO_TILED static void transpose_tile(uint32_t* tile) {
  __m512i lines[kLines];
#pragma GCC unroll 16
  for (int line = 0; line < kLines; line++) lines[line] = _mm512_load_si512(tile + line * kLines);
  transpose<kLines / 2>(lines);
#pragma GCC unroll 16
  for (int line = 0; line < kLines; line++) _mm512_store_si512(tile + line * kLines, lines[line]);
}

// One operand: `count` rows or columns of the result, over the dimension `depth` that is summed over. Numbers of one of the two are neighbours
// in memory.
struct Operand {
  const void* data;
  int64_t count, depth, stride_of_count, stride_of_depth;

  Operand(const Tensor& matrix)
      : data(matrix.data_ptr()), count(matrix.size(0)), depth(matrix.size(1)), stride_of_count(matrix.stride(0)),
        stride_of_depth(matrix.stride(1)) {}
  bool reads() const { return stride_of_depth == 1 || stride_of_count == 1; }
  bool along() const { return stride_of_depth == 1; }
  int64_t groups() const { return (count + kLines - 1) / kLines; }
  int64_t blocks() const { return (depth + kDepth - 1) / kDepth; }
};

PPO_TILED static inline Units units_of(__m256i halves) { return __builtin_convertvector((Halves)halves, Units); }
PPO_TILED static inline __m512i pairs_of(__m256i even, __m256i odd) { return (__m512i)(units_of(even) | units_of(odd) << 16); }
PPO_TILED static inline __m512 widened(__m256i halves) { return (__m512)(units_of(halves) << 16); }
PPO_TILED static inline __m256i rounded(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

// Units of 16 pairs, given as the first numbers and the second ones of each, or as 32 numbers in their order: to as many planes as their type
// needs, each what the planes before it leave.
template <bool kInOrder>
PPO_TILED static PPO_INLINE void put(__m512 x, __m512 y, uint32_t* to) {
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

// Sixteen rows or columns from `group` on to tiles: [blocks][planes][kLines][kLines]; what is beyond is zero.
template <typename T, bool kLeft>
PPO_TILED static void fill(const Operand& from, int64_t group, uint32_t* to) {
  constexpr int kPlanes = sizeof(T) == 4 ? 3 : 1;
  const int64_t start = group * kLines, there = std::min(kLines, from.count - start);
  for (int64_t block = 0; block < from.blocks(); block++, to += kPlanes * kUnits) {
    const int64_t depth = block * kDepth, left = from.depth - depth;
    for (int64_t line = 0; line < kLines; line++) {
      uint32_t* out = to + line * kLines;
      if (from.along()) {
        const T* at = static_cast<const T*>(from.data) + (start + std::min(line, there - 1)) * from.stride_of_count + depth;
        fetch(at, 2 * kDepth * sizeof(T));
        const int64_t count = line < there ? left : 0;
        if constexpr (kPlanes == 3) put<true>(_mm512_maskz_loadu_ps(first(count), at), _mm512_maskz_loadu_ps(first(count - 16), at + 16), out);
        else
          _mm512_store_si512(out, _mm512_maskz_loadu_epi16(count >= 32 ? ~0u : count <= 0 ? 0u : (1u << count) - 1, at));
      } else {
        const T* at = static_cast<const T*>(from.data) + (depth + std::min(2 * line, left - 1)) * from.stride_of_depth + start;
        const T* next = 2 * line + 1 < left ? at + from.stride_of_depth : at;
        const int64_t ahead = kDepth * from.stride_of_depth * sizeof(T);
        fetch(at, ahead), fetch(next, ahead);
        const __mmask16 even = first(2 * line < left ? there : 0), odd = first(2 * line + 1 < left ? there : 0);
        if constexpr (kPlanes == 3) put<false>(_mm512_maskz_loadu_ps(even, at), _mm512_maskz_loadu_ps(odd, next), out);
        else
          _mm512_store_si512(out, pairs_of(_mm256_maskz_loadu_epi16(even, at), _mm256_maskz_loadu_epi16(odd, next)));
      }
    }
    // Lines are rows or columns `along`, pairs otherwise; the left operand's are to be rows, the right one's pairs.
    if (from.along() != kLeft)
      for (int plane = 0; plane < kPlanes; plane++) transpose_tile(to + plane * kUnits);
  }
}

// A plane of two groups of an operand, to its two tiles.
PPO_TILED static PPO_INLINE void load_left(const uint32_t* const (&a)[2], int plane) {
  tiles::load<4>(a[0] + plane * kUnits, 64), tiles::load<5>(a[1] + plane * kUnits, 64);
}
PPO_TILED static PPO_INLINE void load_right(const uint32_t* const (&b)[2], int plane) {
  tiles::load<6>(b[0] + plane * kUnits, 64), tiles::load<7>(b[1] + plane * kUnits, 64);
}

// c [32, 32] = two groups of the left operand times two of the right one. It starts from nothing, whatever it is added to: a long chain onto
// a large sum would round each of its numbers to what the sum holds.
template <int kPlanes>
PPO_TILED static void multiply(const uint32_t* a0, const uint32_t* a1, const uint32_t* b0, const uint32_t* b1, int64_t blocks, float* c,
                               int64_t stride) {
  const uint32_t *a[2] = {a0, a1}, *b[2] = {b0, b1};
  const int64_t bytes = stride * sizeof(float);
  tiles::zero<0>(), tiles::zero<1>(), tiles::zero<2>(), tiles::zero<3>();
  for (int64_t block = 0; block < blocks; block++) {
    if constexpr (kPlanes == 1) {
      load_left(a, 0), load_right(b, 0), tiles::multiply_square();
    } else {
      // Small products first, and each couple of planes one load from the one before.
      load_left(a, 2), load_right(b, 0), tiles::multiply_square();
      load_left(a, 1), tiles::multiply_square();
      load_right(b, 1), tiles::multiply_square();
      load_left(a, 0), tiles::multiply_square();
      load_right(b, 2), tiles::multiply_square();
      load_right(b, 0), tiles::multiply_square();
    }
    a[0] += kPlanes * kUnits, a[1] += kPlanes * kUnits, b[0] += kPlanes * kUnits, b[1] += kPlanes * kUnits;
  }
  tiles::store<0>(c, bytes), tiles::store<1>(c + kLines, bytes);
  tiles::store<2>(c + kLines * stride, bytes), tiles::store<3>(c + kLines * stride + kLines, bytes);
}

// Groups of an operand, packed.
struct Packed {
  int64_t size;  // units of a group
  uint32_t* units;

  uint32_t* at(int64_t group) const { return units + group * size; }
};

// What was multiplied, to a part of the result, or added to it.
template <typename R>
PPO_TILED static void take(const float (&from)[32][32], bool add, R* to, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; row++, to += stride)
    for (int64_t at = 0; at < columns; at += 16) {
      const __mmask16 there = first(columns - at);
      __m512 sum = _mm512_loadu_ps(from[row] + at);
      if constexpr (sizeof(R) == 4) {
        if (add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(there, to + at));
        _mm512_mask_storeu_ps(to + at, there, sum);
      } else {
        if (add) sum = _mm512_add_ps(sum, widened(_mm256_maskz_loadu_epi16(there, to + at)));
        _mm256_mask_storeu_epi16(to + at, there, rounded(sum));
      }
    }
}

template <typename T, typename R>
static void run(const Operand& a, const Operand& b, bool add, R* result, int64_t stride) {
  constexpr int kPlanes = sizeof(T) == 4 ? 3 : 1;
  const int64_t blocks = a.blocks(), size = blocks * kPlanes * kUnits;
  const auto buffer = [&](int64_t groups) { return at::empty({groups * size + kLines}, at::kInt); };
  const auto packed = [&](const Tensor& units) {
    const uintptr_t at = (reinterpret_cast<uintptr_t>(units.data_ptr()) + 63) / 64 * 64;
    return Packed{size, reinterpret_cast<uint32_t*>(at)};
  };
  // The narrower operand is packed whole, the wider one a few columns at a time by whoever multiplies them.
  const bool left_is_wide = a.count > b.count;
  const Operand &wide = left_is_wide ? a : b, &narrow = left_is_wide ? b : a;
  const Tensor narrow_units = buffer(narrow.groups());
  const Packed of_narrow = packed(narrow_units);
  at::parallel_for(0, narrow.groups(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; group++)
      left_is_wide ? fill<T, false>(narrow, group, of_narrow.at(group)) : fill<T, true>(narrow, group, of_narrow.at(group));
  });
  const int64_t couples = (wide.groups() + 1) / 2;
  at::parallel_for(0, couples, 1, [&](int64_t begin, int64_t end) {
    const int64_t together = std::clamp<int64_t>(kBytes / (2 * size * 4), 1, end - begin);
    const Tensor wide_units = buffer(2 * together);
    const Packed of_wide = packed(wide_units);
    alignas(64) float sums[32][32];
    tiles::begin();
    for (int64_t from = begin; from < end; from += together) {
      const int64_t until = std::min(from + together, end), groups = std::min(2 * until, wide.groups());
      for (int64_t group = 2 * from; group < groups; group++)
        left_is_wide ? fill<T, true>(wide, group, of_wide.at(group - 2 * from)) : fill<T, false>(wide, group, of_wide.at(group - 2 * from));
      for (int64_t n = 0; n < narrow.groups(); n += 2)
        for (int64_t w = 2 * from; w < groups; w += 2) {
          // A group that has no neighbour is multiplied twice, and the second result left.
          const uint32_t *n0 = of_narrow.at(n), *n1 = n + 1 < narrow.groups() ? of_narrow.at(n + 1) : n0;
          const uint32_t *w0 = of_wide.at(w - 2 * from), *w1 = w + 1 < groups ? of_wide.at(w + 1 - 2 * from) : w0;
          const int64_t row = (left_is_wide ? w : n) * kLines, column = (left_is_wide ? n : w) * kLines;
          const int64_t rows = std::min<int64_t>(32, a.count - row), columns = std::min<int64_t>(32, b.count - column);
          const uint32_t *a0 = left_is_wide ? w0 : n0, *a1 = left_is_wide ? w1 : n1, *b0 = left_is_wide ? n0 : w0, *b1 = left_is_wide ? n1 : w1;
          R* to = result + row * stride + column;
          const bool whole = rows == 32 && columns == 32;
          if constexpr (sizeof(R) == 4)
            if (whole && !add) {
              multiply<kPlanes>(a0, a1, b0, b1, blocks, to, stride);
              continue;
            }
          if (add)
            for (int64_t line = 0; line < rows; line++) fetch(to + line * stride, 0), fetch(to + line * stride, 64);
          multiply<kPlanes>(a0, a1, b0, b1, blocks, &sums[0][0], 32);
          take(sums, add, to, stride, rows, columns);
        }
    }
    tiles::end();
  });
}

// Of a long dimension, as much as is multiplied before the sums go back to memory, in float32.
static void run_slices(const Tensor& a, const Tensor& b, bool add, const Tensor& result) {
  const int64_t depth = a.size(1), most = slice_of(a.scalar_type()), slices = (depth + most - 1) / most;
  for (int64_t slice = 0; slice < slices; slice++) {
    const int64_t start = depth * slice / slices, end = depth * (slice + 1) / slices;
    const Operand left(a.slice(1, start, end)), right(b.slice(1, start, end));
    const bool onto = add || slice > 0;
    if (a.scalar_type() == at::kFloat) run<float, float>(left, right, onto, data<float>(result), result.stride(0));
    else if (result.scalar_type() == at::kFloat) run<uint16_t, float>(left, right, onto, data<float>(result), result.stride(0));
    else run<uint16_t, uint16_t>(left, right, onto, static_cast<uint16_t*>(result.data_ptr()), result.stride(0));
  }
}

bool is_tiled(const Tensor& a, const Tensor& b) {
  static const bool able = instructions() == Instructions::kAmx;
  // What has only a few rows is read once either way.
  constexpr int64_t kMany = 32;
  return able && a.device().is_cpu() && a.scalar_type() == b.scalar_type() &&
         (a.scalar_type() == at::kFloat || a.scalar_type() == at::kBFloat16) && Operand(a).reads() && Operand(b).reads() &&
         std::min({a.size(0), b.size(0), a.size(1)}) >= kMany;
}

bool tile_product_into(const Tensor& a, const Tensor& b, bool add, const Tensor& result) {
  if (!is_tiled(a, b) || result.stride(1) != 1 || (result.scalar_type() != at::kFloat && result.scalar_type() != a.scalar_type())) return false;
  TORCH_CHECK(a.size(1) == b.size(1) && result.size(0) == a.size(0) && result.size(1) == b.size(0), "a product of ", a.sizes(), " and ",
              b.sizes(), " transposed to ", result.sizes());
  if (a.size(1) > slice_of(a.scalar_type()) && result.scalar_type() != at::kFloat) {
    const Tensor sums = add ? result.to(at::kFloat) : at::empty(result.sizes(), result.options().dtype(at::kFloat));
    run_slices(a, b, add, sums);
    result.copy_(sums);
  } else {
    run_slices(a, b, add, result);
  }
  return true;
}

}  // namespace ppo::training

#else
namespace ppo::training {
bool is_tiled(const Tensor&, const Tensor&) { return false; }
bool tile_product_into(const Tensor&, const Tensor&, bool, const Tensor&) { return false; }
}  // namespace ppo::training
#endif
