// Linear layers. In float32 libtorch multiplies through MKL, which takes slow code paths on AVX-512 processors that are not Intel's;
// oneDNN, which libtorch carries too, is 2.2 times faster there. It reads transposed operands as strided views, so neither
// the input's nor the weight's gradient needs a copy, and no packed weight can go stale. Without AVX-512 MKL is as fast, and takes
// bfloat16 there that libtorch does not give it.
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "instructions.h"
#include "training.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace at::native {
// aten/src/ATen/native/mkldnn/Linear.cpp; registered as mkldnn::_linear_pointwise.
Tensor mkldnn_linear_pointwise(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                               std::string_view attr, c10::List<std::optional<at::Scalar>> scalars,
                               std::optional<std::string_view> algorithm);
// aten/src/ATen/native/mkldnn/Matmul.cpp: result = alpha a b + beta result. Its weight gradients are 1.1 to 1.7 times as fast as
// the other's in float32, addition included (896 rows, the layers of a 135M and a 3M model, two cores of a Zen 5).
void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}  // namespace at::native

#if defined(__x86_64__)
// MKL's product of bfloat16 to float32, of the library that libtorch carries; a libtorch without MKL has none.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b, int m, int n, int k,
                                                             float alpha, const uint16_t* a, int lda, const uint16_t* b, int ldb,
                                                             float beta, float* c, int ldc);
#endif

namespace ppo::training {

// Decided by the processor and not by a timing: a resumed run must multiply with the same library, bit for bit.
static bool prefers_onednn() {
#if defined(__x86_64__)
  unsigned int eax, ebx, ecx, edx;
  // mkldnn_matmul refuses float32, too, where oneDNN cannot multiply bfloat16 (mkldnn_bf16_device_check).
  if (!at::globalContext().userEnabledMkldnn() || instructions() < Instructions::kAvx512 || !__get_cpuid(0, &eax, &ebx, &ecx, &edx))
    return false;
  bool intel = ebx == signature_INTEL_ebx && edx == signature_INTEL_edx && ecx == signature_INTEL_ecx;
  return !intel;
#else
  return false;
#endif
}

static bool through_onednn(const Tensor& a, const Tensor& b) {
  static const bool onednn = prefers_onednn();
  return onednn && a.scalar_type() == at::kFloat && a.device().is_cpu() && a.numel() > 0 && b.numel() > 0;
}

// a [M, K] times b [N, K] transposed, bfloat16, to `result` [M, N] float32, or added to it, by MKL. Returns false, and does nothing, where
// MKL is slow or missing, or operands lie in a way that it does not read.
static bool through_mkl(const Tensor& a, const Tensor& b, bool add, const Tensor& result) {
#if defined(__x86_64__)
  static const bool able = cblas_gemm_bf16bf16f32 && !prefers_onednn();
  const int64_t m = a.size(0), n = b.size(0), k = a.size(1);
  const bool a_lies = a.t().is_contiguous() && !a.is_contiguous(), b_lies = b.t().is_contiguous() && !b.is_contiguous();
  const bool reads = (a_lies || a.is_contiguous()) && (b_lies || b.is_contiguous()) && result.is_contiguous();
  if (!able || !reads || std::min({m, n, k}) == 0 || std::max({m, n, k}) > INT32_MAX) return false;
  const auto size = [](int64_t of) { return static_cast<int>(of); };
  constexpr int kRowMajor = 101, kAsItIs = 111, kTransposed = 112;  // of CBLAS
  cblas_gemm_bf16bf16f32(kRowMajor, a_lies ? kTransposed : kAsItIs, b_lies ? kAsItIs : kTransposed, size(m), size(n), size(k), 1.0f,
                         data<uint16_t>(a), size(a_lies ? m : k), data<uint16_t>(b), size(b_lies ? n : k), add ? 1.0f : 0.0f,
                         data<float>(result), size(n));
  return true;
#else
  return false;
#endif
}

// Without AVX-512 libtorch does not give bfloat16 to oneDNN (mkldnn_bf16_device_check of aten/src/ATen/native/mkldnn/Utils.h) but multiplies
// by plain loops, of which that of an input's gradient does 2 GFLOP/s, on one thread, where float32 does 150 (two cores of a Zen 3). MKL
// widens what it multiplies on its way, which is up to twice as fast as to widen both operands before it.
static bool to_be_widened(const Tensor& a) {
#if defined(__x86_64__)
  return a.scalar_type() == at::kBFloat16 && a.device().is_cpu() && instructions() < Instructions::kAvx512;
#else
  return false;
#endif
}

Tensor wide_product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  if (!at::isReducedFloatingType(a.scalar_type())) return product(a, b, bias);
  if (a.is_cuda()) {
    Tensor result = at::mm(a, b.t(), at::kFloat);
    return bias ? result.add_(*bias) : result;
  }
  // A model's head of one number is widened, which costs nothing.
  constexpr int64_t kMany = 32;
  if (a.device().is_cpu() && a.scalar_type() == at::kBFloat16 && b.size(0) >= kMany) {
    Tensor result = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kFloat));
    if (tile_product_into(a, b, false, result) || inner_product_into(a, b, result) || through_mkl(a, b, false, result))
      return bias ? result.add_(*bias) : result;
  }
  const auto wide_bias = bias ? std::optional<Tensor>(bias->to(at::kFloat)) : std::nullopt;
  return product(a.to(at::kFloat), b.to(at::kFloat), wide_bias);
}

