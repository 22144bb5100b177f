// The gate of the feed-forward layer.
#pragma once

#include "bfloat16.cuh"

namespace ppo::cuda {

constexpr int kGateThreads = 256;

// both [n, 2 width]: gate and up. out [n, width] = silu(gate) * up; what silu gives is rounded, as if it had been stored and read.
__global__ void __launch_bounds__(kGateThreads) gate_up(const bfloat16* both, int width, bfloat16* out) {
  const int64_t row = blockIdx.x;
  const int at = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (at >= width) return;
  const Eight gate = load8(both + row * 2 * width + at), up = load8(both + row * 2 * width + width + at);
  Eight gated;
  for (int j = 0; j < 4; j++) {
    const float2 x = gate.pairs[j], y = up.pairs[j];
    const float2 silu = stored({x.x / (1.0f + expf(-x.x)), x.y / (1.0f + expf(-x.y))});
    gated.pairs[j] = {silu.x * y.x, silu.y * y.y};
  }
  store8(out + row * width + at, gated);
}

}  // namespace ppo::cuda
