// Sets of a processor's instructions that kernels are made for, narrowest first.
#pragma once

namespace ppo {

enum class Instructions { kPortable, kAvx2, kAvx512, kAvx512Bf16 };

// The widest that this processor has and PPO_CPU_INSTRUCTIONS (portable, avx2 or avx512) allows. It never changes: a resumed run must
// compute with the same kernels, bit for bit.
Instructions instructions();

} // namespace ppo
