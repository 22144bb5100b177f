// Chooses the decoder's kernels for this processor.
#include "decoder_state.h"
#include "instructions.h"

namespace decoder {
namespace {

const Kernels & choose() {
#if defined(__x86_64__)
    switch (ppo::instructions()) {
    case ppo::Instructions::kAmx: return amx_kernels;
    case ppo::Instructions::kAvx512Bf16: return avx512_bf16_kernels;
    case ppo::Instructions::kAvx512: return avx512_kernels;
    case ppo::Instructions::kAvx2: return avx2_kernels;
    case ppo::Instructions::kPortable: break;
    }
#endif
    return portable_kernels;
}

} // namespace

const Kernels & kernels() {
    static const Kernels & chosen = choose();
    return chosen;
}

} // namespace decoder
