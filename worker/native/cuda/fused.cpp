// The engine's own kernels over libtorch's tensors: what they take is checked, what they answer is made. They are asked for on the calling
// thread's stream and can be captured. Part of libppo_cuda.so, and of the simulated GPU's.
//
// Every function answers null, or a message that is the caller's to free with ppo_cuda_free_error.
#include <on_device.h>

#include "../guarded.h"
#include "kernels.h"

#include <ATen/ops/empty.h>

using at::Tensor;
using namespace ppo::cuda;
using ppo::guarded;

namespace {

constexpr int64_t kAlignment = 16;

// Numbers in one piece, where sixteen bytes can be moved at once.
void check(const Tensor& tensor, const char* name, at::ScalarType type, int64_t numbers) {
  TORCH_CHECK(tensor.is_cuda() && tensor.scalar_type() == type && tensor.is_contiguous(), name, " is no ", type, " in one piece on a GPU");
  TORCH_CHECK(tensor.numel() == numbers, name, " has ", tensor.numel(), " numbers, not ", numbers);
  TORCH_CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % kAlignment == 0, name, " does not lie at a multiple of ", kAlignment, " bytes");
}

void check(const Tensor& tensor, const char* name, int64_t numbers) { check(tensor, name, at::kBFloat16, numbers); }

// Rows of [rows, width] that vectors of eight fill, and a grid has blocks for.
int64_t rows_of(const Tensor& tensor, const char* name, int64_t most) {
  TORCH_CHECK(tensor.dim() == 2 && tensor.size(1) % 8 == 0 && tensor.size(1) > 0 && tensor.size(1) <= most, name, " is ", tensor.sizes(),
              ": rows of a multiple of 8 up to ", most, " are taken");
  TORCH_CHECK(tensor.size(0) <= INT32_MAX, name, " has too many rows");
  return tensor.size(0);
}

void check_heads(int64_t heads, int64_t kv_heads, int64_t dim) {
  TORCH_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && dim > 0 && dim % 8 == 0 && dim <= 256, heads, " heads on ", kv_heads, " of ", dim,
              " dimensions");
}

struct Product {
  int64_t n, inputs, outputs;
};

Product check_product(const Tensor& x, const Tensor& matrix) {
  const int64_t n = rows_of(x, "rows", INT32_MAX / 2), inputs = x.size(1);
  TORCH_CHECK(n > 0 && n <= kFew, n, " rows: 1 to ", kFew, " are multiplied");
  TORCH_CHECK(matrix.dim() == 2 && matrix.size(1) == inputs && matrix.size(0) <= INT32_MAX, "a matrix of ", matrix.sizes(), " for rows of ", inputs);
  check(x, "rows", n * inputs);
  check(matrix, "matrix", matrix.numel());
  return {n, inputs, matrix.size(0)};
}

Tensor or_nothing(const Tensor* tensor) { return tensor == nullptr ? Tensor() : *tensor; }

template <typename T>
T* address_or_null(const Tensor& tensor) {
  return tensor.defined() ? address<T>(tensor) : nullptr;
}

}  // namespace

