// bfloat16 in memory, float32 in arithmetic. Written in bits, so that the same lines compile for a device and, in tests, for the host.
#pragma once

#include <cstdint>

namespace ppo::cuda {

// The upper half of a float32.
struct bfloat16 {
  uint16_t bits;
};

// Of a word with two of them: the first is the lower half.
__device__ inline float2 wide(uint32_t word) { return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)}; }

// To the nearest, of two as near to the even one.
__device__ inline uint32_t rounded(float x) {
  const uint32_t bits = __float_as_uint(x);
  return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

__device__ inline uint32_t narrow(float2 x) {
#ifdef __CUDA_ARCH__
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x.y), "f"(x.x));
  return word;
#else
  return rounded(x.x) | rounded(x.y) << 16;
#endif
}

// What a number is once it has been stored.
__device__ inline float2 stored(float2 x) { return wide(narrow(x)); }

__device__ inline float load1(const bfloat16* at) { return __uint_as_float(static_cast<uint32_t>(at->bits) << 16); }
__device__ inline float2 load2(const bfloat16* at) { return wide(*reinterpret_cast<const uint32_t*>(at)); }
__device__ inline void store2(bfloat16* at, float2 x) { *reinterpret_cast<uint32_t*>(at) = narrow(x); }

// Sixteen bytes, which is as much as a thread moves at once.
struct Eight {
  float2 pairs[4];
};

__device__ inline Eight wide(const uint4& words) { return {{wide(words.x), wide(words.y), wide(words.z), wide(words.w)}}; }
__device__ inline uint4 words8(const bfloat16* at) { return *reinterpret_cast<const uint4*>(at); }
__device__ inline Eight load8(const bfloat16* at) { return wide(words8(at)); }

__device__ inline void store8(bfloat16* at, const Eight& x) {
  *reinterpret_cast<uint4*>(at) = {narrow(x.pairs[0]), narrow(x.pairs[1]), narrow(x.pairs[2]), narrow(x.pairs[3])};
}

}  // namespace ppo::cuda
