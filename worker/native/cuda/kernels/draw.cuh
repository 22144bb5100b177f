// A token drawn from each row of logits, by the rules of src/engine/sampler.rs: the distribution function is inverted, in order of token, at
// the sample's own uniform number. First the sums of pieces of the row, by as many blocks as there are pieces, so that a single row
// keeps a device busy too; then the piece, and the token in it.
#pragma once

#include "../kernels.h"
#include "together.cuh"

namespace ppo::cuda {

// Tokens of a piece: sixteen of a lane.
constexpr int kPiece = 512;
constexpr int kPiecesAtOnce = 4;
constexpr int kChoosers = 256;

// Orders logits with their tokens: the larger one is likelier, of equal ones the lower token. What is no number comes before all.
__device__ inline uint64_t order_of(float logit, int token) {
  if (logit != logit) return ~uint64_t{0};
  uint32_t bits = __float_as_uint(logit + 0.0f);  // zero has one sign
  bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
  return static_cast<uint64_t>(bits) << 32 | static_cast<uint32_t>(~token);
}

// The logit of such a number; NaN or an infinity where the row has one for its largest.
__device__ inline float logit_of(uint64_t order) {
  const uint32_t bits = static_cast<uint32_t>(order >> 32);
  return __uint_as_float(bits ^ (bits >> 31 ? 0x80000000u : 0xffffffffu));
}

__device__ inline int token_of(uint64_t order) { return static_cast<int>(~static_cast<uint32_t>(order)); }

// Greedy draws have no temperature.
__device__ inline float inverse_of(const Draw& draw) { return draw.inverse > 0 ? draw.inverse : 1.0f; }

// Of each draw's row and each piece of it: the likeliest token, and the sum of exp((logit - the piece's largest) / temperature).
__global__ void __launch_bounds__(kPiecesAtOnce* kWarp)
    sum_pieces(const float* logits, const Draw* draws, int64_t count, int vocab, int pieces, Piece* out) {
  const int64_t which = static_cast<int64_t>(blockIdx.x) * kPiecesAtOnce + warp();
  if (which >= count * pieces) return;  // a whole warp
  const Draw draw = draws[which / pieces];
  const int first = static_cast<int>(which % pieces) * kPiece, end = vocab - first < kPiece ? vocab : first + kPiece;
  const float* row = logits + static_cast<int64_t>(draw.row) * vocab;
  constexpr int kOwn = kPiece / kWarp;
  float own[kOwn];
  // Rows of a multiple of four logits are read by sixteen bytes.
  if (vocab % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kOwn; i += 4) {
      const int at = first + (i / 4 * kWarp + lane()) * 4;
      const float4 four = at < end ? *reinterpret_cast<const float4*>(row + at) : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
      own[i] = four.x, own[i + 1] = four.y, own[i + 2] = four.z, own[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      const int at = first + (i / 4 * kWarp + lane()) * 4 + i % 4;
      own[i] = at < end ? row[at] : -INFINITY;
    }
  }
  uint64_t likeliest = 0;
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const int at = first + (i / 4 * kWarp + lane()) * 4 + i % 4;
    const uint64_t order = order_of(own[i], at);
    if (at < end && order > likeliest) likeliest = order;
  }
  likeliest = warp_max(likeliest);
  const float most = logit_of(likeliest), inverse = inverse_of(draw);
  double sum = 0;
  if (most > -INFINITY) {
#pragma unroll
    for (int i = 0; i < kOwn; i++) sum += static_cast<double>(expf((own[i] - most) * inverse));
  }
  sum = warp_sum(sum);
  if (lane() == 0) out[which] = {likeliest, sum};
}

// Where a running sum first exceeds its target, and the sum before it.
struct Found {
  int index;
  double before;
};

// Of `count` weights, in order, whose running sum begins at `before`. The last weight that is not 0 takes what rounding leaves over, and no
// weight of 0 is ever found. `target` is made of the sum of all, which `total` gets. At least one weight is not 0.
template <typename Weight, typename Target>
__device__ Found find(int count, double before, Weight weight, Target target, double* total) {
  __shared__ Found found;
  const int share = (count + blockDim.x - 1) / blockDim.x, first = threadIdx.x * share;
  const int end = first + share < count ? first + share : count;
  double own = 0;
  for (int i = first; i < end; i++) own += weight(i);
  const double running = before + block_scan(own, total);
  const double wanted = target(*total);
  // The first thread whose share reaches the target, else the last that has any weight.
  const int threads = blockDim.x, mine = threadIdx.x;
  int claim = 0;
  if (own > 0) claim = running > wanted ? 2 * threads - mine : 1 + mine;
  const int chosen = block_max(claim);
  if (claim == chosen && claim > 0) {
    double sum = running - own;
    found = {first, sum};
    for (int i = first; i < end; i++) {
      const double here = weight(i);
      if (here <= 0) continue;
      found = {i, sum};
      sum += here;
      if (sum > wanted) break;
    }
  }
  __syncthreads();
  const Found answer = found;
  __syncthreads();  // it is free for the next
  return answer;
}

// A block a draw.
__global__ void __launch_bounds__(kChoosers)
    choose_tokens(const float* logits, const Draw* draws, const Piece* all_pieces, int vocab, int pieces, Drawn* out) {
  const Draw draw = draws[blockIdx.x];
  const Piece* own = all_pieces + static_cast<int64_t>(blockIdx.x) * pieces;
  const float* row = logits + static_cast<int64_t>(draw.row) * vocab;
  uint64_t likeliest = 0;
  for (int i = threadIdx.x; i < pieces; i += blockDim.x) likeliest = own[i].likeliest > likeliest ? own[i].likeliest : likeliest;
  likeliest = block_max(likeliest);
  const float most = logit_of(likeliest), inverse = inverse_of(draw);
  // NaN, infinity, or every token suppressed: there is no distribution. And the likeliest token has all of a greedy one.
  if (!(most - most == 0) || draw.inverse <= 0) {
    if (threadIdx.x == 0) out[blockIdx.x] = {most - most == 0 ? token_of(likeliest) : -1, 0.0f};
    return;
  }
  const auto scale = [&](float of_piece) { return exp(static_cast<double>((of_piece - most) * inverse)); };
  double total = 0, unused = 0;
  const auto of_piece = [&](int i) { return own[i].sum > 0 ? own[i].sum * scale(logit_of(own[i].likeliest)) : 0.0; };
  const Found of_row = find(pieces, 0.0, of_piece, [&](double sum) { return draw.uniform * sum; }, &total);
  const int piece = of_row.index, first = piece * kPiece, count = vocab - first < kPiece ? vocab - first : kPiece;
  const float most_of_piece = logit_of(own[piece].likeliest);
  const double factor = scale(most_of_piece), target = draw.uniform * total;
  // As the piece was summed, so that its end is where the sums have it.
  const auto of_token = [&](int i) { return static_cast<double>(expf((row[first + i] - most_of_piece) * inverse)) * factor; };
  // Rounding may have put the target before the first of them.
  const double wanted = target > of_row.before ? target : of_row.before;
  const Found inside = find(count, of_row.before, of_token, [&](double) { return wanted; }, &unused);
  if (threadIdx.x == 0) {
    const int token = first + inside.index;
    const double exponent = static_cast<double>((row[token] - most) * inverse);
    out[blockIdx.x] = {token, static_cast<float>(exponent - log(total))};
  }
}

}  // namespace ppo::cuda
