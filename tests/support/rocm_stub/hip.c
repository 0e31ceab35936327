// A HIP runtime without a GPU: device memory is host memory, kernels do nothing, except those that are loaded
// as modules, which are recorded and, if SDORT_STUB_BODIES names a library with sdort_body_launch, run there as CPU code.
//
//   SDORT_STUB_GFX     the device's architecture (gfx1100); gfx9 has waves of 64
//   SDORT_STUB_LOG     file to which module calls are appended, a line of JSON each
//   SDORT_STUB_COPIES  file to which copies are appended, likewise
//   SDORT_STUB_BODIES  shared library with the kernels' bodies
//   SDORT_STUB_FAIL    NAME:CODE, the HIP function that fails with that code: hipModuleLaunchKernel:1; NAME:CODE:N, from
//                      its Nth call on. Read at every call, so that a process may set it while it runs
//   SDORT_STUB_CAPTURING  1: every stream is captured
//   SDORT_STUB_DEVICES  how many devices there are (1)
//   SDORT_STUB_PEERS   whether a device reaches the memory of another one (1); 2: another library lets it already
//   SDORT_STUB_MEMORY  the device's memory in MiB (15360); what does not fit fails
//
// Whatever else the provider's library wants is a function that returns 0 (made by __init__.py).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int hipError_t;
static char something[64];  // what every handle points to

static const char* setting(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value && *value ? value : otherwise;
}

static const char* gfx(void) { return setting("SDORT_STUB_GFX", "gfx1100"); }
static int wave(void) { return strncmp(gfx(), "gfx9", 4) == 0 ? 64 : 32; }

static hipError_t failure(const char* function) {
    const char* wanted = setting("SDORT_STUB_FAIL", "");
    const size_t length = strlen(function);
    if (strncmp(wanted, function, length) != 0 || wanted[length] != ':') return 0;
    static long calls = 0;  // of the one function that is named
    const char* from = strchr(wanted + length + 1, ':');
    return ++calls >= (from ? atol(from + 1) : 1) ? atoi(wanted + length + 1) : 0;
}
#define MAY_FAIL() do { const hipError_t code = failure(__func__); if (code) return code; } while (0)

static FILE* open_log(const char* variable) {
    const char* path = getenv(variable);
    return path ? fopen(path, "a") : NULL;
}

static int devices(void) { return atoi(setting("SDORT_STUB_DEVICES", "1")); }
static _Thread_local int current = 0;
static char streams[16][64];  // what a stream's handle points to, by its device
static int device_of(const void* stream) { return stream ? (int)(((const char*)stream - streams[0]) / 64) : current; }

hipError_t hipGetDeviceCount(int* count) { *count = devices(); return 0; }
hipError_t hipGetDevice(int* device) { *device = current; return 0; }
hipError_t hipSetDevice(int device) {
    if (device < 0 || device >= devices()) return 101;
    current = device;
    return 0;
}
hipError_t hipRuntimeGetVersion(int* version) { *version = 70000000; return 0; }
hipError_t hipDriverGetVersion(int* version) { *version = 70000000; return 0; }
hipError_t hipDeviceGetAttribute(int* value, int attribute, int device) {
    (void)device;
    switch (attribute) {
        case 63: *value = 48; break;      // hipDeviceAttributeMultiprocessorCount
        case 87: *value = wave(); break;  // hipDeviceAttributeWarpSize
        case 56: *value = 1024; break;    // hipDeviceAttributeMaxThreadsPerBlock
        default: *value = 0;
    }
    return 0;
}

