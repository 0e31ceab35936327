// OpenVINO's plugin on the processor of any vendor: it takes Intel's alone, and asks ONNX Runtime whose one is.
//
// A plugin that hands on what ONNX Runtime gives it, but for the function that names a device's vendor.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// The function's place in ONNX Runtime's table, and at least as many entries as the plugin reads.
enum { HARDWARE_DEVICE_VENDOR_ID = 308, ENTRIES = 600, INTEL = 0x8086 };

struct base {
    const void *const *(*get_api)(uint32_t version);
    const char *(*version)(void);
};

static const struct base *given;

static uint32_t vendor_id(const void *device) {
    (void)device;
    return INTEL;
}

static const void *const *get_api(uint32_t version) {
    static const void *table[ENTRIES];
    const void *const *own = given->get_api(version);
    if (!own) return NULL;
    memcpy(table, own, sizeof table);
    table[HARDWARE_DEVICE_VENDOR_ID] = (const void *)vendor_id;
    return table;
}

static void *function(const char *name) {
    static void *library;
    if (!library) library = dlopen(PLUGIN, RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

void *CreateEpFactories(const char *name, const struct base *base, const void *logger, void **factories, size_t most,
                        size_t *count) {
    static struct base changed;
    void *(*create)(const char *, const struct base *, const void *, void **, size_t, size_t *);
    given = base;
    changed = (struct base){get_api, base->version};
    *(void **)&create = function("CreateEpFactories");
    return create(name, &changed, logger, factories, most, count);
}

void *ReleaseEpFactory(void *factory) {
    void *(*release)(void *);
    *(void **)&release = function("ReleaseEpFactory");
    return release(factory);
}
