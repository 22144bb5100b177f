// Where a kernel of ours meets libtorch's tensors: their addresses, the stream they are used on, errors of launches. The simulated GPU of the
// tests has a file of this name of its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <initializer_list>

namespace ppo::cuda {

template <typename T>
T* address(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// Puts kernels on the current stream. They read some tensors and write others; `fresh` are those that were made for them.
template <typename Launch>
void submit(const char*, std::initializer_list<at::Tensor>, std::initializer_list<at::Tensor> written, std::initializer_list<at::Tensor>, Launch launch) {
  const auto device = written.begin()->device();
  const c10::cuda::CUDAGuard guard(device);
  launch(c10::cuda::getCurrentCUDAStream(device.index()).stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace ppo::cuda
