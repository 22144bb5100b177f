// Decoder kernels for x86 with AVX-512 (F, BW, DQ, VL) but no bfloat16 products.
#if defined(__x86_64__)
#define DECODER_LANES 16
#define DECODER_NAMESPACE avx512
#define DECODER_TABLE avx512_kernels
#include "decoder_kernels.inc"
#endif
