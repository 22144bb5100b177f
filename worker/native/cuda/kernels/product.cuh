// Products of a few rows with a matrix, which is read once, as fast as memory gives it: cuBLAS has tiles of many rows for them. A warp an
// output, or, where a matrix has long rows and few of them, all warps of a block one.
#pragma once

#include "../kernels.h"
#include "bfloat16.cuh"
#include "gate.cuh"
#include "together.cuh"

namespace ppo::cuda {

constexpr int kWarpsOfProduct = 4;

// Reads of matrices that a lane has under way at once: memory answers after as long as it takes to multiply hundreds of numbers.
template <int kRows, int kOutputs>
constexpr int kAhead = (kRows == 1 ? 8 : 4) / kOutputs;

// sums[output][row] = x[row] . of_outputs[output], to every lane of the `kShare` warps that share it: one, or all of the block.
template <int kShare, int kRows, int kOutputs>
__device__ void multiply_rows(const bfloat16* __restrict__ x, const bfloat16* const (&of_outputs)[kOutputs], int inputs, float (&sums)[kOutputs][kRows]) {
  constexpr int kReads = kAhead<kRows, kOutputs>, kStep = kShare * kWarp * 8;
  for (auto& of_rows : sums)
    for (float& sum : of_rows) sum = 0;
  for (int from = threadIdx.x % (kShare * kWarp) * 8; from < inputs; from += kReads * kStep) {
    uint4 ahead[kOutputs][kReads];
#pragma unroll
    for (int output = 0; output < kOutputs; output++)
#pragma unroll
      for (int i = 0; i < kReads; i++)
        if (from + i * kStep < inputs) ahead[output][i] = words8(of_outputs[output] + from + i * kStep);
#pragma unroll
    for (int i = 0; i < kReads; i++) {
      if (from + i * kStep >= inputs) continue;
#pragma unroll
      for (int row = 0; row < kRows; row++) {
        const Eight v = load8(x + static_cast<int64_t>(row) * inputs + from + i * kStep);
#pragma unroll
        for (int output = 0; output < kOutputs; output++) {
          const Eight w = wide(ahead[output][i]);
#pragma unroll
          for (int j = 0; j < 4; j++) sums[output][row] += w.pairs[j].x * v.pairs[j].x + w.pairs[j].y * v.pairs[j].y;
        }
      }
    }
  }
  for (auto& of_rows : sums)
    for (float& sum : of_rows) {
      if constexpr (kShare == 1) {
        sum = warp_sum(sum);
      } else {
        sum = block_sum(sum);
        __syncthreads();
      }
    }
}

__device__ inline void put(float* at, float x) { *at = x; }
__device__ inline void put(bfloat16* at, float x) { at->bits = static_cast<uint16_t>(narrow({x, 0.0f})); }

// The output of this warp.
template <int kShare>
__device__ inline int output_of_warp() {
  return (blockIdx.x * kWarpsOfProduct + warp()) / kShare;
}

// y [kRows, outputs] = x [kRows, inputs] matrix^T [outputs, inputs] + bias [outputs] where it is given. A sum is rounded once.
template <int kShare, int kRows, typename Out>
__global__ void __launch_bounds__(kWarpsOfProduct* kWarp)
    multiply(const bfloat16* x, const bfloat16* matrix, const bfloat16* bias, int inputs, int outputs, Out* y) {
  const int output = output_of_warp<kShare>();
  if (output >= outputs) return;  // all that share it
  const bfloat16* const of_outputs[] = {matrix + static_cast<int64_t>(output) * inputs};
  float sums[1][kRows];
  multiply_rows<kShare>(x, of_outputs, inputs, sums);
  if (threadIdx.x % (kShare * kWarp) != 0) return;
  const float more = bias == nullptr ? 0.0f : load1(bias + output);
#pragma unroll
  for (int row = 0; row < kRows; row++) put(y + static_cast<int64_t>(row) * outputs + output, sums[0][row] + more);
}

// y [kRows, width] = silu(gate) * up, which are x [kRows, inputs] matrix^T [2 width, inputs]; rounded where `gate_up` and its input are.
template <int kRows>
__global__ void __launch_bounds__(kWarpsOfProduct* kWarp) multiply_gated(const bfloat16* x, const bfloat16* matrix, int inputs, int width, bfloat16* y) {
  const int output = output_of_warp<1>();
  if (output >= width) return;  // a whole warp
  const bfloat16* of_gate = matrix + static_cast<int64_t>(output) * inputs;
  const bfloat16* const of_outputs[] = {of_gate, of_gate + static_cast<int64_t>(width) * inputs};
  float sums[2][kRows];
  multiply_rows<1>(x, of_outputs, inputs, sums);
  if (lane() != 0) return;
#pragma unroll
  for (int row = 0; row < kRows; row++) {
    const float2 products = stored({sums[0][row], sums[1][row]});
    put(y + static_cast<int64_t>(row) * width + output, gated({products.x, 0.0f}, {products.y, 0.0f}).x);
  }
}

}  // namespace ppo::cuda
