// NVIDIA's driver as far as the worker asks it (src/native/driver.rs): SIMULATED_GPUS devices of SIMULATED_GPU_MIB each.
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuDeviceGetCount(int* count) {
  const char* given = getenv("SIMULATED_GPUS");
  *count = given ? atoi(given) : 1;
  return 0;
}

int cuDeviceGet(int* device, int number) {
  *device = number;
  return 0;
}

int cuDeviceGetName(char* name, int length, int device) {
  snprintf(name, length, "simulated GPU %d", device);
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  (void)device;
  const char* given = getenv("SIMULATED_GPU_MIB");
  *bytes = (given ? strtoul(given, NULL, 10) : 4096ul) << 20;
  return 0;
}

// Compute capability 9.0: attributes 75 and 76.
int cuDeviceGetAttribute(int* value, int which, int device) {
  (void)device;
  *value = which == 75 ? 9 : 0;
  return 0;
}

int cuGetErrorString(int code, const char** words) {
  (void)code;
  *words = "an error of the simulated driver";
  return 0;
}
