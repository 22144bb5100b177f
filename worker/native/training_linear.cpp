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

Tensor product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  static const bool onednn = prefers_onednn();
  if (onednn && a.scalar_type() == at::kFloat && a.device().is_cpu() && a.numel() > 0 && b.numel() > 0) {
    return at::native::mkldnn_linear_pointwise(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
  }
  return bias ? at::addmm(*bias, a, b.t()) : at::mm(a, b.t());
}

struct Linear : torch::autograd::Function<Linear> {
  // input [rows, in], weight [out, in], bias [out] -> [rows, out]
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
    ctx->save_for_backward({input, weight});
    ctx->saved_data["biased"] = bias.has_value();
    return product(input, weight, bias);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const Tensor gradient = gradients[0].contiguous();
    const auto saved = ctx->get_saved_variables();
    const Tensor &input = saved[0], &weight = saved[1];
    Tensor of_input, of_weight, of_bias;
    if (ctx->needs_input_grad(0)) of_input = product(gradient, weight.t());
    if (ctx->needs_input_grad(1)) of_weight = product(gradient.t(), input.t());
    if (ctx->saved_data["biased"].toBool() && ctx->needs_input_grad(2)) of_bias = gradient.sum(0);
    return {of_input, of_weight, of_bias};
  }
};

}  // namespace ppo::training

extern "C" char* ppo_training_linear(const at::Tensor* input, const at::Tensor* weight, const at::Tensor* bias,
                                     at::Tensor** output) {
  return ppo::training::guarded([&] {
    const auto given = bias ? std::optional<at::Tensor>(*bias) : std::nullopt;
    *output = new at::Tensor(ppo::training::Linear::apply(*input, *weight, given));
  });
}

extern "C" void ppo_training_free_error(char* message) { free(message); }