// A result of a's type or float32, as its bias, if it has one, is to be added to.
static Tensor start(const Tensor& a, const Tensor& b, const Tensor* bias, bool wide) {
  Tensor result = at::empty({a.size(0), b.size(0)}, wide ? a.options().dtype(at::kFloat) : a.options());
  if (bias) result.copy_(bias->expand(result.sizes()));
  return result;
}

Tensor product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  if (is_tiled(a, b) && (!bias || bias->scalar_type() == a.scalar_type())) {
    Tensor result = start(a, b, bias ? &*bias : nullptr, false);
    if (tile_product_into(a, b, bias.has_value(), result)) return result;
  }
  if (to_be_widened(a)) return wide_product(a, b, bias).to(at::kBFloat16);
  if (through_onednn(a, b)) {
    return at::native::mkldnn_linear_pointwise(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
  }
  return bias ? at::addmm(*bias, a, b.t()) : at::mm(a, b.t());
}

variable_list products(const Tensor& a, at::TensorList bs, at::TensorList biases, bool wide) {
  variable_list results;
  const auto tiled = [&](const Tensor& b) { return is_tiled(a, b); };
  const auto alike = [&](const Tensor& bias) { return bias.scalar_type() == a.scalar_type(); };
  if (std::all_of(bs.begin(), bs.end(), tiled) && std::all_of(biases.begin(), biases.end(), alike)) {
    for (size_t i = 0; i < bs.size(); i++) results.push_back(start(a, bs[i], biases.empty() ? nullptr : &biases[i], wide));
    if (tile_products_into(a, bs, !biases.empty(), results)) return results;
    results.clear();
  }
  for (size_t i = 0; i < bs.size(); i++) {
    const auto bias = biases.empty() ? std::nullopt : std::optional<Tensor>(biases[i]);
    results.push_back(wide ? wide_product(a, bs[i], bias) : product(a, bs[i], bias));
  }
  return results;
}

// What was made elsewhere, to `result` or added to it.
static void take(const Tensor& made, bool add, Tensor& result) {
  if (add) result.add_(made);
  else result.copy_(made);
}

