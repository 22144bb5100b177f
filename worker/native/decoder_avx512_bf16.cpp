// Decoder kernels for x86 with AVX-512 and AVX512_BF16.
#if defined(__x86_64__)
#define DECODER_LANES 16
#define DECODER_NAMESPACE avx512_bf16
#define DECODER_TABLE avx512_bf16_kernels
#include "decoder_kernels.inc"
#endif
