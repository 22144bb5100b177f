// Products on processors that multiply tiles (AMX), which do that in bfloat16 alone, at fourteen times the speed of float32. A float32 is
// the sum of three bfloat16, so a product of float32 is six of them, the smallest three being left out: numbers as exact as float32's own, in
// half the time (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// 2019, section II), between 1e-33 and 3.3e38: tiles take what is smaller than 1e-38 for zero, and what is infinite becomes NaN. In bfloat16
// it is faster than oneDNN in that an operand is packed once or not at all and that float32 results are not rounded on their way.
#include "instructions.h"
#include "training_operand.h"

#if defined(__x86_64__)
namespace ppo::training {

// Packed columns of the wider operand that a thread multiplies at a time: with some of the other they stay in its outer cache.
constexpr int64_t kBytes = 768 * 1024;
// Of the dimension that is summed over, what is multiplied before the sums go back to memory: a chain of sums that is not longer rounds less,
// and two groups stay in that cache.
constexpr int64_t slice_of(at::ScalarType type) { return type == at::kFloat ? 640 : 2048; }
// Of that in bfloat16, blocks of which two groups of the narrower operand stay in the inner cache while the wider one's go by, and sums wait in
// the outer one. The six products of a block in float32 take longer than its way from there.
template <typename T>
constexpr int64_t kBlocks = kPlanes<T> == 1 ? 9 : INT64_MAX / 2;
constexpr int64_t kSums = 4 * kUnits;

// What is multiplied next by the same columns, which comes from farther away than they do: some lines of it, again and again, on the way.
struct Ahead {
  const uint8_t *at, *end;

  PPO_INLINE void fetch_some() {
    if (at >= end) return;
#pragma GCC unroll 4
    for (int line = 0; line < 4; line++, at += kLineBytes) __builtin_prefetch(at, 0, 2);
  }
};

// sums [2, 2, 16, 16] = or += two groups of the left operand times two of the right one, over some blocks. A chain of them starts from nothing,
// whatever the result is added to: onto a large sum each of its numbers would be rounded to what the sum holds.
template <typename T>
PPO_PAIRS static void multiply(const Groups<T, true>& left, const uint8_t* a0, const uint8_t* a1, const Groups<T, false>& right,
                               const uint8_t* b0, const uint8_t* b1, int64_t blocks, bool onto, float* sums,
                               Ahead& ahead) {
  const int64_t line = left.line();
  const auto load_left = [&](int plane) __attribute__((always_inline)) {
    tiles::load<4>(a0 + plane * kTileBytes, line), tiles::load<5>(a1 + plane * kTileBytes, line);
  };
  const auto load_right = [&](int plane) __attribute__((always_inline)) {
    tiles::load<6>(b0 + plane * kTileBytes, kLineBytes), tiles::load<7>(b1 + plane * kTileBytes, kLineBytes);
  };
  if (onto) {
    tiles::load<0>(sums, kLineBytes), tiles::load<1>(sums + kUnits, kLineBytes);
    tiles::load<2>(sums + 2 * kUnits, kLineBytes), tiles::load<3>(sums + 3 * kUnits, kLineBytes);
  } else {
    tiles::zero<0>(), tiles::zero<1>(), tiles::zero<2>(), tiles::zero<3>();
  }
  for (int64_t block = 0; block < blocks; block++) {
    ahead.fetch_some();
    if constexpr (kPlanes<T> == 1) {
      load_left(0), load_right(0), tiles::multiply_square();
    } else {
      // Small products first, and each couple of planes one load from the one before.
      load_left(2), load_right(0), tiles::multiply_square();
      load_left(1), tiles::multiply_square();
      load_right(1), tiles::multiply_square();
      load_left(0), tiles::multiply_square();
      load_right(2), tiles::multiply_square();
      load_right(0), tiles::multiply_square();
    }
    a0 += left.block(), a1 += left.block(), b0 += right.block(), b1 += right.block();
  }
  tiles::store<0>(sums, kLineBytes), tiles::store<1>(sums + kUnits, kLineBytes);
  tiles::store<2>(sums + 2 * kUnits, kLineBytes), tiles::store<3>(sums + 3 * kUnits, kLineBytes);
}

// Where a product goes: rows of memory, `stride` numbers apart.
template <typename R>
struct Result {
  R* data;
  int64_t stride;
  bool add;

  R* at(int64_t row, int64_t column) const { return data + row * stride + column; }
};

// What is to be added to, read while something else is multiplied.
template <typename R>
static PPO_INLINE void expect(const Result<R>& result, const R* to, int64_t rows) {
  for (int64_t row = 0; row < rows; row++, to += result.stride) {
    fetch(to, 0);
    if constexpr (sizeof(R) == 4) fetch(to, kLineBytes);
  }
}

// The sums to `rows` by `columns` of the result, or added to them.
template <typename R>
PPO_PAIRS static void take(const float* sums, const Result<R>& result, R* to, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; row++, to += result.stride)
    for (int64_t half = 0; half * kLines < columns; half++) {
      const __mmask16 there = first(columns - half * kLines);
      R* out = to + half * kLines;
      __m512 sum = _mm512_load_ps(sums + (row / kLines * 2 + half) * kUnits + row % kLines * kLines);
      if constexpr (sizeof(R) == 4) {
        if (result.add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(there, out));
        _mm512_mask_storeu_ps(out, there, sum);
      } else {
        if (result.add) sum = _mm512_add_ps(sum, widened(_mm256_maskz_loadu_epi16(there, out)));
        _mm256_mask_storeu_epi16(out, there, rounded(sum));
      }
    }
}

