// Makes simulated GPUs known to libtorch as CUDA's: which there are, their streams and events, and memory that the host pins.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <mutex>
#include <set>

#include "memory.h"
#include "order.h"
#include "streams.h"

namespace simulated {

namespace {

StreamName name_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

c10::Stream stream_of(StreamName name) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(name.first)), name.second);
}

// A point in a stream: what is known there, and how much of its own work has to be done before.
struct Event {
  StreamName stream;
  Mark mark;
  uint64_t given;
};

int number(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(current_device())}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }

  c10::Stream getStream(c10::Device device) const override { return stream_of(order().current(number(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of({number(device), 0}); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream_of(order().fresh(number(device))); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream_of(order().fresh(number(device))); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    order().set_current(name_of(stream));
    return before;
  }
  void* getStreamNativeHandle(c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id() + 1); }
  bool queryStream(const c10::Stream& stream) const override { return is_done(name_of(stream), given(name_of(stream))); }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait_for(name_of(stream), given(name_of(stream)));
    order().synchronize(name_of(stream));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    destroyEvent(*event, 0);
    *event = new Event{name_of(stream), order().mark(name_of(stream)), given(name_of(stream))};
  }
  // What comes on the stream is done at once: the host waits in its place.
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto& it = *static_cast<Event*>(event);
    wait_for(it.stream, it.given);
    order().wait(name_of(stream), it.mark);
  }
  // Who is told that it has passed knows what was done before.
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const auto& it = *static_cast<Event*>(event);
    if (!is_done(it.stream, it.given)) return false;
    order().passed(it.mark);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    wait_for(static_cast<Event*>(event)->stream, static_cast<Event*>(event)->given);
    queryEvent(event);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator()->recordStream(data, stream);
  }
};

// What the host has pinned.
struct Pinned final : c10::Allocator {
  static std::mutex mutex;
  static std::set<const void*> all;

  static void release(void* pointer) {
    std::lock_guard lock(mutex);
    all.erase(pointer);
    std::free(pointer);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = bytes == 0 ? nullptr : std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (pointer != nullptr) {
      std::lock_guard lock(mutex);
      all.insert(pointer);
    }
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

std::mutex Pinned::mutex;
std::set<const void*> Pinned::all;

}  // namespace

bool is_pinned(const void* pointer) {
  std::lock_guard lock(Pinned::mutex);
  return Pinned::all.count(pointer) != 0;
}

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

static const bool has_allocator = [] {
  c10::SetAllocator(c10::DeviceType::CUDA, allocator());
  return true;
}();

}  // namespace simulated

namespace at {

struct SimulatedHooks final : CUDAHooksInterface {
  explicit SimulatedHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return simulated::device_count(); }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(simulated::device_count()); }
  DeviceIndex current_device() const override { return static_cast<DeviceIndex>(simulated::current_device()); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(DeviceIndex device) const override { simulated::set_current_device(device); }
  bool isPinnedPtr(const void* data) const override { return simulated::is_pinned(data); }
  // libtorch seeds it with the host's; nothing of the worker draws from it.
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    static const auto* the = new Generator(detail::createCPUGenerator());
    return *the;
  }
  Device getDeviceFromPtr(void* data) const override {
    return {c10::DeviceType::CUDA, static_cast<DeviceIndex>(simulated::device_of(data))};
  }
  Allocator* getPinnedMemoryAllocator() const override {
    static auto* the = new simulated::Pinned();
    return the;
  }
  Allocator* getCUDADeviceAllocator() const override { return simulated::allocator(); }
};

// Under the name by which libtorch asks for CUDA's.
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", SimulatedHooks)

}  // namespace at
