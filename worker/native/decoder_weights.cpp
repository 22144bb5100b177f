// Owns the memory of packed weights and writes rows of a model's tensors to their place in it.
#include "decoder_weights.h"
#include "decoder_guarded.h"
#include <omp.h>
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

using namespace decoder;

extern "C" void ppo_training_advise_memory(); // training_memory.cpp

namespace {

// Memory of one tensor and what to do with it.
struct Piece {
    size_t bytes;
    std::function<void(char *)> put;
};

} // namespace

// Matrices lie in the order in which a forward reads them.
DecoderWeights::DecoderWeights(const DecoderShape & s, bool apart) : layers(s.layers), shape_(s) {
    shape_.inv_freq = nullptr; // the caller's
    std::vector<Piece> pieces;
    const auto piece = [&](Matrix & w, int n, int k, int outputs_per_panel) {
        const size_t panel = shape_matrix(w, n, k, outputs_per_panel);
        pieces.push_back({times(w.count, panel), [&w, panel](char * panels) {
            w.panels = (uint32_t *) panels;
            // Outputs beyond n, which nobody sets, are in the last.
            if (w.count) std::memset(panels + (w.count - 1) * panel, 0, panel);
        }});
    };
    const int panel = 2 * kernels().lanes;
    for (Layer & l : layers) {
        piece(l.qkv, (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden, panel);
        piece(l.output, s.hidden, s.heads * s.head_dim, panel);
        piece(l.gate_up, s.intermediate, s.hidden, panel / 2); // gate and up share a panel
        piece(l.down, s.hidden, s.intermediate, panel);
    }
    piece(head, s.vocab, s.hidden, panel);
    if (!s.tied)
        pieces.push_back({times(times(s.vocab, s.hidden), element()), [this](char * at) { embedding = at; }});

    if (apart) {
        for (const Piece & each : pieces) {
            blocks_.push_back(heap_block(each.bytes, 64));
            // What the heap grew by for it has room for others, too: they share huge pages, which no block would fill by itself.
            ppo_training_advise_memory();
            each.put(blocks_.back().get());
        }
    } else {
        Arena arena;
        for (const Piece & each : pieces) arena.take(each.bytes);
        blocks_.push_back(heap_block(arena.used, arena.used < kHugePage ? 64 : kHugePage));
        arena = Arena{blocks_.back().get(), 0};
        for (const Piece & each : pieces) each.put(arena.take(each.bytes));
    }
    for (Layer & l : layers) {
        l.attention_norm = new_vector(s.hidden), l.mlp_norm = new_vector(s.hidden);
        if (s.qkv_bias) l.qkv_bias = new_vector((s.heads + 2 * s.kv_heads) * s.head_dim);
        if (s.qk_norm) l.q_norm = new_vector(s.head_dim), l.k_norm = new_vector(s.head_dim);
    }
    final_norm = new_vector(s.hidden);
}

// Bytes of a panel.
size_t DecoderWeights::shape_matrix(Matrix & w, int n, int k, int outputs_per_panel) const {
    w.k = k;
    w.steps = shape_.bfloat16 ? (k + 1) / 2 : k;
    w.count = (n + outputs_per_panel - 1) / outputs_per_panel;
    return times(w.panel(kernels().lanes), sizeof(uint32_t));
}

float * DecoderWeights::new_vector(int length) {
    vectors_.emplace_back(padded(length), 0.0f);
    return vectors_.back().data();
}

Matrix & DecoderWeights::matrix(int layer, DecoderMatrix which) {
    Layer & l = layers[layer];
    switch (which) {
    case DECODER_QKV: return l.qkv;
    case DECODER_OUTPUT: return l.output;
    case DECODER_GATE_UP: return l.gate_up;
    case DECODER_DOWN: return l.down;
    default: return head;
    }
}

float * DecoderWeights::vector(int layer, DecoderVector which) const {
    const Layer & l = layers[layer];
    switch (which) {
    case DECODER_ATTENTION_NORM: return l.attention_norm;
    case DECODER_MLP_NORM: return l.mlp_norm;
    case DECODER_QKV_BIAS: return l.qkv_bias;
    case DECODER_Q_NORM: return l.q_norm;
    case DECODER_K_NORM: return l.k_norm;
    default: return final_norm;
    }
}

// Where rows of a part lie among the outputs of its matrix.
Rows DecoderWeights::rows_of(DecoderMatrix which, int part, int64_t first) const {
    Rows rows{nullptr, 0, first, 0, 0, 1};
    if (which == DECODER_QKV && part > 0) rows.first += int64_t(shape_.heads + (part - 1) * shape_.kv_heads) * shape_.head_dim;
    if (which == DECODER_GATE_UP) rows.group = part, rows.stride = 2;
    return rows;
}

void DecoderWeights::set_rows(
    int layer, DecoderMatrix which, int part, int64_t first, int64_t count, const void * data, int threads) {
    if (which == DECODER_EMBEDDING) {
        const size_t row = shape_.hidden * element();
        std::memcpy(embedding + first * row, data, count * row);
        return;
    }
    Matrix & w = matrix(layer, which);
    Rows rows = rows_of(which, part, first);
    rows.data = data, rows.row_bytes = w.k * element(), rows.count = count;
    // What arrives piece by piece is packed by one thread: a region of OpenMP for each piece would cost system calls.
    if (threads <= 1) return kernels().pack(w, rows, 0, 1);
#pragma omp parallel num_threads(threads)
    kernels().pack(w, rows, omp_get_thread_num(), omp_get_num_threads());
}

void DecoderWeights::change(const DecoderChange & change) {
    const Matrix * w = change.which == DECODER_EMBEDDING ? nullptr : &matrix(change.layer, change.which);
    const int columns = w ? w->k : shape_.hidden, lanes = kernels().lanes, together = kLine / lanes;
    const size_t size = element();
    const Rows rows = rows_of(change.which, change.part, 0);
    // The first number of an output, of which each step's unit of 32 bits is found as the kernels find it (decoder_gemm.inc).
    const auto row_at = [&](int64_t row) {
        if (!w) return embedding + row * columns * size;
        const int64_t output = rows.first + row, group = rows.group + output / lanes * rows.stride;
        return (char *) (w->panels + (size_t) (group / 2) * w->panel(lanes) + group % 2 * kLine + output % lanes);
    };
    const auto number_at = [&](char * row, int64_t column) {
        if (!w) return row + column * size;
        const int64_t unit = size == 2 ? column / 2 : column, half = size == 2 ? column % 2 : 0;
        return row + ((unit / together) * (2 * kLine) + unit % together * lanes) * sizeof(uint32_t) + half * size;
    };
    const char * value = (const char *) change.values;
    int64_t row = 0, column = 0;
    char * at = row_at(0);
    for (int64_t i = 0; i < change.count; i++) {
        column += change.gaps[i];
        if (change.gaps[i] == 255) continue;
        if (column >= columns) {
            row += column / columns, column %= columns;
            at = row_at(row);
        }
        char * number = number_at(at, column);
        if (size == 2) {
            std::memcpy(number, value, sizeof(bf16));
        } else {
            bf16 bits;
            std::memcpy(&bits, value, sizeof bits);
            const uint32_t whole = uint32_t(bits) << 16;
            std::memcpy(number, &whole, sizeof whole);
        }
        value += sizeof(bf16);
        column++;
    }
}

void DecoderWeights::set_vector(int layer, DecoderVector which, int64_t first, int64_t count, const float * data) {
    std::copy_n(data, count, vector(layer, which) + first);
}

extern "C" {

DecoderWeights * decoder_weights_new(const DecoderShape * shape, int32_t apart, char * error, size_t error_size) {
    std::unique_ptr<DecoderWeights> made;
    guarded(error, error_size, [&] { made = std::make_unique<DecoderWeights>(*shape, apart != 0); });
    return made.release();
}

void decoder_weights_free(DecoderWeights * weights) { delete weights; }

void decoder_weights_set_rows(DecoderWeights * weights, int32_t layer, DecoderMatrix which, int32_t part, int64_t first,
    int64_t count, const void * data, int32_t threads) {
    weights->set_rows(layer, which, part, first, count, data, threads);
}

void decoder_weights_change(DecoderWeights * weights, const DecoderChange * changes, int64_t count, int32_t threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < count; i++) weights->change(changes[i]);
}

void decoder_weights_set_vector(
    DecoderWeights * weights, int32_t layer, DecoderVector which, int64_t first, int64_t count, const float * data) {
    weights->set_vector(layer, which, first, count, data);
}
}
