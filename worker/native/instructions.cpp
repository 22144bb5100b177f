#include "instructions.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ppo {
namespace {

#if defined(__x86_64__)
// Whether the processor has tiles of bfloat16, and the kernel lets this process use them, which it has to be asked for. It refuses where a thread's
// stack for signals would not hold them (Linux, Documentation/arch/x86/xstate.rst).
bool has_tiles() {
    constexpr unsigned kTile = 1u << 24, kBf16 = 1u << 22;
    constexpr long kRequestPermission = 0x1023, kTileData = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & (kTile | kBf16)) != (kTile | kBf16)) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

// The widest of this processor. Tiles are asked for where `most` is as wide.
Instructions of_processor(Instructions most) {
#if defined(__x86_64__)
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16"))
        return most == Instructions::kAmx && has_tiles() ? Instructions::kAmx : Instructions::kAvx512Bf16;
    if (avx512) return Instructions::kAvx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Instructions::kAvx2;
#endif
    return Instructions::kPortable;
}

Instructions allowed() {
    const char * asked = std::getenv("PPO_CPU_INSTRUCTIONS"); // to test what narrower processors do
    const std::string at_most = asked ? asked : "";
    if (at_most == "portable") return Instructions::kPortable;
    if (at_most == "avx2") return Instructions::kAvx2;
    if (at_most == "avx512") return Instructions::kAvx512;
    if (at_most == "avx512_bf16") return Instructions::kAvx512Bf16;
    return Instructions::kAmx;
}

} // namespace

Instructions instructions() {
    static const Instructions chosen = std::min(of_processor(allowed()), allowed());
    return chosen;
}

} // namespace ppo
