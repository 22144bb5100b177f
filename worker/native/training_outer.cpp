// Products of bfloat16 to float32. The gradient of a weight is added to the float32 buffer that it gathers in: libtorch's product would
// round it to bfloat16 on its way and add it in a pass of its own, which for an output projection takes as long as the product. And logits,
// which libtorch's product would round, too.
#include "instructions.h"
#include "pairs.h"
#include "training.h"

#if defined(__x86_64__)
namespace ppo::training {

// A product runs over pairs of rows: a unit holds the same column of two rows, as vdpbf16ps wants it. `a` is cut into tiles of kRows
// columns, `b` into panels of kColumns; each of them is [pairs][its columns] of units.
constexpr int64_t kRows = 12, kColumns = 32;
// Rows that are multiplied before the sums go back to memory. A panel of them stays in the outer cache.
constexpr int64_t kDepth = 1024;

// Whether this processor multiplies pairs itself. Of one that multiplies tiles, too, they were taken before this (training_tiles.cpp).
static bool multiplies_pairs() { return instructions() >= Instructions::kAvx512Bf16; }

// `count` columns of `rows` rows (of `width` elements) to [pairs][block] units; what is beyond is zero.
PPO_PAIRS static void pair_up(const uint16_t* from, int64_t width, int64_t rows, int64_t count, int64_t block, uint32_t* to) {
  for (int64_t row = 0; row < rows; row += 2, to += block)
    for (int64_t at = 0; at < block; at += 16) {
      const __mmask16 there = first(count - at);
      const uint16_t* upper = from + row * width + at;
      const __m256i even = _mm256_maskz_loadu_epi16(there, upper);
      const __m256i odd = row + 1 < rows ? _mm256_maskz_loadu_epi16(there, upper + width) : _mm256_setzero_si256();
      _mm512_mask_storeu_epi32(to + at, first(block - at), pairs_of(even, odd));
    }
}

// The same of columns that lie one after the other, `width` elements apart: two elements of one are a unit as they are.
static void line_up(const uint16_t* from, int64_t width, int64_t rows, int64_t count, int64_t block, uint32_t* to) {
  constexpr int64_t kLine = 16;  // units of a column that are read at a time: a cache line
  const int64_t whole = rows / 2;
  for (int64_t start = 0; start < whole; start += kLine) {
    const int64_t end = std::min(start + kLine, whole);
    for (int64_t column = 0; column < count; column++)
      for (int64_t pair = start; pair < end; pair++)
        std::memcpy(to + pair * block + column, from + column * width + 2 * pair, sizeof(uint32_t));
  }
  if (rows % 2)
    for (int64_t column = 0; column < count; column++) to[whole * block + column] = from[column * width + rows - 1];
  for (int64_t pair = 0; pair < (rows + 1) / 2; pair++)
    for (int64_t column = count; column < block; column++) to[pair * block + column] = 0;
}

// c [rows, columns] += or = tile transposed times panel.
PPO_PAIRS static void multiply_tile(const uint32_t* tile, const uint32_t* panel, int64_t pairs, float* c, int64_t width, int64_t rows,
                                    int64_t columns, bool add) {
  for (int64_t r = 0; r < rows; r++) {
    __builtin_prefetch(c + r * width, 1);
    __builtin_prefetch(c + r * width + 16, 1);
  }
  __m512 sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < pairs; pair++, tile += kRows, panel += kColumns) {
    const __m512bh left = (__m512bh)_mm512_loadu_si512(panel), right = (__m512bh)_mm512_loadu_si512(panel + 16);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; r++) {
      const __m512bh unit = (__m512bh)_mm512_set1_epi32(static_cast<int>(tile[r]));
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], unit, left);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], unit, right);
    }
  }
  const __mmask16 left = first(columns), right = first(columns - 16);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; r++) {
    if (r >= rows) continue;
    float* to = c + r * width;
    if (add) {
      sum[r][0] = _mm512_add_ps(sum[r][0], _mm512_maskz_loadu_ps(left, to));
      sum[r][1] = _mm512_add_ps(sum[r][1], _mm512_maskz_loadu_ps(right, to + 16));
    }
    _mm512_mask_storeu_ps(to, left, sum[r][0]);
    _mm512_mask_storeu_ps(to + 16, right, sum[r][1]);
  }
}