// hipDeviceProp_tR0600, by offset: hip_runtime_api.h of HIP 6 and 7.
hipError_t hipGetDevicePropertiesR0600(char* properties, int device) {
    (void)device;
    memset(properties, 0, 1472);
    strcpy(properties, "A stub");
    *(size_t*)(properties + 288) = 16ull << 30;  // totalGlobalMem
    *(size_t*)(properties + 296) = 65536;        // sharedMemPerBlock
    *(int*)(properties + 304) = 65536;           // regsPerBlock
    *(int*)(properties + 308) = wave();          // warpSize
    *(int*)(properties + 320) = 1024;            // maxThreadsPerBlock
    for (int i = 0; i < 3; ++i) {
        *(int*)(properties + 324 + 4 * i) = 1024;        // maxThreadsDim
        *(int*)(properties + 336 + 4 * i) = 2147483647;  // maxGridSize
    }
    *(int*)(properties + 360) = 11;  // major
    *(int*)(properties + 388) = 48;  // multiProcessorCount
    strcpy(properties + 1160, gfx());
    return 0;
}

// While a thread captures a stream (in the global mode), no other one may allocate or wait for a copy.
static _Thread_local int mine = 0;
static int capturing = 0;
static void log_wrong(const char* what, const char* function) {
    FILE* log = open_log("SDORT_STUB_COPIES");
    if (!log) return;
    fprintf(log, "{\"call\": \"wrong\", \"what\": \"%s\", \"function\": \"%s\"}\n", what, function);
    fclose(log);
}
static void unsafe(const char* function) {
    if (__atomic_load_n(&capturing, __ATOMIC_SEQ_CST) > mine) log_wrong("another thread captures", function);
}
static void launched(const char* function, const void* stream) {
    if (device_of(stream) == current) return;
    char what[64];
    snprintf(what, sizeof what, "the stream is of device %d, and %d is current", device_of(stream), current);
    log_wrong(what, function);
}
hipError_t hipStreamBeginCapture(void* stream, int mode) {
    (void)stream, (void)mode;
    ++mine;
    __atomic_add_fetch(&capturing, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static size_t capacity(void) { return (size_t)atol(setting("SDORT_STUB_MEMORY", "15360")) << 20; }
static size_t used = 0;

hipError_t hipHostMalloc(void** memory, size_t size, unsigned flags) {
    (void)flags;
    const size_t taken = (size + 511) / 256 * 256;
    *memory = aligned_alloc(256, taken);
    // No kernel writes to it: what was freed before could read as NaN. Large blocks come from the system as zeros.
    if (*memory && taken <= 1 << 20) memset(*memory, 0, taken);
    return *memory ? 0 : 2;
}
hipError_t hipMalloc(void** memory, size_t size) {
    MAY_FAIL();
    unsafe(__func__);
    if (__atomic_load_n(&used, __ATOMIC_RELAXED) + size > capacity()) return 2;
    const hipError_t code = hipHostMalloc(memory, size, 0);
    if (!code) __atomic_add_fetch(&used, malloc_usable_size(*memory), __ATOMIC_RELAXED);
    return code;
}
hipError_t hipFree(void* memory) {
    __atomic_sub_fetch(&used, malloc_usable_size(memory), __ATOMIC_RELAXED);
    free(memory);
    return 0;
}
hipError_t hipHostFree(void* memory) { free(memory); return 0; }
hipError_t hipMemGetInfo(size_t* available, size_t* total) {
    const size_t taken = __atomic_load_n(&used, __ATOMIC_RELAXED);
    *total = capacity();
    *available = taken < *total ? *total - taken : 0;
    return 0;
}
static void log_copy(size_t size, int kind) {
    static const char* const kinds[] = {"host to host", "host to device", "device to host", "device to device", "any"};
    FILE* log = open_log("SDORT_STUB_COPIES");
    if (!log) return;
    fprintf(log, "{\"call\": \"copy\", \"kind\": \"%s\", \"bytes\": %zu}\n", kinds[kind < 0 || kind > 4 ? 4 : kind], size);
    fclose(log);
}

hipError_t hipMemcpy(void* to, const void* from, size_t size, int kind) {
    MAY_FAIL();
    unsafe(__func__);
    log_copy(size, kind);
    memmove(to, from, size);
    return 0;
}
hipError_t hipMemcpyAsync(void* to, const void* from, size_t size, int kind, void* stream) {
    (void)stream;
    return hipMemcpy(to, from, size, kind);
}
hipError_t hipMemcpyWithStream(void* to, const void* from, size_t size, int kind, void* stream) {
    (void)stream;
    return hipMemcpy(to, from, size, kind);
}
hipError_t hipDeviceCanAccessPeer(int* reaches, int device, int peer) {
    *reaches = device != peer && *setting("SDORT_STUB_PEERS", "1") != '0';
    return 0;
}
static _Thread_local hipError_t last = 0;
hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)peer, (void)flags;
    return last = *setting("SDORT_STUB_PEERS", "1") == '2' ? 704 : 0;
}
hipError_t hipMemcpyPeerAsync(void* to, int there, const void* from, int here, size_t size, void* stream) {
    MAY_FAIL();
    unsafe(__func__);
    FILE* log = open_log("SDORT_STUB_COPIES");
    if (log) {
        fprintf(log, "{\"call\": \"peer\", \"from\": %d, \"to\": %d, \"stream\": %d, \"bytes\": %zu}\n", here, there,
                device_of(stream), size);
        fclose(log);
    }
    memmove(to, from, size);
    return 0;
}
hipError_t hipMemcpy2DAsync(char* to, size_t to_pitch, const char* from, size_t from_pitch, size_t width, size_t height) {
    for (size_t row = 0; row < height; ++row) memmove(to + row * to_pitch, from + row * from_pitch, width);
    return 0;
}
hipError_t hipMemset(void* memory, int value, size_t size) { memset(memory, value, size); return 0; }
hipError_t hipMemsetAsync(void* memory, int value, size_t size, void* stream) {
    (void)stream;
    return hipMemset(memory, value, size);
}