extern "C" {

// rows [n, width] += delta where it is given; out = their norm by weight [width].
char* ppo_cuda_norm(Tensor* rows_of_stream, Tensor* delta_or_null, Tensor* weight_of_norm, double eps, Tensor** output) {
  return guarded([&] {
    const Tensor rows = *rows_of_stream, delta = or_nothing(delta_or_null), weight = *weight_of_norm;
    const int64_t n = rows_of(rows, "rows", kWidest), width = rows.size(1);
    check(rows, "rows", n * width);
    if (delta.defined()) check(delta, "delta", n * width);
    check(weight, "weight", width);
    const Tensor out = at::empty({n, width}, rows.options());
    if (n > 0) {
      submit("add_norm", {rows, delta, weight}, {rows, out}, {out}, [=](cudaStream_t stream) {
        launch_add_norm(address<bfloat16>(rows), address_or_null<bfloat16>(delta), address<bfloat16>(weight), static_cast<float>(eps), n,
                        static_cast<int>(width), address<bfloat16>(out), stream);
      });
    }
    *output = new Tensor(out);
  });
}

// Keys and values of projected [n, (heads + 2 kv_heads) dim] to their slots of the cache; answers the queries, with copies 0 [n, heads, dim], else
// [n copies heads / kv_heads, kv_heads, dim], as attention over so many blocks takes them.
char* ppo_cuda_heads(Tensor* projected_rows, Tensor* query_norm_or_null, Tensor* key_norm_or_null, Tensor* frequencies_of, Tensor* positions_of,
                     Tensor* slots_of, Tensor* keys_of, Tensor* values_of, int64_t heads, int64_t copies, double eps, Tensor** output) {
  return guarded([&] {
    const Tensor projected = *projected_rows, query_norm = or_nothing(query_norm_or_null), key_norm = or_nothing(key_norm_or_null);
    const Tensor frequencies = *frequencies_of, positions = *positions_of, slots = *slots_of, keys = *keys_of, values = *values_of;
    TORCH_CHECK(keys.dim() == 3 && keys.sizes() == values.sizes(), "a cache of ", keys.sizes(), " and ", values.sizes());
    const int64_t kv_heads = keys.size(1), dim = keys.size(2);
    check_heads(heads, kv_heads, dim);
    const int64_t all = heads + 2 * kv_heads, n = rows_of(projected, "projected", all * dim);
    check(projected, "projected", n * all * dim);
    check(keys, "keys", keys.numel());
    check(values, "values", keys.numel());
    if (query_norm.defined()) check(query_norm, "query_norm", dim);
    if (key_norm.defined()) check(key_norm, "key_norm", dim);
    check(frequencies, "frequencies", at::kFloat, dim / 2);
    // The pass' numbers are parts of one tensor, read one by one.
    for (const auto& [tensor, name] : {std::pair(positions, "positions"), std::pair(slots, "slots")})
      TORCH_CHECK(tensor.is_cuda() && tensor.scalar_type() == at::kLong && tensor.is_contiguous() && tensor.numel() == n, name, " are not ", n, " int64");
    TORCH_CHECK(copies >= 0 && copies <= INT32_MAX, copies, " copies");
    const Tensor queries = copies == 0 ? at::empty({n, heads, dim}, projected.options())
                                       : at::empty({n * copies * (heads / kv_heads), kv_heads, dim}, projected.options());
    if (n > 0) {
      submit("place_heads", {projected, query_norm, key_norm, frequencies, positions, slots}, {keys, values, queries}, {queries},
             [=](cudaStream_t stream) {
               HeadsOf it{};
               it.projected = address<bfloat16>(projected);
               it.query_norm = address_or_null<bfloat16>(query_norm);
               it.key_norm = address_or_null<bfloat16>(key_norm);
               it.frequencies = address<float>(frequencies);
               it.positions = address<int64_t>(positions);
               it.slots = address<int64_t>(slots);
               it.keys = address<bfloat16>(keys);
               it.values = address<bfloat16>(values);
               it.queries = address<bfloat16>(queries);
               it.heads = static_cast<int>(heads), it.kv_heads = static_cast<int>(kv_heads), it.dim = static_cast<int>(dim);
               it.copies = static_cast<int>(copies);
               it.eps = static_cast<float>(eps);
               launch_heads(it, n, stream);
             });
    }
    *output = new Tensor(queries);
  });
}

// parts [n blocks group, kv_heads, dim] and their log-sum-exps [kv_heads, n blocks group] over used [n blocks] keys each; answers [n, heads, dim].
char* ppo_cuda_merge(Tensor* parts_of, Tensor* lse_of, Tensor* used_of, int64_t blocks, int64_t group, Tensor** output) {
  return guarded([&] {
    const Tensor parts = *parts_of, lse = *lse_of, used = *used_of;
    TORCH_CHECK(parts.dim() == 3 && blocks > 0 && blocks <= INT32_MAX && group > 0, "parts ", parts.sizes());
    const int64_t kv_heads = parts.size(1), dim = parts.size(2), n = parts.size(0) / (blocks * group);
    check_heads(group * kv_heads, kv_heads, dim);
    check(parts, "parts", n * blocks * group * kv_heads * dim);
    check(lse, "lse", at::kFloat, kv_heads * n * blocks * group);
    TORCH_CHECK(used.is_cuda() && used.scalar_type() == at::kInt && used.is_contiguous() && used.numel() == n * blocks, "used is not ", n * blocks, " int32");
    const Tensor out = at::empty({n, group * kv_heads, dim}, parts.options());
    if (n > 0) {
      submit("merge_blocks", {parts, lse, used}, {out}, {out}, [=](cudaStream_t stream) {
        launch_merge(address<bfloat16>(parts), address<float>(lse), address<int32_t>(used), n, static_cast<int>(blocks), static_cast<int>(group),
                     static_cast<int>(kv_heads), static_cast<int>(dim), address<bfloat16>(out), stream);
      });
    }
    *output = new Tensor(out);
  });
}

// silu of the first half of each row of both [n, 2 width] times the second.
char* ppo_cuda_gate(Tensor* both_of, Tensor** output) {
  return guarded([&] {
    const Tensor both = *both_of;
    const int64_t n = rows_of(both, "gate and up", INT32_MAX), width = both.size(1) / 2;
    TORCH_CHECK(width % 8 == 0, "a gate of ", width);
    check(both, "gate and up", n * 2 * width);
    const Tensor out = at::empty({n, width}, both.options());
    if (n > 0) {
      submit("gate_up", {both}, {out}, {out},
             [=](cudaStream_t stream) { launch_gate(address<bfloat16>(both), n, static_cast<int>(width), address<bfloat16>(out), stream); });
    }
    *output = new Tensor(out);
  });
}

// x [n, inputs], a few rows, by matrix [outputs, inputs], plus bias where it is given.
char* ppo_cuda_product(Tensor* rows_of_x, Tensor* matrix_of, Tensor* bias_or_null, Tensor** output) {
  return guarded([&] {
    const Tensor x = *rows_of_x, matrix = *matrix_of, bias = or_nothing(bias_or_null);
    const auto [n, inputs, outputs] = check_product(x, matrix);
    if (bias.defined()) check(bias, "bias", outputs);
    const Tensor y = at::empty({n, outputs}, x.options());
    submit("multiply", {x, matrix, bias}, {y}, {y}, [=, n = n, inputs = inputs, outputs = outputs](cudaStream_t stream) {
      launch_product(address<bfloat16>(x), address<bfloat16>(matrix), address_or_null<bfloat16>(bias), n, static_cast<int>(inputs),
                     static_cast<int>(outputs), address<bfloat16>(y), stream);
    });
    *output = new Tensor(y);
  });
}

// As ppo_cuda_product, to logits [n, outputs] in float32.
char* ppo_cuda_logits(Tensor* rows_of_x, Tensor* matrix_of, Tensor* logits_of) {
  return guarded([&] {
    const Tensor x = *rows_of_x, matrix = *matrix_of, logits = *logits_of;
    const auto [n, inputs, outputs] = check_product(x, matrix);
    check(logits, "logits", at::kFloat, n * outputs);
    submit("multiply", {x, matrix}, {logits}, {}, [=, n = n, inputs = inputs, outputs = outputs](cudaStream_t stream) {
      launch_product(address<bfloat16>(x), address<bfloat16>(matrix), nullptr, n, static_cast<int>(inputs), static_cast<int>(outputs),
                     address<float>(logits), stream);
    });
  });
}

// What ppo_cuda_gate makes of x [n, inputs], a few rows, by matrix [2 width, inputs].
char* ppo_cuda_gated_product(Tensor* rows_of_x, Tensor* matrix_of, Tensor** output) {
  return guarded([&] {
    const Tensor x = *rows_of_x, matrix = *matrix_of;
    const auto [n, inputs, outputs] = check_product(x, matrix);
    TORCH_CHECK(outputs % 2 == 0, "gate and up of ", outputs);
    const Tensor y = at::empty({n, outputs / 2}, x.options());
    submit("multiply_gated", {x, matrix}, {y}, {y}, [=, n = n, inputs = inputs, outputs = outputs](cudaStream_t stream) {
      launch_gated_product(address<bfloat16>(x), address<bfloat16>(matrix), n, static_cast<int>(inputs), static_cast<int>(outputs / 2),
                           address<bfloat16>(y), stream);
    });
    *output = new Tensor(y);
  });
}

// draws [count, 2] of int64 are `Draw`s over rows of logits [rows, vocab]; `drawn` [count] of int64 gets `Drawn`s. Rows that a draw names are
// not looked at here: they are on the device.
char* ppo_cuda_draw(Tensor* logits_of, Tensor* draws_of, Tensor* drawn_of) {
  return guarded([&] {
    const Tensor logits = *logits_of, draws = *draws_of, drawn = *drawn_of;
    TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0 && logits.size(1) <= INT32_MAX - 1024, "logits ", logits.sizes());
    TORCH_CHECK(draws.dim() == 2 && draws.size(1) * 8 == sizeof(Draw), "draws ", draws.sizes());
    const int64_t count = draws.size(0), vocab = logits.size(1), pieces = pieces_of(static_cast<int>(vocab));
    check(logits, "logits", at::kFloat, logits.numel());
    check(draws, "draws", at::kLong, draws.numel());
    check(drawn, "drawn", at::kLong, count);
    if (count == 0) return;
    TORCH_CHECK(count <= INT32_MAX / pieces, count, " draws of ", pieces, " pieces");
    const Tensor sums = at::empty({count * pieces, static_cast<int64_t>(sizeof(Piece) / 8)}, draws.options());
    submit("draw", {logits, draws}, {drawn, sums}, {sums}, [=](cudaStream_t stream) {
      launch_draw(address<float>(logits), address<Draw>(draws), count, static_cast<int>(vocab), address<Piece>(sums), address<Drawn>(drawn), stream);
    });
  });
}

}  // extern "C"
