// Causal softmax attention over packed sequences with grouped queries, forward and backward, in float32 arithmetic whatever the
// tensors hold. Sequences are not padded, keys are not repeated, and of the scores only a block of queries exists at a time: the
// backward pass computes them again from the row's log-sum-exp (Dao et al. 2022, arXiv:2205.14135). libtorch's own goes through
// MKL in float32 (slow on processors that are not Intel's) and through single oneDNN tiles in bfloat16.
#include "instructions.h"
#include "training.h"

namespace ppo::training {

constexpr int64_t kLanes = 16;
// Queries scored together: a multiple of the product's six rows; their scores stay in the inner cache.
constexpr int64_t kBlock = 48;

template <int N>
struct Vector {
  typedef float type __attribute__((vector_size(N * 4), aligned(4), may_alias));
};

static int64_t whole_lanes(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// R rows and V vectors of N numbers of c = a b, or c += a b. a[r, k] lies at a[r * row + k * step].
template <int R, int V, int N>
PPO_INLINE void tile(const float* a, int64_t row, int64_t step, const float* b, int64_t b_row, float* c, int64_t c_row,
                     int64_t depth, bool add) {
  using Lanes = typename Vector<N>::type;
  Lanes sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) sum[r][v] = add ? *reinterpret_cast<const Lanes*>(c + r * c_row + v * N) : Lanes{};
  for (int64_t k = 0; k < depth; k++) {
    Lanes from[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) from[v] = *reinterpret_cast<const Lanes*>(b + k * b_row + v * N);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const float x = a[r * row + k * step];
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) sum[r][v] += x * from[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) *reinterpret_cast<Lanes*>(c + r * c_row + v * N) = sum[r][v];
}

template <int V, int N>
PPO_INLINE void columns(const float* a, int64_t row, int64_t step, const float* b, int64_t b_row, float* c, int64_t c_row,
                        int64_t rows, int64_t depth, bool add) {
  int64_t r = 0;
  for (; r + 6 <= rows; r += 6) tile<6, V, N>(a + r * row, row, step, b, b_row, c + r * c_row, c_row, depth, add);
  for (; r + 2 <= rows; r += 2) tile<2, V, N>(a + r * row, row, step, b, b_row, c + r * c_row, c_row, depth, add);
  for (; r < rows; r++) tile<1, V, N>(a + r * row, row, step, b, b_row, c + r * c_row, c_row, depth, add);
}

// c [rows, width] (+)= a [rows, depth] b [depth, width]; width in whole vectors.
PPO_CLONES void multiply(const float* a, int64_t row, int64_t step, const float* b, int64_t b_row, float* c, int64_t c_row,
                         int64_t rows, int64_t width, int64_t depth, bool add) {
  // The sums of six rows and two vectors take 12 registers: of AVX-512's 32, or of the 16 half as wide. Vectors that are wider than a
  // register are taken apart in memory, which is twelve times as slow (a Zen 3).
  static const bool whole = instructions() >= Instructions::kAvx512;
  int64_t n = 0;
  for (; whole && n + 2 * kLanes <= width; n += 2 * kLanes)
    columns<2, kLanes>(a, row, step, b + n, b_row, c + n, c_row, rows, depth, add);
  for (; whole && n < width; n += kLanes) columns<1, kLanes>(a, row, step, b + n, b_row, c + n, c_row, rows, depth, add);
  for (; n < width; n += kLanes) columns<2, kLanes / 2>(a, row, step, b + n, b_row, c + n, c_row, rows, depth, add);
}

// Where the rows of one head lie: element i of row r at data[r * row + i].
template <typename T>
struct Head {
  T* data;
  int64_t row;
};

// What one key head of one sequence needs, with room for the working copies.
struct Unit {
  int64_t length, dim, group;
  float scale;
  // Rows of working copies: of a head's elements, of a row of scores.
  int64_t wide() const { return whole_lanes(dim); }
  int64_t keys() const { return whole_lanes(length); }
  int64_t forward_floats() const { return dim * keys() + length * wide() + kBlock * (2 * wide() + keys()); }
  int64_t backward_floats() const {
    return 2 * dim * keys() + 3 * length * wide() + kBlock * (3 * wide() + 2 * keys());
  }
};

template <typename T>
PPO_INLINE void gather_rows(const T* from, int64_t from_row, int64_t rows, int64_t dim, float scale, float* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
    for (int64_t i = 0; i < dim; i++) to[r * to_row + i] = load(from + r * from_row, i) * scale;
    for (int64_t i = dim; i < to_row; i++) to[r * to_row + i] = 0;
  }
}