void product_into(const Tensor& a, const Tensor& b, bool add, Tensor result) {
  if (tile_product_into(a, b, add, result)) return;
  if (to_be_widened(a)) {
    if (result.scalar_type() != at::kFloat) return take(wide_product(a, b), add, result);
    if (!through_mkl(a, b, add, result)) product_into(a.to(at::kFloat), b.to(at::kFloat), add, result);
    return;
  }
  if (through_onednn(a, b)) return at::native::mkldnn_matmul(a, b.t(), result, add ? 1.0f : 0.0f, 1.0f);
  if (result.scalar_type() == a.scalar_type()) {
    result.addmm_(a, b.t(), add ? 1 : 0);
    return;
  }
  if (result.is_cuda()) {
    at::addmm_out(result, result, a, b.t(), at::kFloat, add ? 1 : 0);
    return;
  }
  // On a CPU libtorch has no operator for bfloat16 into float32.
  if (outer_product_into(a.t(), b.t(), add, result)) return;
  // One weight's rounded product stays in the cache on its way.
  take(at::mm(a, b.t()), add, result);
}

Tensor gathered_gradient(const Tensor& parameter) {
  if (!parameter.is_leaf() || at::GradMode::is_enabled()) return Tensor();
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined() || !gradient.is_contiguous()) return Tensor();
  const at::ScalarType type = gradient.scalar_type();
  return type == parameter.scalar_type() || type == at::kFloat ? gradient : Tensor();
}

// What a product's input is made from, by a layer so cheap that it is computed again for the backward pass and not kept until then: of
// a decoder's activations that is a third.
struct Front {
  enum Layer : int64_t { kRows, kNorm, kGate };
  Layer layer;
  Tensor first, second;  // rows alone; rows and the norm's weight; gate and up
  double eps;
  Tensor r = {}, output = {};  // what the backward pass needs of `compute`: of a norm's kernel, and of libtorch's operators

  // For a backward pass of its own, too, where `again`.
  Tensor compute(bool again) {
    if (layer == kRows) return first;
    if (has_kernels(first)) {
      if (layer == kGate) return kernels::gate(first, second);
      kernels::Normed normed = kernels::norm(first, second, eps);
      r = normed.r;
      return normed.output;
    }
    if (layer == kGate) {
      at::NoGradGuard no_grad;
      return stock::gate(first, second);
    }
    at::AutoGradMode tracked(again);
    if (again) first = first.detach().requires_grad_(true), second = second.detach().requires_grad_(true);
    output = stock::rms_norm(first, second, eps);
    return output.detach();
  }

  // Gradients of `first` and `second` from that of what `compute` gave.
  variable_list backward(const Tensor& gradient) const {
    if (layer == kRows) return {gradient, Tensor()};
    if (layer == kNorm)
      return output.defined() ? torch::autograd::grad({output}, {first, second}, {gradient})
                              : kernels::norm_backward(gradient, first, second, r);
    return has_kernels(first) ? kernels::gate_backward(gradient, first, second) : stock::gate_backward(gradient, first, second);
  }
};

// Gradients of weights that had one input: those that gather are added to, the others are new.
class WeightGradients {
 public:
  // What to answer for a weight: its new gradient, which is there after `compute`, or nothing where its own gathers.
  Tensor expect(const Tensor& gradient, const Tensor& weight) {
    const Tensor gathered = gathered_gradient(weight), answer = gathered.defined() ? Tensor() : at::empty_like(weight);
    Kind& kind = gathered.defined() ? gathering_ : fresh_;
    kind.outputs.push_back(gradient.t());
    kind.results.push_back(gathered.defined() ? gathered : answer);
    return answer;
  }

  void compute(const Tensor& input) const {
    gathering_.compute(input, true);
    fresh_.compute(input, false);
  }

 private:
  struct Kind {
    variable_list outputs, results;

    void compute(const Tensor& input, bool add) const {
      if (results.empty() || tile_products_into(outputs, input.t(), add, results)) return;
      for (size_t i = 0; i < results.size(); i++) product_into(outputs[i], input.t(), add, results[i]);
    }
  };
  Kind gathering_, fresh_;
};

