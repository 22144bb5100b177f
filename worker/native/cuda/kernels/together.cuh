// Sums over the threads of a warp or of a block, each in a fixed order: the same shapes give the same bits.
#pragma once

#include <cstdint>

namespace ppo::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;
// Most warps of a block.
constexpr int kMostWarps = 32;

__device__ inline int lane() { return threadIdx.x % kWarp; }
__device__ inline int warp() { return threadIdx.x / kWarp; }
__device__ inline int warps() { return blockDim.x / kWarp; }

// Every lane gets the sum.
template <typename T>
__device__ T warp_sum(T x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

template <typename T>
__device__ T warp_max(T x) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(kAll, x, step);
    x = other > x ? other : x;
  }
  return x;
}

// Every thread gets the sum; blocks are of whole warps. Once a kernel for each `T`, or with __syncthreads() between.
template <typename T>
__device__ T block_sum(T x) {
  __shared__ T of_warps[kMostWarps];
  x = warp_sum(x);
  if (lane() == 0) of_warps[warp()] = x;
  __syncthreads();
  T sum = of_warps[0];
  for (int i = 1; i < warps(); i++) sum += of_warps[i];
  return sum;
}

template <typename T>
__device__ T block_max(T x) {
  __shared__ T of_warps[kMostWarps];
  x = warp_max(x);
  if (lane() == 0) of_warps[warp()] = x;
  __syncthreads();
  T most = of_warps[0];
  for (int i = 1; i < warps(); i++) most = of_warps[i] > most ? of_warps[i] : most;
  return most;
}

// The sum up to and with each thread, in order of threads; `total` is that of all.
__device__ inline double block_scan(double x, double* total) {
  __shared__ double of_warps[kMostWarps];
  for (int step = 1; step < kWarp; step *= 2) {
    const double other = __shfl_up_sync(kAll, x, step);
    if (lane() >= step) x += other;
  }
  if (lane() == kWarp - 1) of_warps[warp()] = x;
  __syncthreads();
  double before = 0, all = 0;
  for (int i = 0; i < warps(); i++) {
    if (i < warp()) before += of_warps[i];
    all += of_warps[i];
  }
  *total = all;
  return before + x;
}

}  // namespace ppo::cuda
