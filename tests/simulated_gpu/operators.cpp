// Operators on simulated GPUs: each runs the CPU's kernel over the same memory, once it has been checked that a GPU could run it: all
// tensors on one device, nothing that another stream may be writing, no wait while a graph is captured.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <set>

#include "memory.h"
#include "order.h"
#include "recording.h"

namespace simulated {

Recording*& recording() {
  thread_local Recording* here = nullptr;
  return here;
}

void refuse_in_capture(const std::string& what) {
  TORCH_CHECK(recording() == nullptr, "simulated GPU: ", what, " waits for the device, which cannot be captured in a graph");
}

namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

void* memory_of(const at::Tensor& tensor) { return tensor.storage().mutable_data(); }

// The host's view of a tensor: the same numbers.
at::Tensor seen(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  c10::DataPtr data(of_host(memory_of(tensor)), c10::Device(c10::DeviceType::CPU));
  c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), /*allocator=*/nullptr, /*resizable=*/false);
  auto view = at::detail::make_tensor<c10::TensorImpl>(std::move(same), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return view;
}

void used(const at::Tensor& tensor, bool written, StreamName stream, const std::string& what) {
  const void* memory = memory_of(tensor);
  if (memory == nullptr || tensor.numel() == 0) return;
  auto& uses = uses_of(memory);
  written ? order().write(uses, stream, what) : order().read(uses, stream, what);
}

// Operators whose answer's shape or value the host has to know.
bool waits(const c10::FunctionSchema& schema, const std::vector<IValue>& given) {
  static const std::set<std::string> names = {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::equal",
                                              "aten::unique_consecutive", "aten::is_nonzero", "aten::bincount"};
  if (names.count(schema.name()) != 0) return true;
  if (schema.name() == "aten::repeat_interleave" && schema.overload_name() == "Tensor") return true;
  if (schema.name() != "aten::index" && schema.name() != "aten::index_put_" && schema.name() != "aten::_index_put_impl_") return false;
  for (const auto& value : given[1].toListRef())  // numbers of the host go to the device, and where a mask holds is counted
    if (value.isTensor() && value.toTensor().defined() && (value.toTensor().is_cpu() || value.toTensor().scalar_type() == at::kBool)) return true;
  return false;
}

// One call of an operator, and how its arguments and answers go between the device and the host's kernel.
class Call {
 public:
  Call(c10::OperatorHandle op, std::vector<IValue> given)
      : op_(std::move(op)), given_(std::move(given)), waits_(simulated::waits(op_.schema(), given_)) {
    const auto note = [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_cuda() && !device_) device_ = tensor.device();
    };
    each_tensor(note);
    for (const auto& value : given_)
      if (value.isDevice() && value.toDevice().is_cuda() && !device_) device_ = value.toDevice();
    TORCH_CHECK(device_.has_value(), "simulated GPU: ", name(), " without a device");
    if (!device_->has_index()) device_->set_index(static_cast<c10::DeviceIndex>(current_device()));
    each_tensor([&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.device() == *device_ || (tensor.is_cpu() && tensor.dim() == 0)) return;
      const bool index = tensor.is_cpu() && waits_;
      TORCH_CHECK(index, "simulated GPU: ", name(), " got tensors of ", *device_, " and of ", tensor.device());
    });
  }

  std::string name() const { return op_.schema().name(); }
  c10::Device device() const { return *device_; }
  bool waits() const { return waits_; }

  // The host's answers.
  std::vector<IValue> compute() const {
    const auto stream = order().current(device_->index());
    order().next(stream);
    const auto& arguments = op_.schema().arguments();
    Stack stack;
    for (size_t i = 0; i < given_.size(); i++) {
      const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
      stack.push_back(for_host(given_[i], written, stream));
    }
    const auto passed = stack;
    op_.callBoxed(&stack);
    for (size_t i = 0; i < given_.size(); i++) resized(given_[i], passed[i]);
    if (waits_) order().synchronize(stream);
    return stack;
  }

  // An answer as the device gives it: an argument that was written, a view of one, or new memory.
  IValue answer(const IValue& value, size_t place, std::vector<at::Tensor>& fresh) const {
    const auto& schema = op_.schema();
    const auto* alias = schema.returns()[place].alias_info();
    const int64_t source = alias == nullptr ? -1 : source_of(*alias);
    if (alias != nullptr && alias->isWrite() && source >= 0) return given_[source];
    const auto one = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      if (source >= 0 && given_[source].isTensor()) {
        const auto& whole = given_[source].toTensor();
        if (tensor.storage().data() == of_host(memory_of(whole)) && tensor.dtype() == whole.dtype())
          return at::native::as_strided_tensorimpl(whole, tensor.sizes(), tensor.strides(), tensor.storage_offset());
      }
      fresh.push_back(to_device(tensor));
      return fresh.back();
    };
    if (value.isTensor()) return one(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const auto& tensor : value.toTensorVector()) list.push_back(one(tensor));
    return list;
  }

  at::Tensor to_device(const at::Tensor& tensor) const {
    auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(*device_));
    refill(made, tensor);
    return made;
  }

  // Numbers of the host into memory of the device that has room for as many.
  void refill(const at::Tensor& made, const at::Tensor& tensor) const {
    used(made, /*written=*/true, order().current(device_->index()), name());
    seen(made).copy_(tensor);
  }

 private:
  template <typename F>
  void each_tensor(F&& visit) const {
    for (const auto& value : given_) {
      if (value.isTensor()) visit(value.toTensor());
      if (value.isTensorList())
        for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
      if (value.isList() && !value.isTensorList())
        for (const auto& element : value.toListRef())
          if (element.isTensor()) visit(element.toTensor());
    }
  }

  IValue for_host(const IValue& value, bool written, StreamName stream) const {
    const auto one = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.is_cpu()) return tensor;
      used(tensor, written, stream, name());
      // An output that is to be given its size.
      return written && tensor.storage().nbytes() == 0 ? at::empty({0}, tensor.options().device(at::kCPU)) : seen(tensor);
    };
    if (value.isTensor()) return one(value.toTensor());
    if (value.isDevice()) return c10::Device(c10::DeviceType::CPU);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& tensor : value.toTensorVector()) list.push_back(one(tensor));
      return list;
    }
    if (value.isList()) {
      auto list = value.toList().copy();
      for (size_t i = 0; i < list.size(); i++) {
        const IValue element = list.get(i);
        if (element.isTensor()) list.set(i, one(element.toTensor()));
      }
      return list;
    }
    return value;
  }

  // An output that the kernel gave its size.
  void resized(const IValue& given, const IValue& passed) const {
    if (!given.isTensor() || !given.toTensor().defined() || given.toTensor().is_cpu()) return;
    const auto& tensor = given.toTensor();
    const auto& host = passed.toTensor();
    if (tensor.sizes() == host.sizes()) return;
    TORCH_CHECK(tensor.storage().nbytes() == 0, "simulated GPU: ", name(), " gives another size to an output that has one");
    const auto made = to_device(host);
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), 0);
  }

  int64_t source_of(const c10::AliasInfo& alias) const {
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); i++) {
      const auto* other = arguments[i].alias_info();
      if (other != nullptr && other->beforeSets() == alias.beforeSets()) return static_cast<int64_t>(i);
    }
    return -1;
  }

  c10::OperatorHandle op_;
  std::vector<IValue> given_;
  bool waits_;
  std::optional<c10::Device> device_;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto count = op.schema().arguments().size();
  auto call = std::make_shared<Call>(op, torch::jit::last(*stack, count).vec());
  torch::jit::drop(*stack, count);
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::DeviceGuard there(call->device());
  if (call->waits()) refuse_in_capture(call->name());
  const auto values = call->compute();
  std::vector<at::Tensor> fresh;
  for (size_t place = 0; place < values.size(); place++) stack->push_back(call->answer(values[place], place, fresh));
  if (auto* capture = recording()) {
    capture->made.insert(capture->made.end(), fresh.begin(), fresh.end());
    capture->steps.push_back([call, fresh] {
      size_t next = 0;
      const auto again = [&](const at::Tensor& tensor) {
        if (tensor.defined() && next < fresh.size()) call->refill(fresh[next++], tensor);
      };
      const auto values = call->compute();
      if (fresh.empty()) return;
      for (const auto& value : values) {
        if (value.isTensor()) again(value.toTensor());
        if (value.isTensorList())
          for (const at::Tensor& tensor : value.toTensorVector()) again(tensor);
      }
    });
  }
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard there(device.value_or(at::Device(at::kCUDA)));
  return at::detail::empty_generic(size, allocator(), kCuda, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard there(device.value_or(at::Device(at::kCUDA)));
  return at::detail::empty_strided_generic(size, stride, allocator(), kCuda, c10::dtype_or_default(type));
}