template <typename T>
PPO_INLINE void gather_columns(const T* from, int64_t from_row, int64_t rows, int64_t dim, float* to, int64_t to_row) {
  for (int64_t i = 0; i < dim; i++) {
    for (int64_t r = 0; r < rows; r++) to[i * to_row + r] = load(from + r * from_row, i);
    for (int64_t r = rows; r < to_row; r++) to[i * to_row + r] = 0;
  }
}

template <typename T>
PPO_INLINE void scatter_rows(const float* from, int64_t from_row, int64_t rows, int64_t dim, float scale, T* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; r++)
#pragma omp simd
    for (int64_t i = 0; i < dim; i++) store(to + r * to_row, i, from[r * from_row + i] * scale);
}

#define PPO_MOVE(T)                                                                                                       \
  PPO_CLONES void gather(Head<const T> from, int64_t rows, const Unit& unit, float scale, float* to) {                    \
    gather_rows(from.data, from.row, rows, unit.dim, scale, to, unit.wide());                                             \
  }                                                                                                                       \
  PPO_CLONES void gather_transposed(Head<const T> from, const Unit& unit, float* to) {                                    \
    gather_columns(from.data, from.row, unit.length, unit.dim, to, unit.keys());                                          \
  }                                                                                                                       \
  PPO_CLONES void scatter(const float* from, int64_t rows, const Unit& unit, float scale, Head<T> to) {                   \
    scatter_rows(from, unit.wide(), rows, unit.dim, scale, to.data, to.row);                                              \
  }
PPO_MOVE(float)
PPO_MOVE(Half16)

// A row of scores to probabilities up to `count`, zero beyond. Returns the log-sum-exp.
PPO_CLONES float softmax(float* scores, int64_t count, int64_t width) {
  float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
  for (int64_t j = 0; j < count; j++) top = scores[j] > top ? scores[j] : top;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; j++) {
    const float e = exponential(scores[j] - top);
    scores[j] = e;
    sum += e;
  }
  const float inverse = 1.0f / sum;
#pragma omp simd
  for (int64_t j = 0; j < count; j++) scores[j] *= inverse;
  for (int64_t j = count; j < width; j++) scores[j] = 0;
  return top + std::log(sum);
}

// A row of scores to probabilities P, and of dP to dS = P (dP - sum of P dP); zero beyond `count`.
PPO_CLONES void softmax_backward(float* scores, float* changes, int64_t count, int64_t width, float lse) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t j = 0; j < count; j++) {
    const float p = exponential(scores[j] - lse);
    scores[j] = p;
    dot += p * changes[j];
  }
#pragma omp simd
  for (int64_t j = 0; j < count; j++) changes[j] = scores[j] * (changes[j] - dot);
  for (int64_t j = count; j < width; j++) scores[j] = changes[j] = 0;
}

// queries and output hold `group` heads of `dim` elements side by side; lse [group, length].
template <typename T>
void attend(const Unit& unit, Head<const T> queries, Head<const T> key, Head<const T> value, Head<T> output,
                       float* lse, float* scratch) {
  const int64_t length = unit.length, dim = unit.dim, wide = unit.wide(), keys = unit.keys();
  float *key_columns = scratch, *values = key_columns + dim * keys, *query = values + length * wide,
        *mixed = query + kBlock * wide, *scores = mixed + kBlock * wide;
  gather_transposed(key, unit, key_columns);
  gather(value, length, unit, 1.0f, values);
  for (int64_t head = 0; head < unit.group; head++)
    for (int64_t first = 0; first < length; first += kBlock) {
      const int64_t rows = std::min(kBlock, length - first), seen = first + rows, width = whole_lanes(seen);
      const int64_t offset = first * queries.row + head * dim;
      gather(Head<const T>{queries.data + offset, queries.row}, rows, unit, unit.scale, query);
      multiply(query, wide, 1, key_columns, keys, scores, keys, rows, width, dim, false);
      for (int64_t r = 0; r < rows; r++)
        lse[head * length + first + r] = softmax(scores + r * keys, first + r + 1, width);
      multiply(scores, keys, 1, values, wide, mixed, wide, rows, wide, seen, false);
      scatter(mixed, rows, unit, 1.0f, Head<T>{output.data + first * output.row + head * dim, output.row});
    }
}

