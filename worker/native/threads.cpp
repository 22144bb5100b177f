// OpenMP's teams of threads.
#include <omp.h>

// Ends the calling thread's team; its next parallel region makes a new one. Of OpenMP 5.0: GCC has it since 9, whose _OPENMP still says 4.5.
extern "C" void ppo_release_team() { omp_pause_resource_all(omp_pause_soft); }
