// As native/cuda/on_device.h, for simulated GPUs: a kernel's pointers are the host's, its uses of memory are put in order like an operator's, and
// it is recorded while a graph is captured.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <functional>
#include <string>
#include <vector>

#include "cuda.h"
#include "memory.h"

namespace simulated {

// Does the work and, while this thread captures, keeps it for replays.
void submit(const std::string& name, const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written, const std::vector<at::Tensor>& fresh,
            std::function<void()> work);

}  // namespace simulated

namespace ppo::cuda {

template <typename T>
T* address(const at::Tensor& tensor) {
  return static_cast<T*>(simulated::of_host(tensor.data_ptr()));
}

template <typename Launch>
void submit(const char* name, std::initializer_list<at::Tensor> read, std::initializer_list<at::Tensor> written,
            std::initializer_list<at::Tensor> fresh, Launch launch) {
  simulated::submit(name, read, written, fresh, [launch] { launch(nullptr); });
}

}  // namespace ppo::cuda
