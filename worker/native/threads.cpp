// OpenMP's teams of threads.
#include <omp.h>

// Ends the calling thread's team; its next parallel region makes a new one.
extern "C" void ppo_release_team() {
#if _OPENMP >= 201811
  omp_pause_resource_all(omp_pause_soft);
#endif
}
