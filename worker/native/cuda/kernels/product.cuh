// Products of a few rows with a matrix, which is read once, as fast as memory gives it: cuBLAS has tiles of many rows for them. A warp an
// output.
#pragma once

#include "../kernels.h"
#include "bfloat16.cuh"
#include "chain.cuh"
#include "gate.cuh"
#include "together.cuh"

namespace ppo::cuda {

constexpr int kOutputsAtOnce = 4;

// Reads of a matrix that a lane has under way at once: memory answers after as long as it takes to multiply hundreds of numbers.
template <int kRows>
constexpr int kAhead = kRows == 1 ? 8 : 4;

template <int kRows>
__device__ inline void read_ahead(const bfloat16* of_output, int from, int inputs, uint4 (&ahead)[kAhead<kRows>]) {
#pragma unroll
  for (int i = 0; i < kAhead<kRows>; i++) {
    const int at = from + i * kWarp * 8;
    ahead[i] = at < inputs ? words8(of_output + at) : uint4{0, 0, 0, 0};
  }
}

// sums[row] = x[row] . of_output, to every lane. What comes first of `of_output` is in `ahead`.
template <int kRows>
__device__ void multiply_row(const bfloat16* __restrict__ x, const bfloat16* __restrict__ of_output, int inputs, uint4 (&ahead)[kAhead<kRows>],
                             float (&sums)[kRows]) {
  for (int row = 0; row < kRows; row++) sums[row] = 0;
  for (int from = lane() * 8; from < inputs; from += kAhead<kRows> * kWarp * 8) {
    if (from >= kWarp * 8) read_ahead<kRows>(of_output, from, inputs, ahead);
#pragma unroll
    for (int i = 0; i < kAhead<kRows>; i++) {
      const int at = from + i * kWarp * 8;
      if (at >= inputs) continue;
      const Eight w = wide(ahead[i]);
#pragma unroll
      for (int row = 0; row < kRows; row++) {
        const Eight v = load8(x + static_cast<int64_t>(row) * inputs + at);
#pragma unroll
        for (int j = 0; j < 4; j++) sums[row] += w.pairs[j].x * v.pairs[j].x + w.pairs[j].y * v.pairs[j].y;
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; row++) sums[row] = warp_sum(sums[row]);
}

__device__ inline void put(float* at, float x) { *at = x; }
__device__ inline void put(bfloat16* at, float x) { at->bits = static_cast<uint16_t>(narrow({x, 0.0f})); }

// y [kRows, outputs] = x [kRows, inputs] matrix^T [outputs, inputs] + bias [outputs] where it is given. A sum is rounded once.
template <int kRows, typename Out>
__global__ void __launch_bounds__(kOutputsAtOnce* kWarp)
    multiply(const bfloat16* x, const bfloat16* matrix, const bfloat16* bias, int inputs, int outputs, Out* y) {
  const int output = blockIdx.x * kOutputsAtOnce + warp();
  const bool is_mine = output < outputs;
  const bfloat16* of_output = matrix + static_cast<int64_t>(is_mine ? output : 0) * inputs;
  uint4 ahead[kAhead<kRows>];
  // Weights are no kernel's answer.
  let_next_begin();
  read_ahead<kRows>(of_output, lane() * 8, inputs, ahead);
  wait_for_input();
  if (!is_mine) return;  // a whole warp
  float sums[kRows];
  multiply_row<kRows>(x, of_output, inputs, ahead, sums);
  if (lane() != 0) return;
  const float more = bias == nullptr ? 0.0f : load1(bias + output);
#pragma unroll
  for (int row = 0; row < kRows; row++) put(y + static_cast<int64_t>(row) * outputs + output, sums[row] + more);
}

// y [kRows, width] = silu(gate) * up, which are x [kRows, inputs] matrix^T [2 width, inputs]; rounded where `gate_up` and its input are.
template <int kRows>
__global__ void __launch_bounds__(kOutputsAtOnce* kWarp) multiply_gated(const bfloat16* x, const bfloat16* matrix, int inputs, int width, bfloat16* y) {
  const int output = blockIdx.x * kOutputsAtOnce + warp();
  const bool is_mine = output < width;
  const bfloat16* of_gate = matrix + static_cast<int64_t>(is_mine ? output : 0) * inputs;
  const bfloat16* of_up = of_gate + static_cast<int64_t>(width) * inputs;
  uint4 of_gate_ahead[kAhead<kRows>], of_up_ahead[kAhead<kRows>];
  let_next_begin();
  read_ahead<kRows>(of_gate, lane() * 8, inputs, of_gate_ahead);
  read_ahead<kRows>(of_up, lane() * 8, inputs, of_up_ahead);
  wait_for_input();
  if (!is_mine) return;  // a whole warp
  float gate[kRows], up[kRows];
  multiply_row<kRows>(x, of_gate, inputs, of_gate_ahead, gate);
  multiply_row<kRows>(x, of_up, inputs, of_up_ahead, up);
  if (lane() != 0) return;
#pragma unroll
  for (int row = 0; row < kRows; row++) {
    const float2 products = stored({gate[row], up[row]});
    put(y + static_cast<int64_t>(row) * width + output, gated({products.x, 0.0f}, {products.y, 0.0f}).x);
  }
}

}  // namespace ppo::cuda
