// Uses the simulated GPU in each of the ways that it is there to find, one a run: `faults NAME`. It ends with status 0 and a line that
// says what was found, or with status 1 where nothing was. What cannot be an error ends it by a signal: `host-access`, a host that
// follows a device's pointer, and `freed-while-it-is-used`.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <iostream>
#include <map>
#include <string>

extern "C" {
struct Graph;
char* ppo_cuda_own_stream(int32_t device);
char* ppo_cuda_pool(uint64_t pool[2]);
char* ppo_cuda_graph_begin(const uint64_t pool[2], Graph** graph);
char* ppo_cuda_graph_end(Graph* graph);
char* ppo_cuda_graph_replay(Graph* graph);
}

namespace {

const c10::Device kGpu(c10::DeviceType::CUDA, 0);

at::Tensor on_gpu(double value, int64_t count = 4) { return at::full({count}, value, at::TensorOptions(kGpu)); }

c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA); }

c10::Stream other_stream() { return guard().getStreamFromGlobalPool(kGpu, false); }

void check(char* error) {
  if (error != nullptr) TORCH_CHECK(false, error);
}

// A tensor that another stream is writing.
at::Tensor written_elsewhere() {
  const auto mine = guard().getStream(kGpu);
  guard().exchangeStream(other_stream());
  const auto made = on_gpu(1);
  guard().exchangeStream(mine);
  return made;
}

// A tensor that another stream is reading.
at::Tensor read_elsewhere() {
  const auto tensor = on_gpu(1);
  guard().synchronizeStream(guard().getStream(kGpu));
  const auto mine = guard().exchangeStream(other_stream());
  (void)tensor.add(1);
  guard().exchangeStream(mine);
  return tensor;
}

const std::map<std::string, std::function<void()>> kFaults = {
    {"mixed-devices", [] { (void)(on_gpu(1) + at::ones({4})); }},
    {"host-access", [] { std::cout << *on_gpu(1).const_data_ptr<float>() << std::endl; }},
    {"read-before-it-is-written", [] { (void)written_elsewhere().add(1); }},
    {"overwrite-while-it-is-read",
     [] {
       const auto& tensor = *new at::Tensor(read_elsewhere());
       tensor.add_(1);
     }},
    {"freed-while-it-is-used", [] { (void)read_elsewhere(); }},
    {"wait-in-a-graph",
     [] {
       check(ppo_cuda_own_stream(0));
       const auto tensor = on_gpu(1);
       uint64_t pool[2];
       Graph* graph = nullptr;
       check(ppo_cuda_pool(pool));
       check(ppo_cuda_graph_begin(pool, &graph));
       (void)tensor.sum().item();
     }},
    {"capture-on-the-shared-stream",
     [] {
       uint64_t pool[2];
       Graph* graph = nullptr;
       check(ppo_cuda_pool(pool));
       check(ppo_cuda_graph_begin(pool, &graph));
     }},
    {"out-of-memory", [] { (void)at::empty({int64_t{1} << 40}, at::TensorOptions(kGpu)); }},
};

// What is no fault is none: streams that wait for each other, graphs whose inputs change, numbers between host and device.
void used_rightly() {
  c10::Event event(c10::DeviceType::CUDA);
  const auto mine = guard().getStream(kGpu);
  const auto writer = other_stream();
  guard().exchangeStream(writer);
  const auto made = on_gpu(2);
  event.record(writer);
  guard().exchangeStream(mine);
  event.block(mine);
  TORCH_CHECK(made.add(1).sum().item<float>() == 12, "a stream that waited reads the right numbers");

  check(ppo_cuda_own_stream(0));
  const auto input = on_gpu(3), output = on_gpu(0);
  uint64_t pool[2];
  Graph* graph = nullptr;
  check(ppo_cuda_pool(pool));
  check(ppo_cuda_graph_begin(pool, &graph));
  output.copy_(input.mul(2).view({2, 2}).t().reshape({4}).add(1));
  check(ppo_cuda_graph_end(graph));
  for (const double value : {5.0, 7.0}) {
    input.fill_(value);
    check(ppo_cuda_graph_replay(graph));
    TORCH_CHECK(output.equal(on_gpu(2 * value + 1)), "a replayed graph computes anew");
  }
  TORCH_CHECK(at::arange(6, at::TensorOptions(kGpu)).view({2, 3}).index_select(1, at::tensor({2, 0}).to(kGpu)).sum().item<int64_t>() == 10, "views and indices");
}

}  // namespace

int main(int count, char** arguments) {
  const std::string name = count == 2 ? arguments[1] : "";
  try {
    if (name == "none") {
      used_rightly();
      std::cout << "nothing found" << std::endl;
      return 0;
    }
    kFaults.at(name)();
  } catch (const c10::Error& error) {
    std::cout << error.what_without_backtrace() << std::endl;
    return name == "none" ? 1 : 0;
  }
  std::cout << "nothing found" << std::endl;
  return 1;
}