hipError_t hipStreamCreateWithFlags(void** stream, unsigned flags) { (void)flags; *stream = streams[current]; return 0; }
hipError_t hipEventCreate(void** event) { *event = something; return 0; }
hipError_t hipEventCreateWithFlags(void** event, unsigned flags) { (void)flags; *event = something; return 0; }
hipError_t hipEventElapsedTime(float* milliseconds) { *milliseconds = 0.01f; return 0; }
hipError_t hipStreamSynchronize(void* stream) { (void)stream; MAY_FAIL(); return 0; }
hipError_t hipDeviceSynchronize(void) { MAY_FAIL(); return 0; }
hipError_t hipEventSynchronize(void* event) { (void)event; MAY_FAIL(); return 0; }
// Kernels of ONNX Runtime's, which asks afterwards whether the launch failed.
typedef struct { unsigned x, y, z; } dim3;
static _Thread_local void* asked = NULL;  // the stream between <<< and >>>
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
    (void)grid, (void)block, (void)shared;
    asked = stream;
    return 0;
}
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void** stream) {
    (void)grid, (void)block, (void)shared;
    *stream = asked;
    return 0;
}
hipError_t hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, void* stream) {
    (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared;
    launched(__func__, stream);
    return last = failure(__func__);
}
hipError_t hipGetLastError(void) {
    const hipError_t code = last;
    last = 0;
    return code;
}
hipError_t hipPeekAtLastError(void) { return last; }
hipError_t hipGetStreamDeviceId(void* stream) { return device_of(stream); }

// Graphs: what is recorded runs at once, a replay does nothing but leave a line among the copies.
static hipError_t log_graph(const char* call, const void* stream) {
    FILE* log = open_log("SDORT_STUB_COPIES");
    if (log) {
        fprintf(log, "{\"call\": \"%s\", \"device\": %d}\n", call, device_of(stream));
        fclose(log);
    }
    return 0;
}
hipError_t hipStreamIsCapturing(void* stream, int* status) {
    (void)stream;
    *status = atoi(setting("SDORT_STUB_CAPTURING", "0"));
    return 0;
}
hipError_t hipStreamEndCapture(void* stream, void** graph) {
    --mine;
    __atomic_sub_fetch(&capturing, 1, __ATOMIC_SEQ_CST);
    *graph = something;
    return log_graph("record", stream);
}
hipError_t hipGraphInstantiate(void** executable) { *executable = something; return 0; }
hipError_t hipGraphLaunch(void* executable, void* stream) {
    (void)executable;
    launched(__func__, stream);
    return log_graph("replay", stream);
}

// The names and texts of HIP's documentation, of those errors that ONNX Runtime's messages are told apart by.
static const struct { hipError_t code; const char *name, *text; } errors[] = {
    {0, "hipSuccess", "no error"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
};
const char* hipGetErrorString(hipError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i)
        if (errors[i].code == error) return errors[i].text;
    return "an error of the stub";
}
const char* hipGetErrorName(hipError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i)
        if (errors[i].code == error) return errors[i].name;
    return "hipErrorStub";
}
void** __hipRegisterFatBinary(const void* data) { (void)data; static void* handle = something; return &handle; }

