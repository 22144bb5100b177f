// The residual stream and its norm: a block a row, which is read once.
#pragma once

#include "bfloat16.cuh"
#include "together.cuh"

namespace ppo::cuda {

// Vectors of eight that a thread of `add_norm` holds at most.
constexpr int kHeld = 4;

// rows [n, width] += delta [n, width] where it is given; out [n, width] = rows / sqrt(mean of their squares + eps) * weight [width]. A sum
// is rounded before its norm is taken, as if it had been stored and read.
__global__ void __launch_bounds__(1024) add_norm(bfloat16* rows, const bfloat16* delta, const bfloat16* weight, float eps, int width, bfloat16* out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  Eight held[kHeld];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeld; i++) {
    const int at = (i * blockDim.x + threadIdx.x) * 8;
    if (at >= width) continue;
    held[i] = load8(rows + row + at);
    if (delta != nullptr) {
      const Eight more = load8(delta + row + at);
      for (int j = 0; j < 4; j++) {
        const float2 a = held[i].pairs[j], b = more.pairs[j];
        held[i].pairs[j] = stored({a.x + b.x, a.y + b.y});
      }
      store8(rows + row + at, held[i]);
    }
    for (int j = 0; j < 4; j++) squares += held[i].pairs[j].x * held[i].pairs[j].x + held[i].pairs[j].y * held[i].pairs[j].y;
  }
  const float scale = rsqrtf(block_sum(squares) / width + eps);
#pragma unroll
  for (int i = 0; i < kHeld; i++) {
    const int at = (i * blockDim.x + threadIdx.x) * 8;
    if (at >= width) continue;
    const Eight by = load8(weight + at);
    for (int j = 0; j < 4; j++) {
      const float2 a = held[i].pairs[j], b = by.pairs[j];
      held[i].pairs[j] = {a.x * scale * b.x, a.y * scale * b.y};
    }
    store8(out + row + at, held[i]);
  }
}

}  // namespace ppo::cuda
