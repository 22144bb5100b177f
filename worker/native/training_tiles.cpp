// Products on processors that multiply tiles (AMX), which do that in bfloat16 alone, at fourteen times the speed of float32. A float32 is
// the sum of three bfloat16, so a product of float32 is six of them, the smallest three being left out: numbers as exact as float32's own, in
// half the time (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// 2019, section II), between 1e-33 and 3.3e38: tiles take what is smaller than 1e-38 for zero, and what is infinite becomes NaN. In bfloat16
// it is faster than oneDNN in that an operand is packed once or not at all and that float32 results are not rounded on their way.
#include "instructions.h"
#include "training_operand.h"

#if defined(__x86_64__)
namespace ppo::training {

// What a thread packs and multiplies at a time of an operand that is not the common one: with some of that it stays in its outer cache.
constexpr int64_t kBytes = 768 * 1024;
// Of the dimension that is summed over, what is multiplied before the sums go back to memory: a chain of sums that is not longer rounds less,
// and two groups stay in that cache.
constexpr int64_t slice_of(at::ScalarType type) { return type == at::kFloat ? 640 : 2048; }
// Of that in bfloat16, blocks of which two groups of the common operand stay in the inner cache while the other's go by, and sums wait in the
// outer one. The six products of a block in float32 take longer than its way from there.
template <typename T>
constexpr int64_t kBlocks = kPlanes<T> == 1 ? 9 : INT64_MAX / 2;
constexpr int64_t kSums = 4 * kUnits;
// What the common operand of several products may take, which is packed whole. Products of a larger one are made one after the other.
constexpr int64_t kCommonBytes = 64 << 20;

// What is multiplied next by the same columns, which comes from farther away than they do: some bytes of it at each of so many blocks.
struct Ahead {
  const uint8_t *at = nullptr, *end = nullptr;
  int64_t some = 0;

  Ahead() = default;
  Ahead(const uint8_t* from, int64_t bytes, int64_t blocks) : at(from), end(from + bytes), some((bytes + blocks - 1) / blocks) {}

