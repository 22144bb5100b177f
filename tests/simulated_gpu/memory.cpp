#include "memory.h"

#include "recording.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <vector>

namespace simulated {

namespace {

using c10::CachingDeviceAllocator::DeviceStats;

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// Addresses of a device. There are more than it has memory: what is asked for while a graph is captured is not counted, since each answer
// of a captured operator keeps memory of its own here (recording.h), and on a GPU the graphs of a pool share it.
size_t addresses() { return 4 * device_bytes(); }

// The lowest addresses of what operators see and of what the host sees; the latter can be neither read nor written.
struct Region {
  char* real = nullptr;
  char* shown = nullptr;
};

struct Block {
  size_t bytes = 0;
  bool counted = true;
  Uses uses;
};

// One device's memory: blocks by where they begin, and how much is free behind each place. Whatever the stream, the first room is taken.
struct Device {
  Region region;
  std::map<size_t, Block> used;
  std::map<size_t, size_t> free;
  DeviceStats stats;

  size_t take(size_t bytes) {
    for (auto room = free.begin(); room != free.end(); ++room) {
      const auto [begin, size] = *room;
      if (size < bytes) continue;
      free.erase(room);
      if (size > bytes) free[begin + bytes] = size - bytes;
      return begin;
    }
    refuse(bytes);
  }

  void count(size_t bytes) {
    auto& allocated = stats.allocated_bytes[kAll];
    if (static_cast<size_t>(allocated.current) + bytes > device_bytes()) refuse(bytes);
    allocated.increase(bytes);
    stats.reserved_bytes[kAll] = allocated;  // nothing is held that no tensor takes
  }

  void discount(size_t bytes) {
    stats.allocated_bytes[kAll].decrease(bytes);
    stats.reserved_bytes[kAll] = stats.allocated_bytes[kAll];
  }

  [[noreturn]] static void refuse(size_t bytes) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes, " bytes");
  }

  void give_back(size_t begin, size_t bytes) {
    auto after = free.emplace(begin, bytes).first;
    if (const auto next = std::next(after); next != free.end() && begin + bytes == next->first) {
      after->second += next->second;
      free.erase(next);
    }
    if (after == free.begin()) return;
    const auto before = std::prev(after);
    if (before->first + before->second != begin) return;
    before->second += after->second;
    free.erase(after);
  }
};

std::mutex mutex;
thread_local int current = 0;

char* reserve(int protection) {
  void* at = mmap(nullptr, addresses(), protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(at != MAP_FAILED, "no address space for a simulated GPU");
  return static_cast<char*>(at);
}

std::vector<Device>& devices() {
  static auto* all = [] {
    auto* made = new std::vector<Device>(device_count());
    for (auto& device : *made) {
      device.region = {reserve(PROT_READ | PROT_WRITE), reserve(PROT_NONE)};
      device.free[0] = addresses();
    }
    return made;
  }();
  return *all;
}

void release(void* pointer) {
  std::lock_guard lock(mutex);
  auto& device = devices()[device_of(pointer)];
  const auto found = device.used.find(static_cast<char*>(pointer) - device.region.shown);
  const std::string race = order().freed(found->second.uses);
  if (!race.empty()) {  // a destructor cannot throw
    std::cerr << "simulated GPU: a race: " << race << std::endl;
    std::abort();
  }
  if (found->second.counted) device.discount(found->second.bytes);
  device.give_back(found->first, found->second.bytes);
  device.used.erase(found);
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t wanted) override {
    std::lock_guard lock(mutex);
    auto& device = devices()[current];
    const c10::Device where(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(current));
    if (wanted == 0) return {nullptr, where};
    const size_t bytes = (wanted + 511) / 512 * 512;
    const bool counted = recording() == nullptr;
    if (counted) device.count(bytes);
    const size_t begin = device.take(bytes);
    device.used[begin] = {bytes, counted, {order().current(current), {}, 0, "nobody", {}, {}}};
    std::memset(device.region.real + begin, 0xff, bytes);
    char* shown = device.region.shown + begin;
    return {shown, shown, &release, where};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(of_host(to), of_host(from), bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() != nullptr) uses_of(data.get()).lent.insert({stream.device_index(), stream.id()});
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex);
    return devices().at(device).stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex);
    devices().at(device).stats.allocated_bytes[kAll].reset_peak();
  }
};

}  // namespace

int device_count() {
  const char* given = std::getenv("SIMULATED_GPUS");
  return given == nullptr ? 1 : std::min(std::atoi(given), kMostDevices);
}

size_t device_bytes() {
  const char* given = std::getenv("SIMULATED_GPU_MIB");
  static const size_t bytes = static_cast<size_t>(given == nullptr ? 4096 : std::atoi(given)) << 20;
  return bytes;
}

int current_device() { return current; }

void set_current_device(int device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "there is no simulated GPU ", device);
  current = device;
}

int device_of(const void* pointer) {
  const auto* at = static_cast<const char*>(pointer);
  auto& all = devices();
  for (size_t number = 0; number < all.size(); number++)
    if (at >= all[number].region.shown && at < all[number].region.shown + addresses()) return static_cast<int>(number);
  return -1;
}

void* of_host(const void* pointer) {
  if (pointer == nullptr) return nullptr;
  const int number = device_of(pointer);
  TORCH_CHECK(number >= 0, "a pointer that is of no simulated GPU");
  const auto& region = devices()[number].region;
  return region.real + (static_cast<const char*>(pointer) - region.shown);
}

Uses& uses_of(const void* pointer) {
  std::lock_guard lock(mutex);
  auto& device = devices().at(device_of(pointer));
  const size_t at = static_cast<const char*>(pointer) - device.region.shown;
  auto found = device.used.upper_bound(at);
  TORCH_CHECK(found != device.used.begin(), "memory of a simulated GPU that nobody has");
  --found;
  TORCH_CHECK(at < found->first + found->second.bytes, "memory of a simulated GPU that was freed");
  return found->second.uses;
}

c10::DeviceAllocator* allocator() {
  static auto* the = new Allocator();
  return the;
}

}  // namespace simulated
