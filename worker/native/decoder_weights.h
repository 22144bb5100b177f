// The weights of a decoder. They are apart from its cache, so that new ones are packed beside those that a forward reads.
#pragma once
#include "decoder_memory.h"
#include "decoder_state.h"
#include <vector>

struct DecoderWeights {
    std::vector<decoder::Layer> layers;
    float * final_norm;
    decoder::Matrix head;
    char * embedding = nullptr; // [vocab, hidden] storage type; null when tied

    DecoderWeights(const DecoderShape & shape, bool apart);
    void set_rows(
        int layer, DecoderMatrix which, int part, int64_t first, int64_t count, const void * data, int threads);
    void change(const DecoderChange & change);
    void set_vector(int layer, DecoderVector which, int64_t first, int64_t count, const float * data);

private:
    size_t shape_matrix(decoder::Matrix & w, int n, int k, int outputs_per_panel) const;
    float * new_vector(int length);
    decoder::Rows rows_of(DecoderMatrix which, int part, int64_t first) const;
    decoder::Matrix & matrix(int layer, DecoderMatrix which);
    float * vector(int layer, DecoderVector which) const;
    size_t element() const { return shape_.bfloat16 ? 2 : 4; }

    DecoderShape shape_;
    std::vector<decoder::Block> blocks_;
    std::vector<std::vector<float>> vectors_;
};
