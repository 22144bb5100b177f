// What one decoder owns, shared by the dispatcher (decoder.cpp) and the kernels compiled per instruction set.
// No standard containers below: kernels are compiled with wider instructions than the rest of the program, and an
// inline library function emitted by such a file could be the copy the linker keeps for everyone.
#pragma once
#include "decoder_abi.h"

namespace decoder {

typedef uint16_t bf16; // bit pattern

// Units of 32 bits in a line of the processor's cache.
constexpr int kLine = 16;

// A weight [n, k] packed into panels of two groups of `lanes` outputs. A step of a group is `lanes` units of 32 bits: one float, or two
// consecutive k in bfloat16. As many steps of a group as fill a line lie together, and lines of both groups alternate: a product walks
// memory strictly forward, a step is the same few loads in both types, and whoever packs one group writes whole lines. Outputs beyond n
// and the odd k are zero; what fills the last line is never read.
struct Matrix {
    uint32_t * panels = nullptr;
    int k = 0;
    int steps = 0; // k, or ceil(k / 2) in bfloat16
    int count = 0; // panels
    // Units of a panel.
    size_t panel(int lanes) const {
        const int together = kLine / lanes;
        return size_t(steps + together - 1) / together * (2 * kLine);
    }
};

// Consecutive rows of one part of a matrix, as they lie in a model's tensor. Outputs fill groups of as many as a vector has lanes, two
// to a panel. Output i of a part is lane i % lanes of group `group + i / lanes * stride`: stacked parts continue each other's outputs, of
// two that alternate each has every other group.
struct Rows {
    const void * data; // [count, row_bytes], at any address
    size_t row_bytes;
    int64_t first, count; // outputs of the part
    int group, stride;
};

struct Layer {
    Matrix qkv, output, gate_up, down;
    float *attention_norm = nullptr, *mlp_norm = nullptr;            // [hidden], zero-padded
    float *qkv_bias = nullptr, *q_norm = nullptr, *k_norm = nullptr; // [(heads + 2 kv_heads) head_dim], [head_dim]
};

// Queries of one key/value head in a tile, about: rows x (heads / kv_heads).
constexpr int kTileQueries = 12;

// Rows of one sequence that share the passes over keys and values.
struct Tile {
    int first_row, rows;
    const int32_t * blocks;
};

// Buffers of one forward. Rows are padded to a stride that is an odd number of cache lines: strides of a power of two
// would put the same column of all rows into one set of the L1 cache.
struct Workspace {
    float * x;                  // [rows, hidden]: the residual stream, float32 in both types
    void * normed;              // [rows, hidden] storage type
    float * qkv;                // [rows, (heads + 2 kv_heads) head_dim]
    void * attended;            // [rows, heads head_dim] storage type
    void * activated;           // [rows, intermediate] storage type
    float * logits;             // [logit rows, vocab]
    float * scores;             // [threads, scores_size]
    float * sample;             // [threads, sample_size]
    const float *cos, *sin;     // [positions, head_dim / 2]
    const int32_t * positions;  // [rows]
    const int32_t * row_blocks; // [rows]: cache block of each row's position
    const Tile * tiles;
    int n_tiles;
    size_t scores_size, sample_size;
};

// Where the threads of one forward meet.
struct Barrier {
    alignas(64) int arrived = 0;
    alignas(64) int generation = 0;
};

// What a forward reads and writes.
struct Model {
    DecoderShape shape;
    const Layer * layers;
    const float * final_norm;
    Matrix head;
    const void * embedding; // [vocab, hidden] storage type; null when tied: rows are read out of the packed head
    char * cache;           // [layers][blocks][kv_heads]{keys [head_dim][16], values [16][padded(head_dim)]}
    size_t cache_head;      // bytes of one kv head of one block
};

constexpr int padded(int n) { return (n + 15) / 16 * 16; }
// Row stride in elements of `size` bytes, for n columns rounded up to a panel.
constexpr size_t stride(int n, size_t size) { return (((n + 63) / 64 * 64) * size / 64 | 1) * 64 / size; }

// Kernels of one instruction set.
struct Kernels {
    int lanes; // floats in a vector; a panel is two vectors wide
    void (*pack)(Matrix &, const Rows &, int thread, int threads);
    void (*forward)(
        const Model &, const Workspace &, const DecoderBatch &, DecoderDrawn *, Barrier &, int thread, int threads);
    void (*sample)(const float * logits, int vocab, const DecoderDraw &, const int32_t * suppressed, float * scratch,
        DecoderDrawn *);
};

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels, avx512_kernels, avx512_bf16_kernels, amx_kernels;
#endif

// Those for this processor.
const Kernels & kernels();

} // namespace decoder
