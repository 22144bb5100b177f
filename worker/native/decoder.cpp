// Owns a decoder's memory, chooses the kernels for this processor and runs a forward in one parallel region.
#include "decoder_state.h"
#include "decoder_memory.h"
#include <omp.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace decoder {
namespace {

const Kernels & choose() {
#if defined(__x86_64__)
    const char * asked = std::getenv("PPO_CPU_INSTRUCTIONS"); // to run narrower kernels than the processor's best
    const std::string at_most = asked ? asked : "";
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (at_most == "portable") return portable_kernels;
    if (avx512 && at_most != "avx2")
        return __builtin_cpu_supports("avx512bf16") && at_most != "avx512" ? avx512_bf16_kernels : avx512_kernels;
    if (avx2) return avx2_kernels;
#endif
    return portable_kernels;
}

const Kernels & kernels() {
    static const Kernels & chosen = choose();
    return chosen;
}

int report(char * error, size_t size, const char * what) {
    std::snprintf(error, size, "%s", what);
    return 1;
}

template <class Body> int guarded(char * error, size_t size, Body body) {
    try {
        body();
        return 0;
    } catch (const std::bad_alloc &) {
        return report(error, size, "not enough memory");
    } catch (const std::exception & e) {
        return report(error, size, e.what());
    }
}

} // namespace
} // namespace decoder

using namespace decoder;

struct Decoder {
    Model model{};
    std::vector<Layer> layers;
    std::vector<std::vector<float>> vectors; // norms and biases
    std::vector<float> inv_freq, cos, sin;
    Pages weights, cache, buffers, logits;
    Workspace work{};
    std::vector<int32_t> positions, row_blocks;
    std::vector<Tile> tiles;
    int n_logit_rows = 0;

    explicit Decoder(const DecoderShape & shape) {
        model.shape = shape;
        inv_freq.assign(shape.inv_freq, shape.inv_freq + shape.head_dim / 2);
        model.shape.inv_freq = inv_freq.data();
        layers.resize(shape.layers);
        model.layers = layers.data();
        Arena arena;
        place(arena);
        weights.reserve(arena.used);
        arena = Arena{weights.data(), 0};
        place(arena);
        model.cache_head = times(shape.head_dim + padded(shape.head_dim), DECODER_BLOCK_SIZE * element());
        cache.reserve(times(times(times(shape.layers, shape.num_blocks), shape.kv_heads), model.cache_head));
        model.cache = cache.data();
    }

    size_t element() const { return model.shape.bfloat16 ? 2 : 4; }

    void shape_matrix(Arena & arena, Matrix & w, int n, int k, int outputs_per_panel) {
        w.n = n, w.k = k;
        w.steps = model.shape.bfloat16 ? (k + 1) / 2 : k;
        w.count = (n + outputs_per_panel - 1) / outputs_per_panel;
        w.panels = (uint32_t *) arena.take(times(times(w.count, w.steps), 2 * kernels().lanes * sizeof(uint32_t)));
    }

