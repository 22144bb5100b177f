// Tensors over memory that is not libtorch's.
#include "training.h"

// A tensor of `dims` sizes over `data`. When its last view is gone, `release` gets `owner` back.
extern "C" char* ppo_tensor_over(void* data, const int64_t* sizes, int64_t dims, int32_t kind, void* owner, void (*release)(void*),
                                 void** output) {
  return ppo::training::guarded([&] {
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(kind));
    auto done = [owner, release](void*) { release(owner); };
    *output = new at::Tensor(at::from_blob(data, at::IntArrayRef(sizes, dims), done, options));
  });
}
