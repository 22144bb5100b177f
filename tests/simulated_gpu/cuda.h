// As much of CUDA's C++ as our kernels are written in, for the host: they are compiled here as they are (kernels.cpp). The threads of a block
// take turns on one thread of the host, each until it waits for the others of its warp or block (threads.cpp).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__ static
#define __device__
#define __launch_bounds__(most)
// Of the block that the host's thread computes: it computes one at a time.
#define __shared__ static thread_local

using cudaStream_t = void*;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simulated {

// All threads of a grid, one block after another. Throws where a block's threads wait for each other in vain.
void compute(dim3 grid, unsigned threads, const std::function<void()>& kernel);
// The calling thread goes on when all of its block, or of its warp, have come as far.
void meet_block();
void meet_warp();
// Where the calling thread's warp exchanges a number of each lane; another place at each turn, so that one meeting is enough.
uint64_t* exchange();

template <typename T>
T shuffled(T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t* numbers = exchange();
  std::memcpy(&numbers[threadIdx.x % 32], &value, sizeof(T));
  meet_warp();
  T other;
  std::memcpy(&other, &numbers[from], sizeof(T));
  return other;
}

}  // namespace simulated

inline void __syncthreads() { simulated::meet_block(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return simulated::shuffled(value, (threadIdx.x % 32) ^ static_cast<unsigned>(mask));
}

template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned step) {
  const unsigned lane = threadIdx.x % 32;
  return simulated::shuffled(value, lane >= step ? lane - step : lane);
}

inline float __uint_as_float(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

inline uint32_t __float_as_uint(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

inline float rsqrtf(float number) { return 1.0f / std::sqrt(number); }

namespace ppo::cuda {

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t, Arguments... arguments) {
  simulated::compute(grid, static_cast<unsigned>(threads), [&] { kernel(arguments...); });
}

}  // namespace ppo::cuda