// One side of a product: its columns, over the dimension that both sides have. It lies as [depth, columns], or `along` that dimension, as
// [columns, depth].
struct Side {
  Tensor matrix;
  bool along;

  int64_t columns() const { return matrix.size(along ? 0 : 1); }
  int64_t depth() const { return matrix.size(along ? 1 : 0); }
};

// Columns in blocks, with room for every block's pairs.
struct Paired {
  int64_t block, blocks, pairs;
  Tensor units;

  Paired(const Side& of, int64_t rows, int64_t block)
      : block(block), blocks((of.columns() + block - 1) / block), pairs((rows + 1) / 2),
        units(at::empty({blocks * pairs * block}, of.matrix.options().dtype(at::kInt))) {}
  uint32_t* at(int64_t number) const { return static_cast<uint32_t*>(units.data_ptr()) + number * pairs * block; }
  void fill(const Side& from, int64_t start, int64_t rows, int64_t number) const {
    const int64_t width = from.matrix.size(1), column = number * block, count = std::min(block, from.columns() - column);
    const uint16_t* data = static_cast<const uint16_t*>(from.matrix.data_ptr());
    if (from.along) line_up(data + column * width + start, width, rows, count, block, at(number));
    else pair_up(data + start * width + column, width, rows, count, block, at(number));
  }
};

// Answers false, and does nothing, where there is nothing to multiply, or the result's rows are no rows of memory. A number of the result
// is one chain of sums over the depth, whatever else is computed beside it.
static bool multiply(const Side& a, const Side& b, bool add, const Tensor& result) {
  const int64_t all = a.depth(), height = result.size(0), width = result.size(1), stride = result.stride(0);
  if (!all || result.stride(1) != 1) return false;
  const int64_t steps = (all + kDepth - 1) / kDepth;
  for (int64_t step = 0; step < steps; step++) {
    const int64_t start = all * step / steps, rows = all * (step + 1) / steps - start;
    const Paired tiles(a, rows, kRows), panels(b, rows, kColumns);
    at::parallel_for(0, tiles.blocks + panels.blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t number = begin; number < end; number++) {
        if (number < tiles.blocks) tiles.fill(a, start, rows, number);
        else panels.fill(b, start, rows, number - tiles.blocks);
      }
    });
    const bool onto = add || step > 0;
    at::parallel_for(0, tiles.blocks * panels.blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t place = begin; place < end; place++) {
        const int64_t panel = place / tiles.blocks, tile = place % tiles.blocks;
        float* c = data<float>(result) + tile * kRows * stride + panel * kColumns;
        multiply_tile(tiles.at(tile), panels.at(panel), tiles.pairs, c, stride, std::min(kRows, height - tile * kRows),
                      std::min(kColumns, width - panel * kColumns), onto);
      }
    });
  }
  return true;
}

static bool are_for_this(const Tensor& operand, const Tensor& result) {
  static const bool able = multiplies_pairs();
  return able && operand.scalar_type() == at::kBFloat16 && result.scalar_type() == at::kFloat && operand.device().is_cpu();
}

bool outer_product_into(const Tensor& outer, const Tensor& inner, bool add, const Tensor& result) {
  return are_for_this(outer, result) && multiply({outer.contiguous(), false}, {inner.contiguous(), false}, add, result);
}

bool inner_product_into(const Tensor& a, const Tensor& b, const Tensor& result) {
  return are_for_this(a, result) && multiply({a.contiguous(), true}, {b.contiguous(), true}, false, result);
}

}  // namespace ppo::training

#else
namespace ppo::training {
bool outer_product_into(const Tensor&, const Tensor&, bool, const Tensor&) { return false; }
bool inner_product_into(const Tensor&, const Tensor&, const Tensor&) { return false; }
}  // namespace ppo::training
#endif
