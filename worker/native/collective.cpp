// How processes meet and compute together: c10d's key-value store over TCP and its process group over Gloo. And the hook through
// which a gradient leaves backward as soon as it is there.
#define USE_C10D_GLOO

#include "training.h"

#include <c10/util/Logging.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

using ppo::training::guarded;

namespace {

using Store = c10::intrusive_ptr<c10d::Store>;
using Gloo = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

// Rung at the end of a collective, and when the group is given up: c10d has no way to end a Gloo collective before its deadline.
struct Bell {
  std::mutex mutex;
  std::condition_variable rung;
  bool given_up = false;
};

struct Group {
  Gloo gloo;
  std::shared_ptr<Bell> bell = std::make_shared<Bell>();
};

// A collective that was begun. Its tensors are c10d's too until it ends, also where nobody waits for it any more.
struct Pending {
  c10::intrusive_ptr<c10d::Work> work;
  std::shared_ptr<Bell> bell;
};

// Rust's side of the hook: takes the gradient of one parameter, answers with a message when it cannot.
using Take = char* (*)(void* state, int64_t parameter, at::Tensor* gradient);

// What takes them, to be given back once.
using Taker = std::unique_ptr<void, void (*)(void*)>;

struct Departure : torch::autograd::PostAccumulateGradHook {
  Departure(Take take, void (*free_message)(char*), Taker taker, int64_t parameter)
      : take(take), free_message(free_message), taker(std::move(taker)), parameter(parameter) {}

  void operator()(const at::Tensor& leaf) override {
    at::Tensor gradient = leaf.grad();
    leaf.mutable_grad().reset();
    if (!gradient.defined()) {
      return;
    }
    char* message = take(taker.get(), parameter, &gradient);
    if (message != nullptr) {
      std::string words(message);
      free_message(message);
      TORCH_CHECK(false, words);
    }
  }

  Take take;
  void (*free_message)(char*);
  Taker taker;
  int64_t parameter;
};

// Of a peer that is gone c10d prints a stack; who it was and what it last did is said by who waited for it. libtorch's own variable
// brings the stacks back.
void quiet() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
}

// Gloo notes every collective in a recorder that all groups of the process share, and a group's first one changes the recorder's map
// before its lock is taken (FlightRecorderDetail.hpp, recordWithResetEnabled of libtorch 2.11). So collectives of a process, which may
// have several groups on threads of its own, begin one after the other; none waits for its end meanwhile.
std::mutex beginning;

template <class Begin>
Pending begun(void* group, Begin begin) {
  auto& it = *static_cast<Group*>(group);
  {
    const std::lock_guard<std::mutex> lock(it.bell->mutex);
    TORCH_CHECK(!it.bell->given_up, "a rank is lost");
  }
  const std::lock_guard<std::mutex> turn(beginning);
  return {begin(*it.gloo), it.bell};
}

// Waits for the end, or until the group is given up.
void finish(const Pending& pending) {
  auto future = pending.work->getFuture();
  const auto bell = pending.bell;
  future->addCallback(
      [bell](c10::ivalue::Future&) {
        // Who has found it unfinished waits by now.
        { const std::lock_guard<std::mutex> lock(bell->mutex); }
        bell->rung.notify_all();
      },
      /*uses_future=*/false);
  {
    std::unique_lock<std::mutex> lock(bell->mutex);
    bell->rung.wait(lock, [&] { return bell->given_up || future->completed(); });
  }
  TORCH_CHECK(future->completed(), "a rank is lost");
  pending.work->wait();
}

}  // namespace