    // Weights lie in the order a forward reads them.
    void place(Arena & arena) {
        const DecoderShape & s = model.shape;
        const int panel = 2 * kernels().lanes;
        for (Layer & l : layers) {
            shape_matrix(arena, l.qkv, (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden, panel);
            shape_matrix(arena, l.output, s.hidden, s.heads * s.head_dim, panel);
            shape_matrix(arena, l.gate_up, s.intermediate, s.hidden, panel / 2); // gate and up share a panel
            shape_matrix(arena, l.down, s.hidden, s.intermediate, panel);
        }
        shape_matrix(arena, model.head, s.vocab, s.hidden, panel);
        if (!s.tied) model.embedding = arena.take(times(times(s.vocab, s.hidden), element()));
    }

    float * keep(float * old, const float * data, int64_t length, int padded_length) {
        if (!old) {
            vectors.emplace_back(padded_length, 0.0f);
            old = vectors.back().data();
        }
        std::copy(data, data + length, old);
        return old;
    }

    void set_matrix(int layer, DecoderMatrix which, const DecoderPart * parts, int n_parts) {
        if (which == DECODER_EMBEDDING) {
            std::memcpy(model.embedding, parts[0].data, (size_t) parts[0].rows * model.shape.hidden * element());
            return;
        }
        Matrix & w = which == DECODER_HEAD      ? model.head
                     : which == DECODER_QKV     ? layers[layer].qkv
                     : which == DECODER_OUTPUT  ? layers[layer].output
                     : which == DECODER_GATE_UP ? layers[layer].gate_up
                                                : layers[layer].down;
        const bool interleave = which == DECODER_GATE_UP;
        Barrier barrier;
#pragma omp parallel num_threads(model.shape.threads)
        kernels().pack(model, w, parts, n_parts, interleave, barrier, omp_get_thread_num(), omp_get_num_threads());
    }

    void set_vector(int layer, DecoderVector which, const float * data, int64_t length) {
        const int padded_length = padded((int) length);
        switch (which) {
        case DECODER_FINAL_NORM: model.final_norm = keep(model.final_norm, data, length, padded_length); return;
        case DECODER_ATTENTION_NORM:
            layers[layer].attention_norm = keep(layers[layer].attention_norm, data, length, padded_length);
            return;
        case DECODER_MLP_NORM:
            layers[layer].mlp_norm = keep(layers[layer].mlp_norm, data, length, padded_length);
            return;
        case DECODER_QKV_BIAS:
            layers[layer].qkv_bias = keep(layers[layer].qkv_bias, data, length, padded_length);
            return;
        case DECODER_Q_NORM: layers[layer].q_norm = keep(layers[layer].q_norm, data, length, padded_length); return;
        case DECODER_K_NORM: layers[layer].k_norm = keep(layers[layer].k_norm, data, length, padded_length); return;
        }
    }

    void sleep() {
        for (Pages * pages : {&weights, &cache, &buffers, &logits}) pages->spare();
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
                cos[p * half + i] = std::cos(angle) * model.shape.rope_attention_scaling;
                sin[p * half + i] = std::sin(angle) * model.shape.rope_attention_scaling;
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
        n_logit_rows = batch.n_logit_rows;
    }

    void forward(const DecoderBatch & batch, DecoderDrawn * drawn) {
        prepare(batch);
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

int decoder_set_matrix(Decoder * decoder, int32_t layer, DecoderMatrix which, const DecoderPart * parts,
    int32_t n_parts, char * error, size_t error_size) {
    return guarded(error, error_size, [&] { decoder->set_matrix(layer, which, parts, n_parts); });
}

int decoder_set_vector(Decoder * decoder, int32_t layer, DecoderVector which, const float * data, int64_t length,
    char * error, size_t error_size) {
    return guarded(error, error_size, [&] { decoder->set_vector(layer, which, data, length); });
}

int decoder_forward(
    Decoder * decoder, const DecoderBatch * batch, DecoderDrawn * drawn, char * error, size_t error_size) {
    return guarded(error, error_size, [&] { decoder->forward(*batch, drawn); });
}

void decoder_copy_block(Decoder * decoder, int32_t from, int32_t to) {
    const Model & m = decoder->model;
    const size_t bytes = m.cache_head * m.shape.kv_heads;
    for (int layer = 0; layer < m.shape.layers; layer++) {
        char * blocks = m.cache + (size_t) layer * m.shape.num_blocks * bytes;
        std::memmove(blocks + to * bytes, blocks + from * bytes, bytes);
    }
}

void decoder_logits(const Decoder * decoder, float * out) {
    const int vocab = decoder->model.shape.vocab;
    for (int i = 0; i < decoder->n_logit_rows; i++)
        std::copy_n(decoder->work.logits + i * stride(vocab, 4), vocab, out + (size_t) i * vocab);
}

int decoder_sample(const float * logits, int32_t vocab, const DecoderDraw * draw, const int32_t * suppressed,
    DecoderDrawn * drawn, char * error, size_t error_size) {
    return guarded(error, error_size, [&] {
        std::vector<double> scratch(
            (size_t) padded(vocab) * 2 + vocab / 128 + 16); // in doubles: the kernel wants their alignment
        kernels().sample(logits, vocab, *draw, suppressed, (float *) scratch.data(), drawn);
    });
}

const char * decoder_instructions(void) { return kernels().name; }
}
