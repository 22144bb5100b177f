// What the optimizer needs and tch does not bind: gradients that accumulate into storage of ours, and libtorch's fused AdamW.
#include "training.h"

using ppo::training::guarded;

extern "C" {

// Makes `grad` the gradient of `parameter`: backward then adds to it in place.
char* ppo_set_grad(at::Tensor* parameter, at::Tensor* grad) {
  return guarded([&] { parameter->mutable_grad() = *grad; });
}

// One decoupled AdamW update (Loshchilov and Hutter 2019) of a flat float32 tensor. Gradients are divided by `grad_scale` [1].
char* ppo_adamw(at::Tensor* weights, at::Tensor* grads, at::Tensor* m, at::Tensor* v, at::Tensor* step, at::Tensor* grad_scale,
                double learning_rate, double beta1, double beta2, double weight_decay, double epsilon) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::_fused_adamw_({*weights}, {*grads}, {*m}, {*v}, {}, {*step}, learning_rate, beta1, beta2, weight_decay, epsilon,
                      /*amsgrad=*/false, /*maximize=*/false, *grad_scale, /*found_inf=*/std::nullopt);
  });
}

}  // extern "C"
