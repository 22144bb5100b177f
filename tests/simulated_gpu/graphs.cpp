// libppo_cuda.so for simulated GPUs: the functions of native/cuda/shim.cpp. A graph is what was asked for while it was captured, asked
// again. What it leaves in memory of its pool is spoilt when another graph of that pool is replayed, as a GPU may do.
#include "../../worker/native/guarded.h"

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "memory.h"
#include "order.h"
#include "recording.h"

using ppo::guarded;

namespace simulated {
namespace {

struct Graph {
  uint64_t pool;
  Recording captured;
};

std::mutex mutex;
std::map<uint64_t, std::set<Graph*>> pools;

void spoil(const Graph& graph) {
  for (const auto& tensor : graph.captured.made)
    if (void* memory = tensor.storage().mutable_data()) std::memset(of_host(memory), 0xff, tensor.storage().nbytes());
}

}  // namespace
}  // namespace simulated

using simulated::Graph;

extern "C" {

int32_t ppo_cuda_abi() { return 4; }

void ppo_cuda_free_error(char* message) { free(message); }

char* ppo_cuda_own_stream(int32_t device) {
  return guarded([&] {
    simulated::set_current_device(device);
    simulated::order().set_current(simulated::order().fresh(device));
  });
}

char* ppo_cuda_memory(int32_t device, uint64_t* free, uint64_t* total) {
  return guarded([&] {
    *total = simulated::device_bytes();
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *free = *total - simulated::allocator()->getDeviceStats(static_cast<c10::DeviceIndex>(device)).reserved_bytes[all].current;
  });
}

char* ppo_cuda_empty_cache() {
  return guarded([] { simulated::refuse_in_capture("giving memory back"); });
}

char* ppo_cuda_pool(uint64_t pool[2]) {
  static std::atomic<uint64_t> last{0};
  pool[0] = 0;
  pool[1] = ++last;
  return nullptr;
}

char* ppo_cuda_graph_begin(const uint64_t pool[2], Graph** graph) {
  return guarded([&] {
    simulated::refuse_in_capture("another capture");
    TORCH_CHECK(simulated::order().current(simulated::current_device()).second != 0, "the stream that threads share cannot be captured");
    *graph = new Graph{pool[1], {}};
    simulated::recording() = &(*graph)->captured;
  });
}

char* ppo_cuda_graph_end(Graph* graph) {
  return guarded([&] {
    TORCH_CHECK(simulated::recording() == &graph->captured, "this thread captures no such graph");
    simulated::recording() = nullptr;
    TORCH_CHECK(!graph->captured.steps.empty(), "nothing was captured");
    simulated::spoil(*graph);  // nothing has been computed yet
    std::lock_guard lock(simulated::mutex);
    simulated::pools[graph->pool].insert(graph);
  });
}

char* ppo_cuda_graph_replay(Graph* graph) {
  return guarded([&] {
    simulated::refuse_in_capture("replaying a graph");
    std::lock_guard lock(simulated::mutex);
    for (const auto* other : simulated::pools[graph->pool])
      if (other != graph) simulated::spoil(*other);
    for (const auto& step : graph->captured.steps) step();
  });
}

void ppo_cuda_graph_free(Graph* graph) {
  if (simulated::recording() == &graph->captured) simulated::recording() = nullptr;
  {
    std::lock_guard lock(simulated::mutex);
    simulated::pools[graph->pool].erase(graph);
  }
  delete graph;
}

}  // extern "C"