// With P the probabilities and dP = dO V^T: dV = P^T dO, dS = P (dP - sum of P dP), dQ = dS K, dK = dS^T Q.
template <typename T>
void attend_backward(const Unit& unit, Head<const T> queries, Head<const T> key, Head<const T> value,
                                const float* lse, Head<const T> gradient, Head<T> of_queries, Head<T> of_key, Head<T> of_value,
                                float* scratch) {
  const int64_t length = unit.length, dim = unit.dim, wide = unit.wide(), keys = unit.keys();
  float *key_columns = scratch, *value_columns = key_columns + dim * keys, *key_rows = value_columns + dim * keys,
        *key_gradient = key_rows + length * wide, *value_gradient = key_gradient + length * wide,
        *query = value_gradient + length * wide, *given = query + kBlock * wide, *query_gradient = given + kBlock * wide,
        *scores = query_gradient + kBlock * wide, *changes = scores + kBlock * keys;
  gather_transposed(key, unit, key_columns);
  gather_transposed(value, unit, value_columns);
  gather(key, length, unit, 1.0f, key_rows);
  std::memset(key_gradient, 0, 2 * length * wide * sizeof(float));
  for (int64_t head = 0; head < unit.group; head++)
    for (int64_t first = 0; first < length; first += kBlock) {
      const int64_t rows = std::min(kBlock, length - first), seen = first + rows, width = whole_lanes(seen);
      gather(Head<const T>{queries.data + first * queries.row + head * dim, queries.row}, rows, unit, unit.scale, query);
      gather(Head<const T>{gradient.data + first * gradient.row + head * dim, gradient.row}, rows, unit, 1.0f, given);
      multiply(query, wide, 1, key_columns, keys, scores, keys, rows, width, dim, false);
      multiply(given, wide, 1, value_columns, keys, changes, keys, rows, width, dim, false);
      for (int64_t r = 0; r < rows; r++)
        softmax_backward(scores + r * keys, changes + r * keys, first + r + 1, width, lse[head * length + first + r]);
      multiply(scores, 1, keys, given, wide, value_gradient, wide, seen, wide, rows, true);
      multiply(changes, 1, keys, query, wide, key_gradient, wide, seen, wide, rows, true);
      multiply(changes, keys, 1, key_rows, wide, query_gradient, wide, rows, wide, seen, false);
      scatter(query_gradient, rows, unit, unit.scale,
              Head<T>{of_queries.data + first * of_queries.row + head * dim, of_queries.row});
    }
  scatter(key_gradient, length, unit, 1.0f, of_key);
  scatter(value_gradient, length, unit, 1.0f, of_value);
}

// Sequences by their first row, and the units of work: one key head of one sequence each.
struct Layout {
  std::vector<int64_t> starts, lengths;
  int64_t rows = 0, longest = 0, heads, kv_heads, dim;

  Layout(at::IntArrayRef given, const Tensor& queries, const Tensor& keys)
      : lengths(given.vec()), heads(queries.size(1)), kv_heads(keys.size(1)), dim(queries.size(2)) {
    for (const int64_t length : lengths) {
      starts.push_back(rows);
      rows += length;
      longest = std::max(longest, length);
    }
    TORCH_CHECK(rows <= queries.size(0) && keys.size(0) == queries.size(0), rows, " tokens in ", queries.size(0), " rows");
    TORCH_CHECK(keys.size(2) == dim && heads % kv_heads == 0, "queries ", queries.sizes(), " of keys ", keys.sizes());
  }

