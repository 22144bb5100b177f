// What libtorch has for CUDA alone and the worker uses, for the CPU's memory: operators on simulated GPUs are the CPU's. By the plain
// formulas, sequence by sequence, in float32; what FlashAttention-2 and the memory-efficient attention promise beside the numbers
// (kinds, shapes, the answer over no keys) is checked or kept.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <tuple>

namespace simulated {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

void check_flash(const Tensor& tensor, int64_t dim, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf, "FlashAttention takes 16-bit numbers, ", name, " is ",
              tensor.scalar_type());
  TORCH_CHECK(tensor.dim() == 3 && tensor.size(2) == dim && dim % 8 == 0 && dim <= 256, "FlashAttention takes [rows, heads, dim], ", name, " is ",
              tensor.sizes());
  TORCH_CHECK(tensor.stride(2) == 1, "FlashAttention reads heads that lie in one piece; ", name, " does not");
}

void check_boundaries(const Tensor& boundaries) {
  TORCH_CHECK(boundaries.scalar_type() == at::kInt && boundaries.is_contiguous() && boundaries.dim() == 1, "boundaries of sequences are int32 in one piece");
}

struct Sequences {
  const int* queries;
  const int* keys;
  const int* used;
  int64_t count;

  int64_t rows(int64_t i) const { return queries[i + 1] - queries[i]; }
  int64_t length(int64_t i) const { return used != nullptr ? used[i] : keys[i + 1] - keys[i]; }
};

// [heads, rows, dim] in float32; each key head for the query heads of its group.
Tensor part(const Tensor& packed, int64_t start, int64_t count, int64_t group = 1) {
  return packed.narrow(0, start, count).to(at::kFloat).transpose(0, 1).repeat_interleave(group, 0);
}

// The last query sees all keys.
Tensor hidden(int64_t rows, int64_t length) { return at::ones({rows, length}, at::kBool).triu_(length - rows + 1); }

Tensor products(const Tensor& q, const Tensor& k, bool causal) {
  Tensor scores = at::matmul(q, k.transpose(1, 2)).mul_(1 / std::sqrt(static_cast<double>(q.size(2))));
  if (causal) scores.masked_fill_(hidden(q.size(1), k.size(1)), -std::numeric_limits<float>::infinity());
  return scores;
}

// Output as the queries, sums' logarithms [heads, rows] in float32; infinite where there are no keys, as FlashAttention has it.
std::tuple<Tensor, Tensor> forward(const Tensor& queries, const Tensor& keys, const Tensor& values, const Sequences& sequences, bool causal) {
  const int64_t group = queries.size(1) / keys.size(1);
  // Rows of no sequence are left as they are. The output has the queries' strides, as FlashAttention's has.
  Tensor output = at::full_like(queries, std::numeric_limits<float>::quiet_NaN());
  Tensor lse = at::full({queries.size(1), queries.size(0)}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
  for (int64_t i = 0; i < sequences.count; i++) {
    const int64_t rows = sequences.rows(i), length = sequences.length(i), start = sequences.queries[i];
    if (rows == 0) continue;
    Tensor of = output.narrow(0, start, rows), sums = lse.narrow(1, start, rows);
    if (length == 0) {
      of.zero_();
      sums.fill_(std::numeric_limits<float>::infinity());
      continue;
    }
    const Tensor scores = products(part(queries, start, rows), part(keys, sequences.keys[i], length, group), causal);
    sums.copy_(scores.logsumexp(2));
    of.copy_(at::matmul(scores.softmax(2), part(values, sequences.keys[i], length, group)).transpose(0, 1));
  }
  return {output, lse};
}

// Gradients of queries, and of keys and values as these are.
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& gradient, const Tensor& queries, const Tensor& keys, const Tensor& values,
                                            const Tensor& output, const Sequences& sequences, bool causal) {
  const int64_t heads = keys.size(1), group = queries.size(1) / heads;
  const double scale = 1 / std::sqrt(static_cast<double>(queries.size(2)));
  Tensor of_queries = at::full_like(queries, std::numeric_limits<float>::quiet_NaN(), at::MemoryFormat::Contiguous);
  Tensor of_keys = at::full_like(keys, std::numeric_limits<float>::quiet_NaN(), at::MemoryFormat::Contiguous), of_values = of_keys.clone();
  for (int64_t i = 0; i < sequences.count; i++) {
    const int64_t start = sequences.queries[i], rows = sequences.rows(i), first = sequences.keys[i], length = sequences.length(i);
    const Tensor q = part(queries, start, rows), k = part(keys, first, length, group), v = part(values, first, length, group);
    const Tensor given = part(gradient, start, rows), p = products(q, k, causal).softmax(2);
    const Tensor delta = at::mul(given, part(output, start, rows)).sum(2, /*keepdim=*/true);
    const Tensor of_scores = at::mul(p, at::matmul(given, v.transpose(1, 2)).sub_(delta)).mul_(scale);
    const auto gathered = [&](const Tensor& spread) { return spread.view({heads, group, length, -1}).sum(1).transpose(0, 1); };
    of_queries.narrow(0, start, rows).copy_(at::matmul(of_scores, k).transpose(0, 1));
    of_keys.narrow(0, first, length).copy_(gathered(at::matmul(of_scores.transpose(1, 2), q)));
    of_values.narrow(0, first, length).copy_(gathered(at::matmul(p.transpose(1, 2), given)));
  }
  return {of_queries, of_keys, of_values};
}

