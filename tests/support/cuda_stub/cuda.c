// What the library calls of the CUDA driver, without a GPU: one H100. Functions are their names; launches, and questions how
// many blocks are resident, go to standard output, a line each.
//
//   SDORT_STUB_BLOCKS       of a kernel on a multiprocessor (1)
//   SDORT_STUB_COOPERATIVE  whether the device says that it launches grids whose blocks are resident together (1)
//   SDORT_STUB_FAIL         what the question how many are resident fails with (0)
//   -DNO_COOPERATIVE_LAUNCHES  a driver that lacks those functions
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int setting(const char* name, int otherwise) {
    const char* value = getenv(name);
    return value ? atoi(value) : otherwise;
}

int cuInit(unsigned flags) { return flags; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    const int values[128] = {[16] = 132, [75] = 9, [95] = setting("SDORT_STUB_COOPERATIVE", 1)};
    *value = values[attribute];
    return device;
}
int cuModuleLoadData(void** module, const void* image) { return *module = (void*)image, 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
    (void)module;
    *function = strdup(name);
    return 0;
}
int cuGetErrorName(int code, const char** name) {
    (void)code;
    *name = "CUDA_ERROR_STUB";
    return 0;
}
int cuMemAlloc_v2(void** memory, size_t bytes) { return *memory = malloc(bytes), 0; }
int cuMemsetD8_v2(void* memory, unsigned char value, size_t bytes) { return memset(memory, value, bytes), 0; }
int cuCtxSynchronize(void) { return 0; }
int cuEventCreate(void) { return 0; }
int cuEventRecord(void) { return 0; }
int cuEventSynchronize(void) { return 0; }
int cuEventElapsedTime(void) { return 0; }
int cuEventDestroy_v2(void) { return 0; }
int cuDevicePrimaryCtxRetain(void) { return 0; }
int cuCtxSetCurrent(void) { return 0; }

static int record(const char* call, const char* function, const unsigned* grid, unsigned threads, const void* args,
                  void* stream) {
    uint64_t x;  // the first argument
    memcpy(&x, args, sizeof x);
    printf("%s %s %ux%u %u x=%llu stream=%llu\n", call, function, grid[0], grid[1], threads, (unsigned long long)x,
           (unsigned long long)(uintptr_t)stream);
    return 0;
}

int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                   unsigned threads_z, unsigned shared, void* stream, void** params, void** extra) {
    if (z != 1 || threads_y != 1 || threads_z != 1 || shared != 0 || params || !extra) return 1;
    if (extra[0] != (void*)1 || extra[2] != (void*)2 || extra[4] != 0) return 1;  // buffer, its size, end
    const unsigned grid[2] = {x, y};
    return record("cuLaunchKernel", function, grid, threads, extra[1], stream);
}

#if !defined(NO_COOPERATIVE_LAUNCHES)
int cuLaunchCooperativeKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                              unsigned threads_z, unsigned shared, void* stream, void** params) {
    if (z != 1 || threads_y != 1 || threads_z != 1 || shared != 0 || !params) return 1;
    const unsigned grid[2] = {x, y};
    return record("cuLaunchCooperativeKernel", function, grid, threads, params[0], stream);
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared) {
    printf("cuOccupancyMaxActiveBlocksPerMultiprocessor %s %d\n", (const char*)function, threads);
    *blocks = setting("SDORT_STUB_BLOCKS", 1);
    return shared == 0 ? setting("SDORT_STUB_FAIL", 0) : 1;
}
#endif