extern "C" {

// A store on `host`:`port`: the server of it, or a client that tries to connect until the deadline. Port 0 of a server is any free
// one; `bound` is the one it has.
char* ppo_store_open(const char* host, uint16_t port, bool serves, int64_t deadline_ms, void** store, uint16_t* bound) {
  return guarded([&] {
    quiet();
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serves;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(deadline_ms);
    auto opened = c10::make_intrusive<c10d::TCPStore>(host, options);
    *bound = opened->getPort();
    *store = new Store(std::move(opened));
  });
}

void ppo_store_close(void* store) { delete static_cast<Store*>(store); }

char* ppo_store_set(void* store, const char* key, const uint8_t* value, size_t length) {
  return guarded([&] { (*static_cast<Store*>(store))->set(key, std::vector<uint8_t>(value, value + length)); });
}

char* ppo_store_delete(void* store, const char* key) {
  return guarded([&] { (*static_cast<Store*>(store))->deleteKey(key); });
}

// `found` says whether the key is set; `take` is given its value then. It does not wait: c10d logs a warning for every wait that ends
// without a key.
char* ppo_store_get(void* store, const char* key, bool* found, void* target, void (*take)(void*, const uint8_t*, size_t)) {
  return guarded([&] {
    auto& it = *static_cast<Store*>(store);
    *found = it->check({key});
    if (*found) {
      auto value = it->get(key);
      take(target, value.data(), value.size());
    }
  });
}

// Joins the group of `count` ranks that meet in `store` under `name`. `host` is this process' own address, which the others can
// reach.
char* ppo_group_open(void* store, const char* name, const char* host, int32_t rank, int32_t count, int64_t deadline_ms,
                     void** group) {
  return guarded([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(deadline_ms));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
    auto meeting = c10::make_intrusive<c10d::PrefixStore>(name, *static_cast<Store*>(store));
    *group = new Group{c10::make_intrusive<c10d::ProcessGroupGloo>(meeting, rank, count, options)};
  });
}

// Ends all waits of this process in the group, now and from now on.
void ppo_group_give_up(void* group) {
  auto& bell = *static_cast<Group*>(group)->bell;
  {
    const std::lock_guard<std::mutex> lock(bell.mutex);
    bell.given_up = true;
  }
  bell.rung.notify_all();
}

void ppo_group_close(void* group) {
  const std::unique_ptr<Group> it(static_cast<Group*>(group));
  const std::lock_guard<std::mutex> lock(it->bell->mutex);
  if (it->bell->given_up) {
    // It would wait for its threads, and they for the lost rank until the deadline: they are left behind, and end with the process.
    static_cast<void>(it->gloo.release());
  }
}

// Sums (or takes the greatest of) the tensors of all ranks, in place.
char* ppo_group_all_reduce(void* group, at::Tensor* tensor, bool greatest) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = greatest ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    finish(begun(group, [&](auto& gloo) { return gloo.allreduce(tensors, options); }));
  });
}

char* ppo_group_broadcast(void* group, at::Tensor* tensor, int64_t root) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    finish(begun(group, [&](auto& gloo) { return gloo.broadcast(tensors, options); }));
  });
}

// The parts of all ranks, one after the other, in `whole`.
char* ppo_group_all_gather(void* group, at::Tensor* whole, at::Tensor* part) {
  return guarded([&] { finish(begun(group, [&](auto& gloo) { return gloo._allgather_base(*whole, *part); })); });
}

// Begins to sum the tensors of all ranks into the one of `root`.
char* ppo_group_reduce(void* group, at::Tensor* tensor, int64_t root, void** pending) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::ReduceOptions options;
    options.rootRank = root;
    *pending = new Pending(begun(group, [&](auto& gloo) { return gloo.reduce(tensors, options); }));
  });
}

// Waits for the end of what was begun.
char* ppo_pending_wait(void* pending) {
  return guarded([&] { finish(*static_cast<Pending*>(pending)); });
}

void ppo_pending_free(void* pending) { delete static_cast<Pending*>(pending); }

// From now on backward gives the gradient of `leaf` away instead of keeping it. `state` goes to `drop` with the hook, or after an error.
char* ppo_on_gradient(at::Tensor* leaf, int64_t parameter, void* state, Take take, void (*drop)(void*), void (*free_message)(char*)) {
  Taker taker(state, drop);
  return guarded([&] {
    TORCH_CHECK(leaf->is_leaf() && leaf->requires_grad(), "only a leaf of the graph that takes part in backward has a gradient to give away");
    auto hook = std::make_unique<Departure>(take, free_message, std::move(taker), parameter);
    torch::autograd::impl::set_post_acc_grad_hooks(*leaf, std::move(hook));
  });
}

}  // extern "C"
