// Sets of a processor's instructions that kernels are made for, narrowest first.
#pragma once

namespace ppo {

enum class Instructions { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// The widest that this processor has and PPO_CPU_INSTRUCTIONS (portable, avx2, avx512 or avx512_bf16) allows. kAmx is AMX, whose tiles
// multiply bfloat16. It never changes: a resumed run must compute with the same kernels, bit for bit.
Instructions instructions();

} // namespace ppo
