// The bytes that a process has of the C library's allocator at once, counted exactly: loaded before all others (LD_PRELOAD).
// Blocks below 1 KiB do not count: they are the interpreter's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

static atomic_long taken, most;

extern void* __libc_malloc(size_t);
extern void* __libc_realloc(void*, size_t);
extern void __libc_free(void*);

static long counted(void* block) {
    const long bytes = block ? (long)malloc_usable_size(block) : 0;
    return bytes < 1024 ? 0 : bytes;
}

static void* add(void* block) {
    const long now = atomic_fetch_add(&taken, counted(block)) + counted(block);
    long highest = atomic_load(&most);
    while (now > highest && !atomic_compare_exchange_weak(&most, &highest, now)) {
    }
    return block;
}

static void* remove_block(void* block) {
    atomic_fetch_sub(&taken, counted(block));
    return block;
}

int posix_memalign(void** block, size_t alignment, size_t bytes) {
    int (*next)(void**, size_t, size_t) = (int (*)(void**, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    const int failed = next(block, alignment, bytes);
    if (!failed) add(*block);
    return failed;
}

void* aligned_alloc(size_t alignment, size_t bytes) {
    void* (*next)(size_t, size_t) = (void* (*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    return add(next(alignment, bytes));
}

void* malloc(size_t bytes) { return add(__libc_malloc(bytes)); }

void* realloc(void* block, size_t bytes) { return add(__libc_realloc(remove_block(block), bytes)); }

void free(void* block) { __libc_free(remove_block(block)); }

// What is taken now, from where on the most is counted.
long allocations_start(void) {
    atomic_store(&most, atomic_load(&taken));
    return atomic_load(&taken);
}

long allocations_most(void) { return atomic_load(&most); }
