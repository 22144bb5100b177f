// Activation checkpointing (Chen et al. 2016, arXiv:1604.06174): of a layer only the input is kept, the backward pass computes
// the layer again. The layer itself is a callback into the caller.
#include <torch/csrc/autograd/autograd.h>

#include "training.h"

#include <memory>

namespace ppo::training {

// The caller's layer: writes a new tensor to `output` and returns 0, or a message that `free_message` takes back.
struct Layer {
  std::unique_ptr<void, void (*)(void*)> state;  // with how it is dropped
  char* (*forward)(void* state, Tensor* input, Tensor** output);
  void (*free_message)(char* message);

  Tensor operator()(const Tensor& input) const {
    Tensor* output = nullptr;
    char* error = forward(state.get(), new Tensor(input), &output);
    if (error) {
      std::string message(error);
      free_message(error);
      TORCH_CHECK(false, message);
    }
    std::unique_ptr<Tensor> owned(output);
    return *owned;
  }
};

struct LayerHolder : torch::CustomClassHolder {
  Layer layer;
  explicit LayerHolder(Layer layer) : layer(std::move(layer)) {}
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, c10::intrusive_ptr<LayerHolder> holder) {
    ctx->save_for_backward({input});
    ctx->saved_data["layer"] = c10::IValue::make_capsule(holder);
    return holder->layer(input);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto holder = c10::static_intrusive_pointer_cast<LayerHolder>(ctx->saved_data["layer"].toCapsule());
    at::AutoGradMode enabled(true);
    Tensor input = ctx->get_saved_variables()[0].detach().requires_grad_(true);
    Tensor output = holder->layer(input);
    // Adds to the gradients of the layer's parameters in passing.
    torch::autograd::backward({output}, {gradients[0]});
    return {input.grad(), Tensor()};
  }
};

}  // namespace ppo::training

extern "C" char* ppo_training_checkpoint(const at::Tensor* input, void* state,
                                         char* (*forward)(void*, at::Tensor*, at::Tensor**), void (*drop)(void*),
                                         void (*free_message)(char*), at::Tensor** output) {
  using namespace ppo::training;
  Layer layer{{state, drop}, forward, free_message};
  return guarded([&] {
    auto holder = c10::make_intrusive<LayerHolder>(std::move(layer));
    // With frozen embeddings the input needs no gradient, but the layer's parameters may.
    Tensor tracked = at::GradMode::is_enabled() && !input->requires_grad() ? input->detach().requires_grad_(true) : *input;
    *output = new Tensor(Checkpoint::apply(tracked, holder));
  });
}
