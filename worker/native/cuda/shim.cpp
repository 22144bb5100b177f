// What needs libtorch_cuda's own headers: streams, graphs, memory. It is a library of its own, libppo_cuda.so, that the worker
// loads at run time where there is a GPU; the worker itself links to no CUDA library. Built by build.py beside this file.
//
// Every function answers null, or a message that is the caller's to free with ppo_cuda_free_error.
#include "../guarded.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

using ppo::guarded;

namespace {

c10::DeviceIndex index(int32_t device) { return static_cast<c10::DeviceIndex>(device); }

// A graph, and where memory comes from while it is captured.
struct Graph {
  c10::DeviceIndex device;
  c10::MempoolId_t pool;
  at::cuda::CUDAGraph captured;
};

// After a capture that failed. CUDAGraph of libtorch 2.11 leaves both allocators in it (pytorch/pytorch#180395): they would ask the graph
// which streams are its own when it is gone, free nothing for anybody's sake, and refuse the next capture into the pool. An allocator that
// had not begun, or has ended, throws before anything is released: the pool is other graphs' too.
void give_up(const Graph& graph) {
  try {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(graph.device, graph.pool);
    c10::cuda::CUDACachingAllocator::releasePool(graph.device, graph.pool);
  } catch (...) {
  }
  try {
    auto* pinned = at::getHostAllocator(at::kCUDA);
    pinned->end_allocate_to_pool(graph.pool);
    pinned->release_pool(graph.pool);
  } catch (...) {
  }
}

}  // namespace

extern "C" {

// Raised with every change of a signature below: the worker refuses another one.
int32_t ppo_cuda_abi() { return 4; }

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

// Gives back to the driver what libtorch holds and no tensor takes, of all devices. Waits for them where there is any.
char* ppo_cuda_empty_cache() {
  return guarded([] { c10::cuda::CUDACachingAllocator::emptyCache(); });
}

// A name for memory that several graphs share. They must be replayed one after another, and what one leaves there must be read
// before the next is replayed. Once no graph is left in it, also because a capture failed, nothing can be captured into it any more.
char* ppo_cuda_pool(uint64_t pool[2]) {
  return guarded([&] {
    const auto id = at::cuda::graph_pool_handle();
    pool[0] = id.first;
    pool[1] = id.second;
  });
}

// Begins to capture what the calling thread asks of its current stream. Other threads may go on using the device.
char* ppo_cuda_graph_begin(const uint64_t pool[2], Graph** graph) {
  return guarded([&] {
    std::unique_ptr<Graph> made(new Graph{c10::cuda::current_device(), {pool[0], pool[1]}, {}});
    try {
      made->captured.capture_begin(made->pool, cudaStreamCaptureModeThreadLocal);
    } catch (...) {
      give_up(*made);
      throw;
    }
    *graph = made.release();
  });
}

// Ends the capture; the graph can be replayed then. One that failed is still the caller's to free.
char* ppo_cuda_graph_end(Graph* graph) {
  return guarded([&] {
    try {
      graph->captured.capture_end();
    } catch (...) {
      give_up(*graph);
      throw;
    }
  });
}

// Asks the current stream for all that was captured. Does not wait.
char* ppo_cuda_graph_replay(Graph* graph) {
  return guarded([&] { graph->captured.replay(); });
}

// A destructor must not throw.
void ppo_cuda_graph_free(Graph* graph) { delete graph; }

}  // extern "C"
