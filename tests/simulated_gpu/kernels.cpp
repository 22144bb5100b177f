// Our own kernels, from their sources, and the functions over tensors before them.
#include "on_device.h"

#include "order.h"
#include "recording.h"

#include "../../worker/native/cuda/kernels.cu"

#include "../../worker/native/cuda/fused.cpp"

namespace simulated {

namespace {

void used(const at::Tensor& tensor, bool written, StreamName stream, const std::string& name) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  auto& uses = uses_of(tensor.data_ptr());
  written ? order().write(uses, stream, name) : order().read(uses, stream, name);
}

}  // namespace

void submit(const std::string& name, const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written, const std::vector<at::Tensor>& fresh,
            std::function<void()> work) {
  const int device = written.front().device().index();
  for (const auto& tensors : {read, written})
    for (const auto& tensor : tensors)
      TORCH_CHECK(!tensor.defined() || tensor.device().index() == device, "simulated GPU: ", name, " got tensors of two devices");
  // It keeps the tensors, as the memory of a graph stays its own.
  const auto step = [=] {
    const auto stream = order().current(device);
    order().next(stream);
    for (const auto& tensor : read) used(tensor, false, stream, name);
    for (const auto& tensor : written) used(tensor, true, stream, name);
    work();
  };
  step();
  if (auto* capture = recording()) {
    capture->made.insert(capture->made.end(), fresh.begin(), fresh.end());
    capture->steps.push_back(step);
  }
}

}  // namespace simulated
