// The gate of the feed-forward layer.
#pragma once

#include "bfloat16.cuh"

namespace ppo::cuda {

constexpr int kGateThreads = 256;

// silu(gate) * up; what silu gives is rounded, as if it had been stored and read.
__device__ inline float2 gated(float2 gate, float2 up) {
  const float2 silu = stored({gate.x / (1.0f + expf(-gate.x)), gate.y / (1.0f + expf(-gate.y))});
  return {silu.x * up.x, silu.y * up.y};
}

// both [n, 2 width]: gate and up. out [n, width].
__global__ void __launch_bounds__(kGateThreads) gate_up(const bfloat16* both, int width, bfloat16* out) {
  const int64_t row = blockIdx.x;
  const int at = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (at >= width) return;
  const Eight gate = load8(both + row * 2 * width + at), up = load8(both + row * 2 * width + width + at);
  Eight answer;
  for (int j = 0; j < 4; j++) answer.pairs[j] = gated(gate.pairs[j], up.pairs[j]);
  store8(out + row * width + at, answer);
}

}  // namespace ppo::cuda