  PPO_INLINE void fetch_some() {
    for (const uint8_t* until = std::min(end, at + some); at < until; at += kLineBytes) __builtin_prefetch(at, 0, 2);
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

// An operand that another is multiplied by, and where their product goes.
template <typename R>
struct Other {
  Operand operand;
  Result<R> result;

  int64_t couples() const { return (operand.groups() + 1) / 2; }
};

// Two groups of the common operand, from `c` on, times groups of another.
template <typename T, typename R, bool kLeftIsCommon>
static void sweep(const Groups<T, kLeftIsCommon>& common, int64_t c, const Groups<T, !kLeftIsCommon>& other, int64_t begin, int64_t end,
                  int64_t blocks, float* sums, const Result<R>& result) {
  const int64_t parts = std::max<int64_t>(1, (blocks + kBlocks<T> / 2) / kBlocks<T>);
  Ahead ahead;
  // Of rows that lie where a slice of each is multiplied, what comes next is no piece of memory.
  const bool is_piece = !common.as_they_lie() || common.line() == blocks * kLineBytes;
  if (is_piece && c + 2 < common.count()) ahead = Ahead(common.at(c + 2), 2 * common.bytes(), (end - begin + 1) / 2 * blocks);
  for (int64_t part = 0; part < parts; part++) {
    const int64_t start = blocks * part / parts, count = blocks * (part + 1) / parts - start;
    // A group that has no neighbour is multiplied twice, and the second result left.
    const auto pieces = [start](const auto& groups, int64_t group) {
      const int64_t at = start * groups.block(), next = std::min(group + 1, groups.count() - 1);
      return std::pair(groups.at(group) + at, groups.at(next) + at);
    };
    const auto [c0, c1] = pieces(common, c);
    for (int64_t o = begin; o < end; o += 2) {
      const auto [o0, o1] = pieces(other, o);
      float* sum = parts == 1 ? sums : sums + (o - begin) / 2 * kSums;
      const int64_t rows = kLeftIsCommon ? common.size(c) : other.size(o), columns = kLeftIsCommon ? other.size(o) : common.size(c);
      R* to = result.at((kLeftIsCommon ? c : o) * kLines, (kLeftIsCommon ? o : c) * kLines);
      const bool last = part + 1 == parts;
      if (last && result.add) expect(result, to, rows);
      if constexpr (kLeftIsCommon) multiply<T>(common, c0, c1, other, o0, o1, count, part > 0, sum, ahead);
      else multiply<T>(other, o0, o1, common, c0, c1, count, part > 0, sum, ahead);
      if (last) take(sum, result, to, rows, columns);
    }
  }
}

// A thread's share of another operand, from one couple of groups to another: packed some at a time, and multiplied by all of the common one.
template <typename T, typename R, bool kLeftIsCommon>
static void run_share(const Groups<T, kLeftIsCommon>& common, const Other<R>& other, int64_t begin, int64_t end) {
  const int64_t blocks = other.operand.blocks(), couple_bytes = 2 * blocks * kPlanes<T> * kTileBytes;
  const int64_t turns = std::max<int64_t>(1, ((end - begin) * couple_bytes + kBytes / 2) / kBytes), together = (end - begin + turns - 1) / turns;
  Groups<T, !kLeftIsCommon> groups(other.operand, 2 * together);
  const Buffer sums(together * kSums * sizeof(float));
  for (int64_t from = 2 * begin; from < 2 * end; from += 2 * together) {
    const int64_t until = std::min({from + 2 * together, 2 * end, groups.count()});
    groups.pack(from, until);
    for (int64_t c = 0; c < common.count(); c += 2)
      sweep<T, R, kLeftIsCommon>(common, c, groups, from, until, blocks, reinterpret_cast<float*>(sums.at), other.result);
  }
}

// The common operand is packed whole and once. Threads share the couples of all others evenly, whichever they are of.
template <typename T, typename R, bool kLeftIsCommon>
static void run_all(const Operand& operand, const std::vector<Other<R>>& others) {
  Groups<T, kLeftIsCommon> common(operand, operand.groups());
  if (common.as_they_lie()) common.pack(0, common.count());
  else at::parallel_for(0, common.count(), 1, [&](int64_t begin, int64_t end) { common.pack_some(begin, end); });
  int64_t couples = 0;
  for (const auto& other : others) couples += other.couples();
  at::parallel_for(0, couples, 1, [&](int64_t begin, int64_t end) {
    tiles::begin();
    int64_t first = 0;
    for (const auto& other : others) {
      const int64_t from = std::max<int64_t>(begin - first, 0), until = std::min(end - first, other.couples());
      if (from < until) run_share<T, R, kLeftIsCommon>(common, other, from, until);
      first += other.couples();
    }
    tiles::end();
  });
}

// Of products of one operand, the left or the right one, with some others.
struct Products {
  const Tensor& common;
  bool left_is_common;
  at::TensorList others;
  bool add;
  at::TensorList results;

  const Tensor& left(size_t i) const { return left_is_common ? common : others[i]; }
  const Tensor& right(size_t i) const { return left_is_common ? others[i] : common; }

  template <typename T, typename R>
  void run_slice(int64_t begin, int64_t end, bool onto) const {
    std::vector<Other<R>> sliced;
    for (size_t i = 0; i < others.size(); i++)
      sliced.push_back({Operand(others[i].slice(1, begin, end)), {data<R>(results[i]), results[i].stride(0), onto}});
    const Operand operand(common.slice(1, begin, end));
    if (left_is_common) run_all<T, R, true>(operand, sliced);
    else run_all<T, R, false>(operand, sliced);
  }

  // Of a long dimension, as much at a time as is multiplied before the sums go back to memory, in float32.
  void run() const {
    const int64_t depth = common.size(1), most = slice_of(common.scalar_type()), slices = (depth + most - 1) / most;
    const auto bound = [&](int64_t slice) { return slice == slices ? depth : depth * slice / slices / kDepth * kDepth; };
    for (int64_t slice = 0; slice < slices; slice++) {
      const int64_t begin = bound(slice), end = bound(slice + 1);
      const bool onto = add || slice > 0;
      if (common.scalar_type() == at::kFloat) run_slice<float, float>(begin, end, onto);
      else if (results[0].scalar_type() == at::kFloat) run_slice<uint16_t, float>(begin, end, onto);
      else run_slice<uint16_t, uint16_t>(begin, end, onto);
    }
  }
};

bool is_tiled(const Tensor& a, const Tensor& b) {
  static const bool able = instructions() == Instructions::kAmx;
  // What has only a few rows is read once either way.
  constexpr int64_t kMany = 32;
  return able && a.device().is_cpu() && a.scalar_type() == b.scalar_type() &&
         (a.scalar_type() == at::kFloat || a.scalar_type() == at::kBFloat16) && Operand(a).reads() && Operand(b).reads() &&
         std::min({a.size(0), b.size(0), a.size(1)}) >= kMany;
}

static bool is_taken(const Tensor& a, const Tensor& b, const Tensor& result) {
  const at::ScalarType to = result.scalar_type();
  if (!is_tiled(a, b) || result.stride(1) != 1 || (to != at::kFloat && to != a.scalar_type())) return false;
  TORCH_CHECK(a.size(1) == b.size(1) && result.size(0) == a.size(0) && result.size(1) == b.size(0), "a product of ", a.sizes(), " and ",
              b.sizes(), " transposed to ", result.sizes());
  return true;
}

// The narrower operand is packed whole.
bool tile_product_into(const Tensor& a, const Tensor& b, bool add, const Tensor& result) {
  if (!is_taken(a, b, result)) return false;
  const bool left_is_common = a.size(0) <= b.size(0);
  const Tensor &common = left_is_common ? a : b, &other = left_is_common ? b : a;
  if (result.scalar_type() != at::kFloat && a.size(1) > slice_of(a.scalar_type())) {
    // Sums that go back to memory more than once do so in float32.
    const Tensor sums = add ? result.to(at::kFloat) : at::empty(result.sizes(), result.options().dtype(at::kFloat));
    Products{common, left_is_common, other, add, sums}.run();
    result.copy_(sums);
  } else {
    Products{common, left_is_common, other, add, result}.run();
  }
  return true;
}

// Otherwise each has its own way: a single one, results of several types, a large operand, or sums of bfloat16 that go back to memory more
// than once.
static bool is_packed_once(const Products& products) {
  const Tensor &common = products.common, &first = products.results[0];
  const int64_t planes = common.scalar_type() == at::kFloat ? kPlanes<float> : kPlanes<uint16_t>, most = slice_of(common.scalar_type());
  const int64_t bytes = Operand(common).groups() * Operand(common.narrow(1, 0, std::min(common.size(1), most))).blocks() * planes * kTileBytes;
  const auto alike = [&](const Tensor& result) { return result.scalar_type() == first.scalar_type(); };
  return products.others.size() > 1 && bytes <= kCommonBytes && (first.scalar_type() == at::kFloat || common.size(1) <= most) &&
         std::all_of(products.results.begin(), products.results.end(), alike);
}

static bool tile_products_into(const Products& products) {
  for (size_t i = 0; i < products.others.size(); i++)
    if (!is_taken(products.left(i), products.right(i), products.results[i])) return false;
  if (is_packed_once(products)) products.run();
  else
    for (size_t i = 0; i < products.others.size(); i++)
      tile_product_into(products.left(i), products.right(i), products.add, products.results[i]);
  return true;
}

bool tile_products_into(const Tensor& a, at::TensorList bs, bool add, at::TensorList results) {
  return tile_products_into({a, true, bs, add, results});
}

bool tile_products_into(at::TensorList as, const Tensor& b, bool add, at::TensorList results) {
  return tile_products_into({b, false, as, add, results});
}

}  // namespace ppo::training

#else
namespace ppo::training {
bool is_tiled(const Tensor&, const Tensor&) { return false; }
bool tile_product_into(const Tensor&, const Tensor&, bool, const Tensor&) { return false; }
bool tile_products_into(const Tensor&, at::TensorList, bool, at::TensorList) { return false; }
bool tile_products_into(at::TensorList, const Tensor&, bool, at::TensorList) { return false; }
}  // namespace ppo::training
#endif
