// The C interface between the engine (worker/src/native/engine.rs) and the decoder. Plain structs, no exceptions.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

// Rows of one key/value block: fixed, because a block of keys is one vector group in the attention kernel.
enum { DECODER_BLOCK_SIZE = 16 };

struct DecoderShape {
    int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, max_positions;
    int32_t bfloat16;   // storage of weights, product inputs and cache: 0 float32, 1 bfloat16
    int32_t tied;       // token embedding and output head are one matrix
    int32_t qkv_bias;   // Qwen2
    int32_t qk_norm;    // Qwen3: RMSNorm over each head's query and key
    int32_t num_blocks; // of the key/value cache
    int32_t threads;
    float rms_eps;
    const float * inv_freq; // [head_dim / 2], scaling already applied
};

enum DecoderMatrix { DECODER_QKV, DECODER_OUTPUT, DECODER_GATE_UP, DECODER_DOWN, DECODER_HEAD, DECODER_EMBEDDING };
enum DecoderVector {
    DECODER_ATTENTION_NORM,
    DECODER_MLP_NORM,
    DECODER_FINAL_NORM,
    DECODER_QKV_BIAS,
    DECODER_Q_NORM,
    DECODER_K_NORM
};

struct DecoderChunk {
    int32_t first_row; // in the batch
    int32_t rows;
    int32_t start;       // position of the first row in its sequence
    int32_t first_block; // into DecoderBatch::blocks
};

struct DecoderDraw {
    double uniform; // in [0, 1)
    float temperature, top_p, min_p;
    int32_t top_k;
    int32_t logit_row;        // into DecoderBatch::logit_rows
    int32_t first_suppressed; // into DecoderBatch::suppressed: tokens of probability 0
    int32_t suppressed;
};

struct DecoderBatch {
    const int32_t * tokens; // [n_rows]
    const DecoderChunk * chunks;
    const int32_t * blocks;
    const int32_t * logit_rows; // rows whose next token is drawn, ascending
    const DecoderDraw * draws;
    const int32_t * suppressed;
    int32_t n_rows, n_chunks, n_logit_rows, n_draws;
};

struct DecoderDrawn {
    int32_t token; // -1: the row's logits hold no distribution (NaN or infinity, or every token suppressed)
    float logprob;
};

// Every function that takes `error` returns 0, or writes a sentence there and returns 1 (those that make something: null).

// Matrices, packed for the products, and vectors. Whoever makes them sets them all before a forward reads them. They are one block of the
// heap, or each matrix is `apart`: it finds room in the holes that others left.
struct DecoderWeights;
DecoderWeights * decoder_weights_new(const DecoderShape * shape, int32_t apart, char * error, size_t error_size);
void decoder_weights_free(DecoderWeights * weights);
// Rows [first, first + count) of one part of a matrix (three of DECODER_QKV, two of DECODER_GATE_UP, else one): `data` is [count, columns] in
// the model's storage type, at any address.
void decoder_weights_set_rows(DecoderWeights * weights, int32_t layer, DecoderMatrix which, int32_t part, int64_t first,
    int64_t count, const void * data, int32_t threads);
// Numbers of one part of a matrix that are others now, one after the other: each byte of `gaps` [count] says how many numbers are passed
// over before the next, and 255 that there is none yet. `values` are bfloat16, at any address.
struct DecoderChange {
    int32_t layer;
    enum DecoderMatrix which;
    int32_t part;
    const uint8_t * gaps;
    int64_t count;
    const void * values;
};
// Each of another part.
void decoder_weights_change(DecoderWeights * weights, const DecoderChange * changes, int64_t count, int32_t threads);
// Numbers [first, first + count) of a vector.
void decoder_weights_set_vector(
    DecoderWeights * weights, int32_t layer, DecoderVector which, int64_t first, int64_t count, const float * data);

// The cache, and the buffers of a forward.
struct Decoder;
Decoder * decoder_new(const DecoderShape * shape, char * error, size_t error_size);
void decoder_free(Decoder * decoder);
// The system may take the memory of cache and buffers when it is short of some.
void decoder_sleep(Decoder * decoder);
int decoder_forward(Decoder * decoder, const DecoderWeights * weights, const DecoderBatch * batch, DecoderDrawn * drawn,
    char * error, size_t error_size);
void decoder_copy_block(Decoder * decoder, int32_t from, int32_t to);
// Copies a row of the last forward's logits, [vocab]: one of its `n_logit_rows`.
void decoder_logits(const Decoder * decoder, int32_t row, float * out);
// Draws from given logits [vocab] the way `decoder_forward` does.
int decoder_sample(const float * logits, int32_t vocab, const DecoderDraw * draw, const int32_t * suppressed,
    DecoderDrawn * drawn, char * error, size_t error_size);
}