// What the architecture's number in an AMD code object's e_flags means (LLVM's AMDGPU usage guide).
static const char* architecture_of(const unsigned char* image) {
    static const struct { unsigned number; const char* name; } known[] = {
        {0x03f, "gfx90a"}, {0x04c, "gfx942"}, {0x04f, "gfx950"}, {0x041, "gfx1100"}, {0x046, "gfx1101"},
        {0x047, "gfx1102"}, {0x04a, "gfx1151"}, {0x048, "gfx1200"}, {0x04e, "gfx1201"},
    };
    const unsigned flags = *(const uint32_t*)(image + 48) & 0xff;
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
        if (known[i].number == flags) return known[i].name;
    return "unknown";
}

hipError_t hipModuleLoadData(void** module, const unsigned char* image) {
    MAY_FAIL();
    FILE* log = open_log("SDORT_STUB_LOG");
    if (log) {
        fprintf(log, "{\"call\": \"hipModuleLoadData\", \"architecture\": \"%s\"}\n", architecture_of(image));
        fclose(log);
    }
    *module = something;
    return 0;
}

hipError_t hipModuleGetFunction(void** function, void* module, const char* name) {
    (void)module;
    MAY_FAIL();
    *function = strdup(name);  // the handle is the name
    return 0;
}

hipError_t hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned lds, void* stream, void** params, void** extra) {
    MAY_FAIL();
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    if (params || !extra || extra[0] != (void*)1 || extra[2] != (void*)2 || extra[4] != (void*)3) return 1;
    const unsigned char* args = extra[1];
    const size_t size = *(const size_t*)extra[3];
    FILE* log = open_log("SDORT_STUB_LOG");
    if (log) {
        fprintf(log, "{\"call\": \"hipModuleLaunchKernel\", \"kernel\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], "
                "\"lds\": %u, \"stream\": %s, \"args\": \"", (const char*)function, grid_x, grid_y, grid_z, block_x, block_y,
                block_z, lds, stream ? "true" : "false");
        for (size_t i = 0; i < size; ++i) fprintf(log, "%02x", args[i]);
        fprintf(log, "\"}\n");
        fclose(log);
    }
    const char* bodies = setting("SDORT_STUB_BODIES", "");
    if (!*bodies) return 0;
    void* library = dlopen(bodies, RTLD_NOW);
    int (*launch)(const char*, const unsigned*, const unsigned*, unsigned, const void*, size_t) =
        library ? dlsym(library, "sdort_body_launch") : NULL;
    if (!launch || launch(function, grid, block, lds, args, size)) {
        const char* (*error)(void) = library ? dlsym(library, "sdort_body_error") : NULL;
        fprintf(stderr, "stub: %s: %s\n", (const char*)function, error ? error() : dlerror());
        return 719;  // hipErrorLaunchFailure
    }
    return 0;
}
