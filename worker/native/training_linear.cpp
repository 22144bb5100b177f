// Linear layers. In float32 libtorch multiplies through MKL, which takes slow code paths on processors that are not Intel's;
// oneDNN, which libtorch carries too, is 2.2 times faster there. It reads transposed operands as strided views, so neither
// the input's nor the weight's gradient needs a copy, and no packed weight can go stale.
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

namespace ppo::training {

// Decided by the processor's name and not by a timing: a resumed run must multiply with the same library, bit for bit.
static bool prefers_onednn() {
#if defined(__x86_64__)
  unsigned int eax, ebx, ecx, edx;
  if (!at::globalContext().userEnabledMkldnn() || !__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return false;
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

Tensor product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  if (through_onednn(a, b)) {
    return at::native::mkldnn_linear_pointwise(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
  }
  return bias ? at::addmm(*bias, a, b.t()) : at::mm(a, b.t());
}

void product_into(const Tensor& a, const Tensor& b, bool add, Tensor result) {
  if (through_onednn(a, b)) return at::native::mkldnn_matmul(a, b.t(), result, add ? 1.0f : 0.0f, 1.0f);
  if (result.scalar_type() == a.scalar_type()) {
    result.addmm_(a, b.t(), add ? 1 : 0);
    return;
  }
  if (result.is_cuda()) {
    at::addmm_out(result, result, a, b.t(), at::kFloat, add ? 1 : 0);
    return;
  }
  // On a CPU libtorch has no product of bfloat16 into float32. One weight's rounded product stays in the cache on its way.
  const Tensor rounded = at::mm(a, b.t());
  if (add) result.add_(rounded);
  else result.copy_(rounded);
}

Tensor gathered_gradient(const Tensor& parameter) {
  if (!parameter.is_leaf() || at::GradMode::is_enabled()) return Tensor();
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined() || !gradient.is_contiguous()) return Tensor();
  const at::ScalarType type = gradient.scalar_type();
  return type == parameter.scalar_type() || type == at::kFloat ? gradient : Tensor();
}

struct Linears : torch::autograd::Function<Linears> {
  // input [rows, in], weights [out, in] each, no biases or one [out] each -> [rows, out] each
  static variable_list forward(AutogradContext* ctx, const Tensor& input, at::TensorList weights, at::TensorList biases) {
    TORCH_CHECK(biases.empty() || biases.size() == weights.size(), biases.size(), " biases for ", weights.size(), " weights");
    variable_list saved = {input}, outputs;
    for (size_t i = 0; i < weights.size(); i++) {
      saved.push_back(weights[i]);
      outputs.push_back(product(input, weights[i], biases.empty() ? std::nullopt : std::optional<Tensor>(biases[i])));
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["biased"] = !biases.empty();
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor& input = saved[0];
    const size_t count = gradients.size();
    variable_list answer(1 + count);
    for (size_t i = 0; i < count; i++) {
      if (!gradients[i].defined()) continue;
      const Tensor gradient = gradients[i].contiguous(), &weight = saved[1 + i];
      if (ctx->needs_input_grad(0)) {
        if (answer[0].defined()) product_into(gradient, weight.t(), true, answer[0]);
        else answer[0] = product(gradient, weight.t());
      }
      if (ctx->needs_input_grad(1 + i)) answer[1 + i] = weight_gradient(gradient, input, weight);
    }
    if (ctx->saved_data["biased"].toBool())
      for (size_t i = 0; i < count; i++)
        answer.push_back(gradients[i].defined() && ctx->needs_input_grad(1 + count + i) ? gradients[i].sum(0) : Tensor());
    return answer;
  }

  static Tensor weight_gradient(const Tensor& gradient, const Tensor& input, const Tensor& weight) {
    if (Tensor gathered = gathered_gradient(weight); gathered.defined()) {
      product_into(gradient.t(), input.t(), true, gathered);
      return Tensor();
    }
    Tensor fresh = at::empty_like(weight);
    product_into(gradient.t(), input.t(), false, fresh);
    return fresh;
  }
};

}  // namespace ppo::training

// `biases` is null, or holds as many as `weights`.
extern "C" char* ppo_training_linears(const at::Tensor* input, const at::Tensor* const* weights, const at::Tensor* const* biases,
                                      int64_t count, at::Tensor** outputs) {
  return ppo::training::guarded([&] {
    std::vector<at::Tensor> given, added;
    for (int64_t i = 0; i < count; i++) given.push_back(*weights[i]);
    for (int64_t i = 0; biases && i < count; i++) added.push_back(*biases[i]);
    const auto results = ppo::training::Linears::apply(*input, at::TensorList(given), at::TensorList(added));
    for (int64_t i = 0; i < count; i++) outputs[i] = new at::Tensor(results[i]);
  });
}

extern "C" void ppo_training_free_error(char* message) { free(message); }
