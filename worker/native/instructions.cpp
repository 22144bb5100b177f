#include "instructions.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace ppo {
namespace {

Instructions of_processor() {
#if defined(__x86_64__)
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512) return __builtin_cpu_supports("avx512bf16") ? Instructions::kAvx512Bf16 : Instructions::kAvx512;
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
    return Instructions::kAvx512Bf16;
}

} // namespace

Instructions instructions() {
    static const Instructions chosen = std::min(of_processor(), allowed());
    return chosen;
}

} // namespace ppo
