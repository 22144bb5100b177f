// What lies between the product that makes queries, keys and values and the attention over them: norms of heads, rotary positions, the write
// to the cache, and queries in the order that attention reads. A warp a head.
#pragma once

#include "../kernels.h"
#include "bfloat16.cuh"
#include "together.cuh"

namespace ppo::cuda {

constexpr int kHeadsAtOnce = 4;
// Each lane has pairs (2 lane + 64 i, 2 lane + 64 i + 1) of either half of a head, which is of 256 dimensions at most.
constexpr int kPairs = 2;

__device__ inline void turn(float2& low, float2& high, float position, const float* frequencies) {
  float sin_x, cos_x, sin_y, cos_y;
  sincosf(position * frequencies[0], &sin_x, &cos_x);
  sincosf(position * frequencies[1], &sin_y, &cos_y);
  const float2 a = low, b = high;
  low = {a.x * cos_x - b.x * sin_x, a.y * cos_y - b.y * sin_y};
  high = {b.x * cos_x + a.x * sin_x, b.y * cos_y + a.y * sin_y};
}

__global__ void __launch_bounds__(kHeadsAtOnce* kWarp) place_heads(const HeadsOf it) {
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y * kHeadsAtOnce + warp(), half = it.dim / 2;
  if (head >= it.heads + 2 * it.kv_heads) return;  // a whole warp
  const bool is_query = head < it.heads, is_value = head >= it.heads + it.kv_heads;

  const bfloat16* from = it.projected + (row * (it.heads + 2 * it.kv_heads) + head) * it.dim;
  float2 low[kPairs] = {}, high[kPairs] = {};
#pragma unroll
  for (int i = 0; i < kPairs; i++) {
    const int at = 2 * (lane() + i * kWarp);
    if (at >= half) continue;
    low[i] = load2(from + at);
    high[i] = load2(from + half + at);
  }

  const bfloat16* norm = is_query ? it.query_norm : it.key_norm;
  if (norm != nullptr && !is_value) {
    float squares = 0;
    for (int i = 0; i < kPairs; i++) squares += low[i].x * low[i].x + low[i].y * low[i].y + high[i].x * high[i].x + high[i].y * high[i].y;
    const float scale = rsqrtf(warp_sum(squares) / it.dim + it.eps);
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
      const int at = 2 * (lane() + i * kWarp);
      if (at >= half) continue;
      const float2 by_low = load2(norm + at), by_high = load2(norm + half + at);
      low[i] = stored({low[i].x * scale * by_low.x, low[i].y * scale * by_low.y});
      high[i] = stored({high[i].x * scale * by_high.x, high[i].y * scale * by_high.y});
    }
  }

  bfloat16* to;
  int64_t copies = 1, between = 0;
  if (is_query) {
    // By group and then by key head, once for each block, or in their own order.
    const int group = it.heads / it.kv_heads;
    const int place = it.copies == 0 ? head : head % group * it.kv_heads + head / group;
    copies = it.copies == 0 ? 1 : it.copies;
    between = static_cast<int64_t>(it.heads) * it.dim;
    to = it.queries + row * copies * between + static_cast<int64_t>(place) * it.dim;
  } else {
    const int of_kv = is_value ? head - it.heads - it.kv_heads : head - it.heads;
    to = (is_value ? it.values : it.keys) + (it.slots[row] * it.kv_heads + of_kv) * it.dim;
  }
  const float position = static_cast<float>(it.positions[row]);
#pragma unroll
  for (int i = 0; i < kPairs; i++) {
    const int at = 2 * (lane() + i * kWarp);
    if (at >= half) continue;
    if (!is_value) turn(low[i], high[i], position, it.frequencies + at);
    for (int64_t copy = 0; copy < copies; copy++) {
      store2(to + copy * between + at, low[i]);
      store2(to + copy * between + half + at, high[i]);
    }
  }
}

}  // namespace ppo::cuda
