// Memory of simulated GPUs. A pointer into it is of no use to the host, which is stopped by a fault as soon as it follows one; operators
// find the same memory elsewhere. New memory is filled with ones, which are no number.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "order.h"

namespace simulated {

constexpr int kMostDevices = 8;

int device_count();
// Of each.
size_t device_bytes();
// The calling thread's.
int current_device();
void set_current_device(int device);

// Where the host finds what a device's pointer names.
void* of_host(const void* pointer);
// The device of a pointer, or -1.
int device_of(const void* pointer);
// The uses of the block that a pointer lies in. Throws for memory that was freed.
Uses& uses_of(const void* pointer);

c10::DeviceAllocator* allocator();
// Memory of the host that the kernel does not move: copies from it go by themselves.
bool is_pinned(const void* pointer);

}  // namespace simulated