// On the current stream of the device; between two, each waits for the other.
void copy(const at::Tensor& to, const at::Tensor& from, bool waits) {
  std::optional<StreamName> reads, writes;
  if (from.is_cuda()) order().next(*(reads = order().current(from.device().index())));
  if (to.is_cuda()) order().next(*(writes = order().current(to.device().index())));
  if (reads && writes && reads != writes) order().wait(*reads, order().mark(*writes));
  if (reads) used(from, false, *reads, "aten::copy_");
  if (reads && writes && reads != writes) order().wait(*writes, order().mark(*reads));
  if (writes) used(to, true, *writes, "aten::copy_");
  const auto host = [](const at::Tensor& tensor) { return tensor.is_cuda() ? seen(tensor) : tensor; };
  host(to).copy_(host(from));
  if (waits) order().synchronize(reads ? *reads : *writes);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool crosses = self.is_cpu() || source.is_cpu();
  const bool scalar = source.is_cpu() && source.dim() == 0 && source.numel() == 1;
  const auto& host = self.is_cpu() ? self : source;
  const bool pinned = crosses && host.numel() != 0 && is_pinned(host.storage().data());
  if (crosses && !(pinned && non_blocking)) refuse_in_capture("a copy between host and device");
  const auto expanded = source.sizes() == self.sizes() ? source : source.expand(self.sizes());
  if (self.numel() == 0) return self;
  copy(self, expanded, crosses && !non_blocking && !scalar);
  if (auto* capture = recording()) {
    const at::Tensor to = self;
    capture->steps.push_back([to, expanded] { copy(to, expanded, false); });
  }
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  refuse_in_capture("reading a number");
  const auto stream = order().current(self.device().index());
  order().next(stream);
  used(self, false, stream, "aten::_local_scalar_dense");
  order().synchronize(stream);
  return seen(self).item();
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

// Attention of padded sequences: the plain formula.
int64_t plain_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
                        std::optional<double>, bool) {
  return 0;
}

}  // namespace
}  // namespace simulated

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &simulated::plain_attention)
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&simulated::fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", simulated::empty);
  m.impl("empty_strided", simulated::empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("view.dtype", at::native::view_dtype);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", simulated::set_storage);
  m.impl("copy_", simulated::copy_);
  m.impl("_local_scalar_dense", simulated::local_scalar);
}
