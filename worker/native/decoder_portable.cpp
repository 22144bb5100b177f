// Decoder kernels for any processor: the compiler's baseline, four lanes.
#define DECODER_LANES 4
#define DECODER_NAMESPACE portable
#define DECODER_TABLE portable_kernels
#include "decoder_kernels.inc"
