// The engine's own kernels, as their callers see them: pointers into a device's memory, numbers, and the stream that they are put on.
// Includes nothing of torch, which takes nvcc longer to read than all kernels.
#pragma once

#include <cstdint>

namespace ppo::cuda {

struct bfloat16;

// One token to draw.
struct alignas(16) Draw {
  double uniform;
  // One over the temperature; 0 is greedy.
  float inverse;
  // Of the logits.
  int32_t row;
};

// What was drawn; the token is -1 where a row holds no distribution. As `Drawn` of src/native/batch.rs.
struct alignas(8) Drawn {
  int32_t token;
  float logprob;
};

// Of a piece of a row of logits.
struct alignas(16) Piece {
  uint64_t likeliest;
  double sum;
};

// Tokens of a piece.
int pieces_of(int vocab);

// Queries, keys and values of rows, and where they go.
struct HeadsOf {
  const bfloat16* projected;   // [n, heads + 2 kv_heads, dim]
  const bfloat16* query_norm;  // [dim], or null
  const bfloat16* key_norm;    // [dim], or null
  const float* frequencies;    // [dim / 2]
  const int64_t* positions;    // [n]
  const int64_t* slots;        // [n]
  bfloat16* keys;              // [positions of the cache, kv_heads, dim]
  bfloat16* values;            // likewise
  bfloat16* queries;           // [n, heads, dim]; with copies [n, copies, heads / kv_heads, kv_heads, dim]
  int heads, kv_heads, dim, copies;
  float eps;
};

// Most rows that are multiplied here: with more of them cuBLAS is no slower.
constexpr int64_t kFew = 2;

// Widest rows of `add_norm`.
constexpr int64_t kWidest = 32768;

void launch_add_norm(bfloat16* rows, const bfloat16* delta, const bfloat16* weight, float eps, int64_t n, int width, bfloat16* out, cudaStream_t stream);
void launch_heads(const HeadsOf& it, int64_t n, cudaStream_t stream);
void launch_merge(const bfloat16* parts, const float* lse, const int32_t* used, int64_t n, int blocks, int group, int kv_heads, int dim, bfloat16* out,
                  cudaStream_t stream);
void launch_gate(const bfloat16* both, int64_t n, int width, bfloat16* out, cudaStream_t stream);
// x [n, inputs] matrix^T [outputs, inputs] + bias, of a few rows, into bfloat16 or float32.
void launch_product(const bfloat16* x, const bfloat16* matrix, const bfloat16* bias, int64_t n, int inputs, int outputs, bfloat16* y, cudaStream_t stream);
void launch_product(const bfloat16* x, const bfloat16* matrix, const bfloat16* bias, int64_t n, int inputs, int outputs, float* y, cudaStream_t stream);
// The product with gate and up [2 width, inputs], and what `gate_up` makes of it.
void launch_gated_product(const bfloat16* x, const bfloat16* matrix, int64_t n, int inputs, int width, bfloat16* y, cudaStream_t stream);
// `pieces` is [count, pieces_of(vocab)], for the kernels' own use.
void launch_draw(const float* logits, const Draw* draws, int64_t count, int vocab, Piece* pieces, Drawn* out, cudaStream_t stream);

}  // namespace ppo::cuda
