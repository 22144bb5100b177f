// Decoder kernels for x86 with AVX-512, AVX512_BF16 and tiles (AMX), which multiply bfloat16.
#if defined(__x86_64__)
#define DECODER_LANES 16
#define DECODER_TILES
#define DECODER_NAMESPACE amx
#define DECODER_TABLE amx_kernels
#include "decoder_kernels.inc"
#endif