Sequences sequences_of(const Tensor& queries, const Tensor& keys, const Maybe& used, int64_t longest) {
  check_boundaries(queries);
  check_boundaries(keys);
  const bool partly = used.has_value() && used->defined();
  if (partly) check_boundaries(*used);
  const Sequences sequences{queries.const_data_ptr<int>(), keys.const_data_ptr<int>(), partly ? used->const_data_ptr<int>() : nullptr, queries.numel() - 1};
  for (int64_t i = 0; i < sequences.count; i++) TORCH_CHECK(sequences.rows(i) <= longest, "a sequence is longer than the longest");
  return sequences;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward(const Tensor& queries, const Tensor& keys, const Tensor& values, const Maybe& cu_q,
                                                                 const Maybe& cu_k, int64_t max_q, int64_t max_k, double dropout, bool causal, bool,
                                                                 std::optional<double>, std::optional<int64_t>, std::optional<int64_t>,
                                                                 const Maybe& used_k, const Maybe&) {
  const int64_t dim = queries.size(2);
  check_flash(queries, dim, "queries");
  check_flash(keys, dim, "keys");
  check_flash(values, dim, "values");
  TORCH_CHECK(dropout == 0.0 && cu_q && cu_k, "only packed sequences without dropout");
  const auto sequences = sequences_of(*cu_q, *cu_k, used_k, max_q);
  for (int64_t i = 0; i < sequences.count; i++) TORCH_CHECK(sequences.length(i) <= max_k, "keys are longer than the longest");
  auto [output, lse] = forward(queries, keys, values, sequences, causal);
  return {output, lse, at::zeros({2}, at::kLong), at::empty({}, at::kLong), Tensor()};
}

// As libtorch's kernel would be in any order without it (attention_backward.cu of aten/src/ATen/native/transformers/cuda).
void check_deterministic() { TORCH_CHECK(at::globalContext().deterministicAlgorithms(), "attention's gradients are added up in any order"); }

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& gradient, const Tensor& queries, const Tensor& keys, const Tensor& values,
                                                  const Tensor& output, const Tensor& lse, const Tensor& cu_q, const Tensor& cu_k, int64_t max_q,
                                                  int64_t, double, bool causal, const Tensor&, const Tensor&, std::optional<double>,
                                                  std::optional<int64_t>, std::optional<int64_t>) {
  check_deterministic();
  check_flash(gradient, queries.size(2), "the gradient");
  TORCH_CHECK(lse.scalar_type() == at::kFloat && lse.size(1) == queries.size(0), "sums' logarithms are [heads, rows] in float32");
  return backward(gradient, queries, keys, values, output, sequences_of(cu_q, cu_k, {}, max_q), causal);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt> efficient_forward(
    const Tensor& queries, const Tensor& keys, const Tensor& values, const Maybe&, const Maybe& cu_q, const Maybe& cu_k, std::optional<int64_t> max_q,
    std::optional<int64_t> max_k, double, int64_t mask, bool, std::optional<double>, const Maybe&, std::optional<int64_t>) {
  TORCH_CHECK(queries.dim() == 4 && queries.size(0) == 1 && keys.size(2) == queries.size(2), "packed sequences are [1, rows, heads, dim], and heads as many");
  TORCH_CHECK(queries.size(3) % 4 == 0 && queries.stride(3) == 1, "heads lie in one piece, of a multiple of 16 bytes");
  auto [output, lse] = forward(queries[0], keys[0], values[0], sequences_of(cu_q.value(), cu_k.value(), {}, max_q.value()), mask == 1);
  return {output.unsqueeze(0), lse.unsqueeze(0), at::zeros({}, at::kLong), at::zeros({}, at::kLong), max_q.value(), max_k.value()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor& gradient, const Tensor& queries, const Tensor& keys, const Tensor& values,
                                                              const Maybe&, const Tensor& output, const Maybe& cu_q, const Maybe& cu_k, int64_t max_q,
                                                              int64_t, const Tensor&, double, const Tensor&, const Tensor&, int64_t mask, bool,
                                                              std::optional<double>, std::optional<int64_t>, std::optional<int64_t>, bool) {
  check_deterministic();
  auto [q, k, v] = backward(gradient[0], queries[0], keys[0], values[0], output[0], sequences_of(cu_q.value(), cu_k.value(), {}, max_q), mask == 1);
  return {q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), Tensor()};
}

// Products of 16-bit numbers whose sums stay in float32 (_addmm_dtype_out_cuda of aten/src/ATen/native/cuda/Blas.cpp).
void check_wide(const Tensor& left, const Tensor& right, at::ScalarType type) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type(), "factors of ", left.scalar_type(), " and ", right.scalar_type());
  TORCH_CHECK(type == left.scalar_type() || (type == at::kFloat && left.element_size() == 2), "factors of ", left.scalar_type(), " into ", type);
}

