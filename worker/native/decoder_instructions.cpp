// Chooses the decoder's kernels for this processor.
#include "decoder_state.h"
#include <cstdlib>
#include <string>

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

} // namespace

const Kernels & kernels() {
    static const Kernels & chosen = choose();
    return chosen;
}

} // namespace decoder

const char * decoder_instructions(void) { return decoder::kernels().name; }