  int64_t units() const { return static_cast<int64_t>(lengths.size()) * kv_heads; }
  int64_t start(int64_t unit) const { return starts[unit / kv_heads]; }
  Unit unit(int64_t number) const { return of_length(lengths[number / kv_heads]); }
  Unit of_length(int64_t length) const {
    return {length, dim, heads / kv_heads, 1.0f / std::sqrt(static_cast<float>(dim))};
  }
  // Log-sum-exps lie by unit: before this one are those of earlier sequences and heads.
  int64_t lse(int64_t number) const {
    return start(number) * heads + number % kv_heads * (heads / kv_heads) * lengths[number / kv_heads];
  }

  template <typename T>
  Head<T> queries_of(T* data, int64_t number) const {
    return {data + (start(number) * heads + number % kv_heads * (heads / kv_heads)) * dim, heads * dim};
  }
  template <typename T>
  Head<T> keys_of(T* data, int64_t number) const {
    return {data + (start(number) * kv_heads + number % kv_heads) * dim, kv_heads * dim};
  }
};

struct Attention : torch::autograd::Function<Attention> {
  // queries [rows, heads, dim], keys and values [rows, kv_heads, dim] -> [rows, heads, dim], zero after the last sequence
  static Tensor forward(AutogradContext* ctx, const Tensor& queries_, const Tensor& keys_, const Tensor& values_,
                        at::IntArrayRef lengths) {
    const Tensor queries = queries_.contiguous(), keys = keys_.contiguous(), values = values_.contiguous();
    const Layout layout(lengths, queries, keys);
    Tensor output = at::empty_like(queries), lse = at::empty({layout.rows * layout.heads}, queries.options().dtype(at::kFloat));
    output.narrow(0, layout.rows, output.size(0) - layout.rows).zero_();
    PPO_DISPATCH(queries, {
      at::parallel_for(0, layout.units(), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(layout.of_length(layout.longest).forward_floats());
        for (int64_t unit = begin; unit < end; unit++)
          attend<scalar>(layout.unit(unit), layout.queries_of(data<const scalar>(queries), unit),
                      layout.keys_of(data<const scalar>(keys), unit), layout.keys_of(data<const scalar>(values), unit),
                      layout.queries_of(data<scalar>(output), unit), data<float>(lse) + layout.lse(unit), scratch.data());
      });
    });
    ctx->save_for_backward({queries, keys, values, lse});
    ctx->saved_data["lengths"] = lengths;
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &queries = saved[0], &keys = saved[1], &values = saved[2], &lse = saved[3], given = gradients[0].contiguous();
    const std::vector<int64_t> lengths = ctx->saved_data["lengths"].toIntVector();
    const Layout layout(lengths, queries, keys);
    Tensor of_queries = at::empty_like(queries), of_keys = at::empty_like(keys), of_values = at::empty_like(values);
    for (const Tensor& gradient : {of_queries, of_keys, of_values})
      gradient.narrow(0, layout.rows, gradient.size(0) - layout.rows).zero_();
    PPO_DISPATCH(queries, {
      at::parallel_for(0, layout.units(), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(layout.of_length(layout.longest).backward_floats());
        for (int64_t unit = begin; unit < end; unit++)
          attend_backward<scalar>(layout.unit(unit), layout.queries_of(data<const scalar>(queries), unit),
                               layout.keys_of(data<const scalar>(keys), unit), layout.keys_of(data<const scalar>(values), unit),
                               data<float>(lse) + layout.lse(unit), layout.queries_of(data<const scalar>(given), unit),
                               layout.queries_of(data<scalar>(of_queries), unit), layout.keys_of(data<scalar>(of_keys), unit),
                               layout.keys_of(data<scalar>(of_values), unit), scratch.data());
      });
    });
    return {of_queries, of_keys, of_values, Tensor()};
  }
};

}  // namespace ppo::training

extern "C" char* ppo_training_attention(const at::Tensor* queries, const at::Tensor* keys, const at::Tensor* values,
                                        const int64_t* lengths, int64_t sequences, const at::Tensor* boundaries,
                                        at::Tensor** output) {
  using namespace ppo::training;
  return guarded([&] {
    const at::IntArrayRef given(lengths, sequences);
    *output = new at::Tensor(has_kernels(*queries) ? Attention::apply(*queries, *keys, *values, given)
                                                   : stock::attention(*queries, *keys, *values, given, *boundaries));
  });
}
