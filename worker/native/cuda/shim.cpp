// What needs libtorch_cuda's own headers: streams, graphs, memory. It is a library of its own, libppo_cuda.so, that the worker
// loads at run time where there is a GPU; the worker itself links to no CUDA library. Built by build.py beside this file.
//
// Every function answers null, or a message that is the caller's to free with ppo_cuda_free_error.
#include "../guarded.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>

using ppo::guarded;

namespace {

c10::DeviceIndex index(int32_t device) { return static_cast<c10::DeviceIndex>(device); }

}  // namespace

extern "C" {

// Raised with every change of a signature below: the worker refuses another one.
int32_t ppo_cuda_abi() { return 1; }

void ppo_cuda_free_error(char* message) { free(message); }

// Makes a stream of the pool the calling thread's current one. Graphs cannot be captured on the default stream.
char* ppo_cuda_own_stream(int32_t device) {
  return guarded([&] {
    c10::cuda::set_device(index(device));
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, index(device)));
  });
}

// Bytes that the driver has free, and all.
char* ppo_cuda_memory(int32_t device, uint64_t* free, uint64_t* total) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(index(device));
    size_t free_bytes = 0, total_bytes = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    *free = free_bytes;
    *total = total_bytes;
  });
}

// A name for memory that several graphs share. They must be replayed one after another, and what one leaves there must be read
// before the next is replayed.
char* ppo_cuda_pool(uint64_t pool[2]) {
  return guarded([&] {
    const auto id = at::cuda::graph_pool_handle();
    pool[0] = id.first;
    pool[1] = id.second;
  });
}

// Begins to capture what the calling thread asks of its current stream. Other threads may go on using the device.
char* ppo_cuda_graph_begin(const uint64_t pool[2], at::cuda::CUDAGraph** graph) {
  return guarded([&] {
    auto* made = new at::cuda::CUDAGraph();
    try {
      made->capture_begin({pool[0], pool[1]}, cudaStreamCaptureModeThreadLocal);
    } catch (...) {
      delete made;
      throw;
    }
    *graph = made;
  });
}

// Ends the capture; the graph can be replayed then.
char* ppo_cuda_graph_end(at::cuda::CUDAGraph* graph) {
  return guarded([&] { graph->capture_end(); });
}

// Asks the current stream for all that was captured. Does not wait.
char* ppo_cuda_graph_replay(at::cuda::CUDAGraph* graph) {
  return guarded([&] { graph->replay(); });
}

// A destructor must not throw.
void ppo_cuda_graph_free(at::cuda::CUDAGraph* graph) { delete graph; }

}  // extern "C"
