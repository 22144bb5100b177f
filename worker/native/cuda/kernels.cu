// All kernels, and how each is launched: one file for nvcc, which needs seconds for each. In tests the host compiles it, after a header
// that gives it CUDA's words (tests/simulated_gpu).
#include "kernels.h"

#include "kernels/draw.cuh"
#include "kernels/gate.cuh"
#include "kernels/heads.cuh"
#include "kernels/merge.cuh"
#include "kernels/norm.cuh"
#include "kernels/product.cuh"

#include <type_traits>

namespace ppo::cuda {

namespace {

#ifdef __CUDACC__
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t stream, Arguments... arguments) {
  kernel<<<grid, threads, 0, stream>>>(arguments...);
}
#endif

// Calls `body` with the number of rows as a constant.
template <typename Body>
void with_rows(int64_t n, Body body) {
  return n == 1 ? body(std::integral_constant<int, 1>()) : body(std::integral_constant<int, 2>());
}
static_assert(kFew == 2);

// Rows of a matrix from so many numbers on are shared by a block's warps: one alone would read them in turns.
constexpr int kLong = 4096;

unsigned blocks_for(int64_t work, int64_t of_block) { return static_cast<unsigned>((work + of_block - 1) / of_block); }

// Whole warps for so many threads' work.
int threads_for(int64_t work, int most) {
  const int64_t threads = (work + kWarp - 1) / kWarp * kWarp;
  return static_cast<int>(threads < most ? threads : most);
}

}  // namespace

int pieces_of(int vocab) { return (vocab + kPiece - 1) / kPiece; }

void launch_add_norm(bfloat16* rows, const bfloat16* delta, const bfloat16* weight, float eps, int64_t n, int width, bfloat16* out,
                     cudaStream_t stream) {
  static_assert(kWidest == 1024 * 8 * kHeld);
  launch(add_norm, dim3(static_cast<unsigned>(n)), threads_for(width / 8, 1024), stream, rows, delta, weight, eps, width, out);
}

void launch_heads(const HeadsOf& it, int64_t n, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(n), blocks_for(it.heads + 2 * it.kv_heads, kHeadsAtOnce));
  launch(place_heads, grid, kHeadsAtOnce * kWarp, stream, it);
}

void launch_merge(const bfloat16* parts, const float* lse, const int32_t* used, int64_t n, int blocks, int group, int kv_heads, int dim, bfloat16* out,
                  cudaStream_t stream) {
  const dim3 grid(blocks_for(n * group * kv_heads, kMergedAtOnce));
  launch(merge_blocks, grid, kMergedAtOnce * kWarp, stream, parts, lse, used, n, blocks, group, kv_heads, dim, out);
}

void launch_gate(const bfloat16* both, int64_t n, int width, bfloat16* out, cudaStream_t stream) {
  const int threads = threads_for(width / 8, kGateThreads);
  launch(gate_up, dim3(static_cast<unsigned>(n), blocks_for(width / 8, threads)), threads, stream, both, width, out);
}

template <typename Out>
static void launch_product_into(const bfloat16* x, const bfloat16* matrix, const bfloat16* bias, int64_t n, int inputs, int outputs, Out* y,
                                cudaStream_t stream) {
  with_rows(n, [&](auto rows) {
    constexpr int kRows = decltype(rows)::value, kThreads = kWarpsOfProduct * kWarp;
    if (inputs < kLong) {
      launch(multiply<1, kRows, Out>, dim3(blocks_for(outputs, kWarpsOfProduct)), kThreads, stream, x, matrix, bias, inputs, outputs, y);
    } else {
      launch(multiply<kWarpsOfProduct, kRows, Out>, dim3(static_cast<unsigned>(outputs)), kThreads, stream, x, matrix, bias, inputs, outputs, y);
    }
  });
}

void launch_product(const bfloat16* x, const bfloat16* matrix, const bfloat16* bias, int64_t n, int inputs, int outputs, bfloat16* y,
                    cudaStream_t stream) {
  launch_product_into(x, matrix, bias, n, inputs, outputs, y, stream);
}

void launch_product(const bfloat16* x, const bfloat16* matrix, const bfloat16* bias, int64_t n, int inputs, int outputs, float* y, cudaStream_t stream) {
  launch_product_into(x, matrix, bias, n, inputs, outputs, y, stream);
}

void launch_gated_product(const bfloat16* x, const bfloat16* matrix, int64_t n, int inputs, int width, bfloat16* y, cudaStream_t stream) {
  with_rows(n, [&](auto rows) {
    launch(multiply_gated<decltype(rows)::value>, dim3(blocks_for(width, kWarpsOfProduct)), kWarpsOfProduct * kWarp, stream, x, matrix, inputs, width, y);
  });
}

void launch_draw(const float* logits, const Draw* draws, int64_t count, int vocab, Piece* pieces, Drawn* out, cudaStream_t stream) {
  const int of_row = pieces_of(vocab);
  launch(sum_pieces, dim3(blocks_for(count * of_row, kPiecesAtOnce)), kPiecesAtOnce * kWarp, stream, logits, draws, count, vocab, of_row, pieces);
  launch(choose_tokens, dim3(static_cast<unsigned>(count)), threads_for(of_row > 64 ? of_row : 64, kChoosers), stream, logits, draws,
         static_cast<const Piece*>(pieces), vocab, of_row, out);
}

}  // namespace ppo::cuda