struct Linears : torch::autograd::Function<Linears> {
  // What `front` makes [rows, in], weights [out, in] each, no biases or one [out] each -> [rows, out] each; of 16 bits only unless `wide`
  static variable_list forward(AutogradContext* ctx, const Tensor& first, const std::optional<Tensor>& other, at::TensorList weights,
                               at::TensorList biases, int64_t layer, double eps, bool wide) {
    TORCH_CHECK(biases.empty() || biases.size() == weights.size(), biases.size(), " biases for ", weights.size(), " weights");
    const Tensor second = other.value_or(Tensor()), input = Front{Front::Layer(layer), first, second, eps}.compute(false);
    // Rows themselves are for the gradients of weights alone.
    const auto learns = [](const Tensor& weight) { return weight.requires_grad(); };
    const bool kept = layer != Front::kRows || std::any_of(weights.begin(), weights.end(), learns);
    variable_list saved = {kept ? first : Tensor(), second};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["biased"] = !biases.empty();
    ctx->saved_data["layer"] = layer;
    ctx->saved_data["eps"] = eps;
    return products(input, weights, biases, wide);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    Front front{Front::Layer(ctx->saved_data["layer"].toInt()), saved[0], saved[1], ctx->saved_data["eps"].toDouble()};
    const Tensor input = front.compute(true);
    const bool has_second = saved[1].defined(), wants_input = ctx->needs_input_grad(0) || (has_second && ctx->needs_input_grad(1));
    // Edges of the graph are the given tensors alone; answers are to all arguments.
    const size_t count = gradients.size(), edges = 1 + has_second;
    variable_list answer(2 + count);
    Tensor input_gradient;
    WeightGradients of_weights;
    for (size_t i = 0; i < count; i++) {
      if (!gradients[i].defined()) continue;
      const Tensor &weight = saved[2 + i], gradient = gradients[i].to(weight.scalar_type()).contiguous();
      if (wants_input) {
        if (input_gradient.defined()) product_into(gradient, weight.t(), true, input_gradient);
        else input_gradient = product(gradient, weight.t());
      }
      if (ctx->needs_input_grad(edges + i)) answer[2 + i] = of_weights.expect(gradient, weight);
    }
    of_weights.compute(input);
    if (input_gradient.defined()) {
      variable_list of_front = front.backward(input_gradient);
      answer[0] = std::move(of_front[0]), answer[1] = std::move(of_front[1]);
    }
    if (ctx->saved_data["biased"].toBool())
      for (size_t i = 0; i < count; i++)
        answer.push_back(gradients[i].defined() && ctx->needs_input_grad(edges + count + i)
                             ? gradients[i].to(saved[2 + i].scalar_type()).sum(0)
                             : Tensor());
    answer.resize(answer.size() + 3);
    return answer;
  }
};

}  // namespace ppo::training

// `layer` is one of Front's, `second` null for rows alone; `biases` is null, or holds as many as `weights`. Outputs of 16-bit numbers are
// float32 if they are to be `wide`.
extern "C" char* ppo_training_linears(int64_t layer, const at::Tensor* first, const at::Tensor* second, double eps,
                                      const at::Tensor* const* weights, const at::Tensor* const* biases, int64_t count, bool wide,
                                      at::Tensor** outputs) {
  return ppo::training::guarded([&] {
    std::vector<at::Tensor> given, added;
    for (int64_t i = 0; i < count; i++) given.push_back(*weights[i]);
    for (int64_t i = 0; biases && i < count; i++) added.push_back(*biases[i]);
    const auto results = ppo::training::Linears::apply(*first, second ? std::optional<at::Tensor>(*second) : std::nullopt, at::TensorList(given),
                                                       at::TensorList(added), layer, eps, wide);
    for (int64_t i = 0; i < count; i++) outputs[i] = new at::Tensor(results[i]);
  });
}

extern "C" void ppo_training_free_error(char* message) { free(message); }
