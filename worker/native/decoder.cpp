// Owns a decoder's cache and buffers and runs a forward in one parallel region.
#include "decoder_state.h"
#include "decoder_memory.h"
#include "decoder_guarded.h"
#include "decoder_weights.h"
#include <omp.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

using namespace decoder;

struct Decoder {
    Model model{};
    std::vector<float> inv_freq, cos, sin;
    Pages cache, buffers, logits;
    Workspace work{};
    std::vector<int32_t> positions, row_blocks;
    std::vector<Tile> tiles;

    explicit Decoder(const DecoderShape & shape) {
        model.shape = shape;
        inv_freq.assign(shape.inv_freq, shape.inv_freq + shape.head_dim / 2);
        model.shape.inv_freq = inv_freq.data();
        model.cache_head = times(shape.head_dim + padded(shape.head_dim), DECODER_BLOCK_SIZE * element());
        cache.reserve(times(times(times(shape.layers, shape.num_blocks), shape.kv_heads), model.cache_head));
        model.cache = cache.data();
    }

    size_t element() const { return model.shape.bfloat16 ? 2 : 4; }

    void sleep() {
        for (Pages * pages : {&cache, &buffers, &logits}) pages->spare();
    }

    // cos and sin of every position up to `last`, [positions, head_dim / 2].
    void reach(int last) {
        const size_t half = inv_freq.size();
        if (cos.size() / half > (size_t) last) return;
        const size_t first = cos.size() / half;
        const size_t until = std::min<size_t>(model.shape.max_positions, std::max<size_t>(last + 1, 2 * first + 128));
        cos.resize(until * half), sin.resize(until * half);
        for (size_t p = first; p < until; p++)
            for (size_t i = 0; i < half; i++) {
                // The angle is rounded to float32 first, as every reference implementation does.
                const float angle = (float) p * inv_freq[i];
                cos[p * half + i] = std::cos(angle);
                sin[p * half + i] = std::sin(angle);
            }
    }

    // Positions of rows, tiles of rows that attend together, and buffers large enough.
    void prepare(const DecoderBatch & batch) {
        const DecoderShape & s = model.shape;
        positions.resize(batch.n_rows), row_blocks.resize(batch.n_rows);
        tiles.clear();
        const int rows_per_tile = std::max(1, kTileQueries / (s.heads / s.kv_heads));
        int last = 0;
        for (int c = 0; c < batch.n_chunks; c++) {
            const DecoderChunk & chunk = batch.chunks[c];
            for (int r = 0; r < chunk.rows; r++) {
                const int position = chunk.start + r;
                positions[chunk.first_row + r] = position;
                row_blocks[chunk.first_row + r] = batch.blocks[chunk.first_block + position / DECODER_BLOCK_SIZE];
            }
            for (int r = 0; r < chunk.rows; r += rows_per_tile)
                tiles.push_back(
                    {chunk.first_row + r, std::min(rows_per_tile, chunk.rows - r), batch.blocks + chunk.first_block});
            last = std::max(last, chunk.start + chunk.rows - 1);
        }
        reach(last);
        work.cos = cos.data(), work.sin = sin.data();
        work.positions = positions.data(), work.row_blocks = row_blocks.data();
        work.tiles = tiles.data(), work.n_tiles = (int) tiles.size();

        const int qkv = (s.heads + 2 * s.kv_heads) * s.head_dim;
        work.scores_size = (size_t) 4 * padded(last + 1);
        work.sample_size = ((size_t) padded(s.vocab) * 3 + 2 * (s.vocab / 256 + 2) + 15) / 16 * 16;
        const size_t rows = std::max(batch.n_rows, batch.n_logit_rows);
        auto carve = [&](Arena & a) {
            work.x = (float *) a.take(times(rows, stride(s.hidden, 4) * 4));
            work.normed = a.take(times(rows, stride(s.hidden, element()) * element()));
            work.qkv = (float *) a.take(times(rows, stride(qkv, 4) * 4));
            work.attended = a.take(times(rows, stride(s.heads * s.head_dim, element()) * element()));
            work.activated = a.take(times(rows, stride(s.intermediate, element()) * element()));
            work.scores = (float *) a.take(times(s.threads, work.scores_size * 4));
            work.sample = (float *) a.take(times(s.threads, work.sample_size * 4));
        };
        Arena arena;
        carve(arena);
        buffers.reserve(arena.used);
        arena = Arena{buffers.data(), 0};
        carve(arena);
        logits.reserve(times(batch.n_logit_rows, stride(s.vocab, 4) * 4));
        work.logits = (float *) logits.data();
    }

    void forward(const DecoderWeights & weights, const DecoderBatch & batch, DecoderDrawn * drawn) {
        prepare(batch);
        model.layers = weights.layers.data(), model.final_norm = weights.final_norm;
        model.head = weights.head, model.embedding = weights.embedding;
        Barrier barrier;
// One region for the whole forward: waking a team per operator would cost more than a small model's step.
#pragma omp parallel num_threads(model.shape.threads)
        kernels().forward(model, work, batch, drawn, barrier, omp_get_thread_num(), omp_get_num_threads());
    }
};

extern "C" {

Decoder * decoder_new(const DecoderShape * shape, char * error, size_t error_size) {
    std::unique_ptr<Decoder> made;
    guarded(error, error_size, [&] { made = std::make_unique<Decoder>(*shape); });
    return made.release();
}

void decoder_free(Decoder * decoder) { delete decoder; }

void decoder_sleep(Decoder * decoder) { decoder->sleep(); }

int decoder_forward(Decoder * decoder, const DecoderWeights * weights, const DecoderBatch * batch, DecoderDrawn * drawn,
    char * error, size_t error_size) {
    return guarded(error, error_size, [&] { decoder->forward(*weights, *batch, drawn); });
}

void decoder_copy_block(Decoder * decoder, int32_t from, int32_t to) {
    const Model & m = decoder->model;
    const size_t bytes = m.cache_head * m.shape.kv_heads;
    for (int layer = 0; layer < m.shape.layers; layer++) {
        char * blocks = m.cache + (size_t) layer * m.shape.num_blocks * bytes;
        std::memmove(blocks + to * bytes, blocks + from * bytes, bytes);
    }
}

void decoder_logits(const Decoder * decoder, int32_t row, float * out) {
    const int vocab = decoder->model.shape.vocab;
    std::copy_n(decoder->work.logits + row * stride(vocab, 4), vocab, out);
}

int decoder_sample(const float * logits, int32_t vocab, const DecoderDraw * draw, const int32_t * suppressed,
    DecoderDrawn * drawn, char * error, size_t error_size) {
    return guarded(error, error_size, [&] {
        std::vector<double> scratch(
            (size_t) padded(vocab) * 2 + vocab / 128 + 16); // in doubles: the kernel wants their alignment
        kernels().sample(logits, vocab, *draw, suppressed, (float *) scratch.data(), drawn);
    });
}
}
