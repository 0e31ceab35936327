// A driver's virtual memory management on the host's memory: two devices of 64 MiB, in pieces of 2 MiB. CUDA's names, or HIP's.
#define _GNU_SOURCE
#include <sys/mman.h>
#include <stddef.h>

#ifdef HIP
#define CALL(name) hip##name
#else
#define CALL(name) cu##name
#endif

enum { PIECE = 2 << 20, DEVICE_BYTES = 64 << 20, NO_DEVICE = 101, NO_MEMORY = 2, WRONG = 1 };

struct location { int type, id; };
struct properties { int type, handles; struct location location; void* windows; unsigned char flags[8]; };
struct access { struct location location; int flags; };

int mapped, handles, ranges, modes, device = -1, refuse_access;
static int mode, created;

#ifdef HIP
int hipDeviceTotalMem(size_t* bytes, int which)
#else
int cuDeviceTotalMem_v2(size_t* bytes, int which)
#endif
{ return which > 1 ? NO_DEVICE : (*bytes = DEVICE_BYTES, 0); }

int CALL(MemGetAllocationGranularity)(size_t* bytes, const struct properties* of, int option) {
    return of->type != 1 || of->location.type != 1 || option != 0 ? WRONG : (*bytes = PIECE, 0);
}
int CALL(MemAddressReserve)(void** address, size_t bytes, size_t alignment, void* wanted, unsigned long long flags) {
    *address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ranges += 1;
    return *address == MAP_FAILED || alignment || wanted || flags ? WRONG : 0;
}
int CALL(MemAddressFree)(void* address, size_t bytes) { return ranges -= 1, munmap(address, bytes) ? WRONG : 0; }
int CALL(MemCreate)(void** handle, size_t bytes, const struct properties* of, unsigned long long flags) {
    if (bytes % PIECE || flags || of->type != 1 || of->handles || mode != 2) return WRONG;
    if (created + bytes > DEVICE_BYTES) return NO_MEMORY;
    device = of->location.id;
    handles += 1;
    created += bytes;
    *handle = (void*)bytes;
    return 0;
}
int CALL(MemRelease)(void* handle) { return handles -= 1, created -= (int)(size_t)handle, 0; }
int CALL(MemMap)(void* address, size_t bytes, size_t offset, void* handle, unsigned long long flags) {
    return (size_t)handle != bytes || offset || flags || (size_t)address % 4096 ? WRONG : (mapped += bytes, 0);
}
int CALL(MemUnmap)(void* address, size_t bytes) {
    return mapped -= bytes, mprotect(address, bytes, PROT_NONE) ? WRONG : 0;
}
int CALL(MemSetAccess)(void* address, size_t bytes, const struct access* access, size_t count) {
    if (refuse_access || count != 1 || access->flags != 3 || access->location.id != device) return WRONG;
    return mprotect(address, bytes, PROT_READ | PROT_WRITE) ? WRONG : 0;
}
int CALL(ThreadExchangeStreamCaptureMode)(int* wanted) {
    const int before = mode;
    mode = *wanted;
    *wanted = before;
    modes += 1;
    return 0;
}
