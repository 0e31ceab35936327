// The functions of PyTorch's stable C interface that torch.ops.sdort needs, found in the libtorch that the process has loaded.
//
// This library is built without torch: one file serves every release from 2.10 on. Names, signatures and who owns what are
// those of torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h, whose "ABI" they keep from then on.
#pragma once

#include <stdint.h>

namespace sdort::torch {

// An argument or a result: an integer, a double or a boolean in its first bytes; a tensor's handle; a pointer to one of these
// on the heap, or null, where the schema has a question mark.
using Value = uint64_t;
using Handle = struct AtenTensorOpaque*;
using Library = struct TorchLibraryOpaque*;
using Guard = struct DeviceGuardOpaque*;

struct StableAbi {
    int32_t (*dim)(Handle, int64_t*);
    int32_t (*sizes)(Handle, int64_t**);    // borrowed
    int32_t (*strides)(Handle, int64_t**);  // borrowed
    int32_t (*numel)(Handle, int64_t*);
    int32_t (*dtype)(Handle, int32_t*);
    int32_t (*device_type)(Handle, int32_t*);
    int32_t (*device_index)(Handle, int32_t*);
    int32_t (*data)(Handle, void**);
    int32_t (*empty)(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
                     int32_t device_index, Handle*);
    int32_t (*zero)(Handle);
    int32_t (*release)(Handle);
    int32_t (*float32)();
    int32_t (*float16)();
    int32_t (*uint8)();
    int32_t (*cpu)();
    int32_t (*current_device)(int32_t*);
    int32_t (*make_guard)(int32_t device_index, Guard*);
    int32_t (*release_guard)(Guard);
    int32_t (*implement)(const char* name_space, const char* key, const char* file, uint32_t line, Library*);
    int32_t (*add)(Library, const char* operator_name, void (*)(Value* stack, uint64_t inputs, uint64_t outputs));
    int32_t (*parallel_for)(int64_t begin, int64_t end, int64_t grain, void (*)(int64_t begin, int64_t end, void*), void*);
    int32_t (*current_stream)(int32_t device_index, void** stream);  // null where torch has no GPUs
};

// Throws Error where this torch does not have them.
const StableAbi& stable_abi();

}  // namespace sdort::torch
