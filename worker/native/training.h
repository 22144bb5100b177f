// Shared by the training kernels: products through the fastest library, rows of float32 or bfloat16 as float, and loops that
// are compiled once per instruction set.
#pragma once

#include "guarded.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <cstring>

// One binary runs on every x86-64-v2 machine: a loop marked so is compiled for the wider sets too and chosen at load time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PPO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PPO_CLONES
#endif
#define PPO_INLINE inline __attribute__((always_inline))

namespace ppo::training {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// a [M, K] times b [N, K] transposed, to [M, N]. Both may be strided views.
Tensor product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias = std::nullopt);

// The same in float32 where the operands are of 16 bits: sums are float32 anyhow, and stay so when they are stored. In bfloat16 a logit of
// 20 would move by up to 0.06.
Tensor wide_product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias = std::nullopt);

// a times each of `bs`, or wide_product; no biases or one each.
variable_list products(const Tensor& a, at::TensorList bs, at::TensorList biases, bool wide);

// `product` into `result` [M, N], or added to it. Where `result` is float32 and the operands are not, it is added to in float32.
void product_into(const Tensor& a, const Tensor& b, bool add, Tensor result);

// outer [rows, m] transposed times inner [rows, n], bfloat16, to `result` [m, n] float32, or added to it. Returns false, and does nothing,
// where this processor has no instructions for it, or another library is faster.
bool outer_product_into(const Tensor& outer, const Tensor& inner, bool add, const Tensor& result);

// a [m, depth] times b [n, depth] transposed, bfloat16, to `result` [m, n] float32, under the same conditions.
bool inner_product_into(const Tensor& a, const Tensor& b, const Tensor& result);

// Whether `product` of these is multiplied by tiles: views of bfloat16 or float32 with neighbours in memory, on a processor that has them.
bool is_tiled(const Tensor& a, const Tensor& b);
// `product_into` of such views, where `result` is of their type or float32. Returns false, and does nothing, of others.
bool tile_product_into(const Tensor& a, const Tensor& b, bool add, const Tensor& result);
// The same of one operand and each of several others, of which it is prepared once. All of them or none.
bool tile_products_into(const Tensor& a, at::TensorList bs, bool add, at::TensorList results);
bool tile_products_into(at::TensorList as, const Tensor& b, bool add, at::TensorList results);

// The gradient that a backward pass may add to in place of answering with a new one, which would be added to it anyway: where
// the parameter's gradients gather already, in its own precision or in float32. Else undefined.
Tensor gathered_gradient(const Tensor& parameter);

// Where the gradient of an embedding gathers that answers with a new one: in float32 for weights of 16 bits. Of a token that occurs a
// few hundred times the sum would stop to grow in theirs.
inline Tensor gradient_table(const Tensor& weight) {
  const at::ScalarType own = weight.scalar_type();
  return at::zeros(weight.sizes(), weight.options().dtype(at::isReducedFloatingType(own) ? at::kFloat : own));
}

// Whether the kernels of this folder compute on such a tensor. On others (a GPU's, float16, float64) libtorch's operators do.
bool has_kernels(const Tensor& tensor);

// Layers that are cheap beside a product, forward and backward, by the kernels of training_rows.cpp.
namespace kernels {
struct Normed {
  Tensor output, r;  // [..., width], and [rows] float32: 1 / rms of each row
};
Normed norm(const Tensor& rows, const Tensor& weight, double eps);
// Gradients of rows and weight.
variable_list norm_backward(const Tensor& gradient, const Tensor& rows, const Tensor& weight, const Tensor& r);
Tensor gate(const Tensor& gate, const Tensor& up);
// Gradients of gate and up.
variable_list gate_backward(const Tensor& gradient, const Tensor& gate, const Tensor& up);
}  // namespace kernels

// The same functions by libtorch's operators, on any device; each gives what its kernel gives, but for rounding.
namespace stock {
Tensor rms_norm(const Tensor& input, const Tensor& weight, double eps);
// `sine` may be that of each half with its sign already, [tokens, 2, head_dim / 2].
Tensor rotate(const Tensor& heads, const Tensor& cosine, const Tensor& sine);
Tensor gate(const Tensor& gate, const Tensor& up);
variable_list gate_backward(const Tensor& gradient, const Tensor& gate, const Tensor& up);
Tensor embed(const Tensor& weight, const Tensor& ids);
// `boundaries` [sequences + 1] int32 on the device of the tensors: the first row of each sequence, and the row after the last.
Tensor attention(const Tensor& queries, const Tensor& keys, const Tensor& values, at::IntArrayRef lengths,
                 const Tensor& boundaries);
Tensor merge(const Tensor& weight, const Tensor& a, const Tensor& b, double scale);
void join(const Tensor& rounded, const Tensor& rest, const Tensor& whole);
void split(const Tensor& whole, const Tensor& rounded, const Tensor& rest);
void split(const Tensor& whole, const Tensor& rounded, const Tensor& rest, const Tensor& marks, int64_t first);
variable_list token_logprobs(const Tensor& hidden, const Tensor& weight, const Tensor& targets, double temperature,
                             int64_t kept_bytes, bool wants_entropy);
}  // namespace stock

using ppo::guarded;

// bfloat16 as its bits: loops over plain integers vectorise.
struct Half16 {
  uint16_t bits;
};

PPO_INLINE float load(const float* row, int64_t i) { return row[i]; }
PPO_INLINE float load(const Half16* row, int64_t i) {
  uint32_t bits = static_cast<uint32_t>(row[i].bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
PPO_INLINE void store(float* row, int64_t i, float value) { row[i] = value; }
PPO_INLINE void store(Half16* row, int64_t i, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  // Round to nearest even; a NaN stays one.
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  row[i].bits = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

// e^x to 1 unit in the last place (Cephes, expf). NaN stays NaN; below -87 it is the smallest normal number.
PPO_INLINE float exponential(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  float n = (x * 1.44269504088896341f + magic) - magic;
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

// Calls body<float> or body<Half16> by the tensor's type.
#define PPO_DISPATCH(tensor, ...)                                                                      \
  do {                                                                                                 \
    if ((tensor).scalar_type() == at::kFloat) {                                                        \
      using scalar = float;                                                                            \
      __VA_ARGS__                                                                                      \
    } else {                                                                                           \
      TORCH_CHECK((tensor).scalar_type() == at::kBFloat16, "the training kernels take float32 and bfloat16"); \
      using scalar = Half16;                                                                           \
      __VA_ARGS__                                                                                      \
    }                                                                                                  \
  } while (false)

template <typename T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// Rows a thread takes at a time so that a piece of work is worth a thread's wake-up.
inline int64_t rows_per_thread(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)); }

}  // namespace ppo::training