// Two groups of the narrower operand, from `n` on, times groups of the wider one.
template <typename T, typename R, bool kLeftIsWide>
static void sweep(const Groups<T, !kLeftIsWide>& narrow, int64_t n, const Groups<T, kLeftIsWide>& wide, int64_t begin, int64_t end,
                  int64_t blocks, float* sums, const Result<R>& result) {
  const int64_t parts = std::max<int64_t>(1, (blocks + kBlocks<T> / 2) / kBlocks<T>);
  Ahead ahead = n + 2 < narrow.count() ? Ahead{narrow.at(n + 2), narrow.at(n + 2) + 2 * narrow.bytes()} : Ahead{};
  for (int64_t part = 0; part < parts; part++) {
    const int64_t start = blocks * part / parts, count = blocks * (part + 1) / parts - start;
    // A group that has no neighbour is multiplied twice, and the second result left.
    const auto pieces = [start](const auto& groups, int64_t group) {
      const int64_t at = start * groups.block(), next = std::min(group + 1, groups.count() - 1);
      return std::pair(groups.at(group) + at, groups.at(next) + at);
    };
    const auto [n0, n1] = pieces(narrow, n);
    for (int64_t w = begin; w < end; w += 2) {
      const auto [w0, w1] = pieces(wide, w);
      float* sum = parts == 1 ? sums : sums + (w - begin) / 2 * kSums;
      const int64_t rows = kLeftIsWide ? wide.size(w) : narrow.size(n), columns = kLeftIsWide ? narrow.size(n) : wide.size(w);
      R* to = result.at((kLeftIsWide ? w : n) * kLines, (kLeftIsWide ? n : w) * kLines);
      const bool last = part + 1 == parts;
      if (last && result.add) expect(result, to, rows);
      if constexpr (kLeftIsWide) multiply<T>(wide, w0, w1, narrow, n0, n1, count, part > 0, sum, ahead);
      else multiply<T>(narrow, n0, n1, wide, w0, w1, count, part > 0, sum, ahead);
      if (last) take(sum, result, to, rows, columns);
    }
  }
}

// The narrower operand is packed whole, the wider one a few columns at a time by whoever multiplies them.
template <typename T, typename R, bool kLeftIsWide>
static void run(const Operand& wider, const Operand& narrower, const Result<R>& result) {
  Groups<T, !kLeftIsWide> narrow(narrower, narrower.groups());
  if (narrow.as_they_lie()) {
    narrow.pack(0, narrow.count());
  } else {
    at::parallel_for(0, narrow.count(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; group++) narrow.pack(group);
    });
  }
  const int64_t couples = (wider.groups() + 1) / 2, blocks = wider.blocks();
  const int64_t couple_bytes = 2 * blocks * kPlanes<T> * kTileBytes;
  at::parallel_for(0, couples, 1, [&](int64_t begin, int64_t end) {
    const int64_t turns = std::max<int64_t>(1, ((end - begin) * couple_bytes + kBytes / 2) / kBytes), together = (end - begin + turns - 1) / turns;
    Groups<T, kLeftIsWide> wide(wider, 2 * together);
    const Buffer sums(together * kSums * sizeof(float));
    tiles::begin();
    for (int64_t from = 2 * begin; from < 2 * end; from += 2 * together) {
      const int64_t until = std::min({from + 2 * together, 2 * end, wide.count()});
      wide.pack(from, until);
      for (int64_t n = 0; n < narrow.count(); n += 2)
        sweep<T, R, kLeftIsWide>(narrow, n, wide, from, until, blocks, reinterpret_cast<float*>(sums.at), result);
    }
    tiles::end();
  });
}

template <typename T, typename R>
static void run(const Tensor& a, const Tensor& b, bool add, const Tensor& result) {
  const Operand left(a), right(b);
  const Result<R> to{static_cast<R*>(result.data_ptr()), result.stride(0), add};
  if (left.count > right.count) run<T, R, true>(left, right, to);
  else run<T, R, false>(right, left, to);
}

// Of a long dimension, as much as is multiplied before the sums go back to memory, in float32.
static void run_slices(const Tensor& a, const Tensor& b, bool add, const Tensor& result) {
  const int64_t depth = a.size(1), most = slice_of(a.scalar_type()), slices = (depth + most - 1) / most;
  const auto bound = [&](int64_t slice) { return slice == slices ? depth : depth * slice / slices / kDepth * kDepth; };
  for (int64_t slice = 0; slice < slices; slice++) {
    const Tensor left = a.slice(1, bound(slice), bound(slice + 1)), right = b.slice(1, bound(slice), bound(slice + 1));
    const bool onto = add || slice > 0;
    if (a.scalar_type() == at::kFloat) run<float, float>(left, right, onto, result);
    else if (result.scalar_type() == at::kFloat) run<uint16_t, float>(left, right, onto, result);
    else run<uint16_t, uint16_t>(left, right, onto, result);
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
