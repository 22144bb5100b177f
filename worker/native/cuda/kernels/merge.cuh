// Answers of flash attention over the blocks of a sequence, merged by their log-sum-exps. A warp a row's head.
#pragma once

#include "bfloat16.cuh"
#include "together.cuh"

namespace ppo::cuda {

constexpr int kMergedAtOnce = 4;
// As a lane's pairs: heads of 256 dimensions at most.
constexpr int kMergedPairs = 4;

// parts [n, blocks, group, kv_heads, dim], lse [kv_heads, n, blocks, group], used [n, blocks]: keys of each block, and one without any
// counts for nothing, whatever it answered. out [n, kv_heads, group, dim].
__global__ void __launch_bounds__(kMergedAtOnce* kWarp)
    merge_blocks(const bfloat16* parts, const float* lse, const int32_t* used, int64_t n, int blocks, int group, int kv_heads, int dim, bfloat16* out) {
  const int heads = group * kv_heads;
  const int64_t which = static_cast<int64_t>(blockIdx.x) * kMergedAtOnce + warp();
  if (which >= n * heads) return;  // a whole warp
  const int64_t row = which / heads;
  const int head = static_cast<int>(which % heads), of_kv = head / group, in_group = head % group;
  const float* sums = lse + ((of_kv * n + row) * blocks) * group + in_group;
  const int32_t* keys = used + row * blocks;

  float most = -INFINITY;
  for (int block = lane(); block < blocks; block += kWarp)
    if (keys[block] > 0 && sums[static_cast<int64_t>(block) * group] > most) most = sums[static_cast<int64_t>(block) * group];
  most = warp_max(most);
  float total = 0;
  for (int block = lane(); block < blocks; block += kWarp)
    if (keys[block] > 0) total += expf(sums[static_cast<int64_t>(block) * group] - most);
  total = warp_sum(total);

  float2 mixed[kMergedPairs] = {};
  for (int block = 0; block < blocks; block++) {
    if (keys[block] <= 0) continue;
    const float weight = expf(sums[static_cast<int64_t>(block) * group] - most) / total;
    const bfloat16* part = parts + (((row * blocks + block) * group + in_group) * kv_heads + of_kv) * dim;
#pragma unroll
    for (int i = 0; i < kMergedPairs; i++) {
      const int at = 2 * (lane() + i * kWarp);
      if (at >= dim) continue;
      const float2 x = load2(part + at);
      mixed[i].x += x.x * weight;
      mixed[i].y += x.y * weight;
    }
  }
#pragma unroll
  for (int i = 0; i < kMergedPairs; i++) {
    const int at = 2 * (lane() + i * kWarp);
    if (at < dim) store2(out + which * dim + at, mixed[i]);
  }
}

}  // namespace ppo::cuda