Tensor wide_product(const Tensor& left, const Tensor& right, at::ScalarType type) {
  check_wide(left, right, type);
  return at::mm(left.to(type), right.to(type));
}

Tensor& wide_product_out(const Tensor& left, const Tensor& right, at::ScalarType type, Tensor& out) {
  check_wide(left, right, type);
  TORCH_CHECK(out.scalar_type() == type, "products in ", type, " into ", out.scalar_type());
  return at::mm_out(out, left.to(type), right.to(type));
}

Tensor& wide_sum_out(const Tensor& self, const Tensor& left, const Tensor& right, at::ScalarType type, const at::Scalar& beta,
                     const at::Scalar& alpha, Tensor& out) {
  check_wide(left, right, type);
  TORCH_CHECK(out.scalar_type() == type && (self.scalar_type() == type || self.scalar_type() == left.scalar_type()), "a sum of ", self.scalar_type(),
              " into ", out.scalar_type(), " by products in ", type);
  return at::addmm_out(out, self.to(type), left.to(type), right.to(type), beta, alpha);
}

}  // namespace
}  // namespace simulated

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_flash_attention_forward", simulated::flash_forward);
  m.impl("_flash_attention_backward", simulated::flash_backward);
  m.impl("_efficient_attention_forward", simulated::efficient_forward);
  m.impl("_efficient_attention_backward", simulated::efficient_backward);
  m.impl("mm.dtype", simulated::wide_product);
  m.impl("mm.dtype_out", simulated::wide_product_out);
  m.impl("addmm.dtype_out", simulated::wide_sum_out);
}
