// Decoder kernels for x86 with AVX2 and FMA.
#if defined(__x86_64__)
#define DECODER_LANES 8
#define DECODER_NAMESPACE avx2
#define DECODER_TABLE avx2_kernels
#include "decoder_kernels.inc"
#endif
