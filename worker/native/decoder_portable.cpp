// Decoder kernels for any processor: the compiler's baseline, four lanes.
#define DECODER_LANES 4
#define DECODER_NAMESPACE portable
#define DECODER_TABLE portable_kernels
#define DECODER_NAME "portable"
#include "decoder_kernels.inc"
