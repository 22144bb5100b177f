// What a process that computes on a GPU needs of libtorch and tch does not bind. It is written against c10's faces that every device has
// in common, so it needs no header of CUDA, and links to libtorch's CPU part alone.
#include "training.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

using ppo::training::guarded;

namespace {

c10::Device cuda(int64_t number) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(number)}; }

c10::impl::VirtualGuardImpl cuda_guard() { return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA); }

// A stream for collectives beside the one that libtorch computes on.
struct Lane {
  c10::Device device;
  c10::Stream stream;
};

}  // namespace

extern "C" {

// How libtorch computes on GPUs from now on, in this process.
char* ppo_device_prepare() {
  return guarded([] {
    auto& context = at::globalContext();
    // TF32 has 10 bits of mantissa: a float32 run is one that wants 23.
    context.setAllowTF32CuBLAS(false);
    context.setAllowTF32CuDNN(false);
    // Long sums of 16-bit products are added up in float32.
    context.setAllowBF16ReductionCuBLAS(false);
    context.setAllowFP16ReductionCuBLAS(false);
    // What makes cuBLAS give the same bits on every run, a workspace of fixed size (https://docs.nvidia.com/cuda/cublas/#results-reproducibility),
    // libtorch gives it unasked. CUBLAS_WORKSPACE_CONFIG would have libtorch 2.11 parse that text at every product: 35 us each, 100 with a bias.
    //
    // Deterministic operators are asked for where sums depend on it alone (Deterministically in training_stock.cpp): everywhere, an
    // engine's write to its cache would be a sort (index_put_ in aten/src/ATen/native/TensorAdvancedIndexing.cpp). Where they are, new
    // tensors would be filled with NaN.
    context.setDeterministicFillUninitializedMemory(false);
  });
}

// For tests: whether libtorch is asked for deterministic operators now.
bool ppo_device_is_deterministic() { return at::globalContext().deterministicAlgorithms(); }

// What this thread allocates without saying where is on that GPU.
char* ppo_device_use(int64_t number) {
  return guarded([&] { cuda_guard().setDevice(cuda(number)); });
}

// Waits for what the GPU was given to do on the calling thread's stream, or on the one that all threads share which have none of their
// own. Never for the whole device: CUDA forbids that while a stream is captured, in whatever thread, and spoils the capture.
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#prohibited-and-unhandled-operations
char* ppo_device_synchronize(int64_t number, bool shared) {
  return guarded([&] {
    const auto guard = cuda_guard();
    guard.synchronizeStream(shared ? guard.getDefaultStream(cuda(number)) : guard.getStream(cuda(number)));
  });
}

// Bytes of tensors now and at most since the last time this was asked, and bytes that libtorch holds for them.
char* ppo_device_memory(int64_t number, int64_t* now, int64_t* most, int64_t* held) {
  return guarded([&] {
    auto* allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
    const auto index = static_cast<c10::DeviceIndex>(number);
    const auto stats = allocator->getDeviceStats(index);
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *now = stats.allocated_bytes[all].current;
    *most = stats.allocated_bytes[all].peak;
    *held = stats.reserved_bytes[all].current;
    allocator->resetPeakStats(index);
  });
}

// A small tensor of the host on a GPU. The copy goes by itself, from memory that the kernel does not move; libtorch keeps that memory
// until it is done.
char* ppo_to_device(const at::Tensor* tensor, int64_t number, at::Tensor** output) {
  return guarded([&] {
    const at::Tensor pinned = tensor->contiguous().pin_memory();
    *output = new at::Tensor(pinned.to(cuda(number), pinned.scalar_type(), /*non_blocking=*/true, /*copy=*/true));
  });
}

// Int64 of the host, for a GPU in memory that the kernel does not move.
char* ppo_staging(int64_t count, bool pinned, at::Tensor** output) {
  return guarded([&] { *output = new at::Tensor(at::zeros({count}, at::TensorOptions(at::kLong).pinned_memory(pinned))); });
}

// Between a device and memory of the host that is pinned: goes by itself. Other memory of the host is waited for.
char* ppo_copy(at::Tensor* target, const at::Tensor* source) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    target->copy_(*source, /*non_blocking=*/true);
  });
}

// Fills `target` (contiguous) with numbers of the kind of `like` that lie at `bytes`, `piece` of them at a time: to a GPU through
// pieces of pinned memory, of which libtorch has as many as copies are under way.
char* ppo_fill(at::Tensor* target, const uint8_t* bytes, const at::Tensor* like, int64_t piece) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    TORCH_CHECK(target->is_contiguous(), "a tensor that is filled must be contiguous");
    const bool away = !target->device().is_cpu();
    const at::Tensor flat = target->view({-1});
    const int64_t size = like->element_size();
    for (int64_t start = 0; start < flat.numel(); start += piece) {
      const int64_t count = std::min(piece, flat.numel() - start);
      at::Tensor staged = at::empty({count}, like->options().device(at::kCPU).pinned_memory(away));
      std::memcpy(staged.data_ptr(), bytes + start * size, count * size);
      // Converted where it goes: what travels is what the file has.
      const at::Tensor there = away ? staged.to(target->device(), /*non_blocking=*/true) : staged;
      flat.narrow(0, start, count).copy_(there);
    }
  });
}

// A stream of that GPU for collectives.
char* ppo_lane_open(int64_t number, void** lane, void** stream) {
  return guarded([&] {
    auto opened = cuda_guard().getStreamFromGlobalPool(cuda(number), /*isHighPriority=*/true);
    *stream = opened.native_handle();
    *lane = new Lane{cuda(number), opened};
  });
}

void ppo_lane_close(void* lane) { delete static_cast<Lane*>(lane); }

// What comes on the lane next begins when what libtorch was given to do so far is done. `tensor` is used there: its memory is not
// given to another before that has ended.
char* ppo_lane_enter(void* lane, const at::Tensor* tensor) {
  return guarded([&] {
    auto& it = *static_cast<Lane*>(lane);
    c10::Event reached(c10::DeviceType::CUDA);
    reached.record(cuda_guard().getStream(it.device));
    reached.block(it.stream);
    cuda_guard().recordDataPtrOnStream(tensor->storage().data_ptr(), it.stream);
  });
}

// An event behind all that is on the lane.
char* ppo_lane_mark(void* lane, void** event) {
  return guarded([&] {
    auto marked = std::make_unique<c10::Event>(c10::DeviceType::CUDA);
    marked->record(static_cast<Lane*>(lane)->stream);
    *event = marked.release();
  });
}

// Whether everything before the event is done.
char* ppo_event_passed(void* event, bool* passed) {
  return guarded([&] { *passed = static_cast<c10::Event*>(event)->query(); });
}

void ppo_event_free(void* event) { delete static_cast<c10::Event*>(event); }

}  // extern "C"
