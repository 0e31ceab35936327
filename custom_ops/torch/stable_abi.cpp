#include "stable_abi.h"

#include <string>

#include "driver/error.h"
#include "driver/shared_library.h"

namespace sdort::torch {
namespace {

#ifdef _WIN32
constexpr const char *kOnCpu = "torch_cpu.dll", *kOnCuda = "torch_cuda.dll", *kOnHip = "torch_hip.dll";
#else
constexpr const char *kOnCpu = "libtorch_cpu.so", *kOnCuda = "libtorch_cuda.so", *kOnHip = "libtorch_hip.so";
#endif

StableAbi find_all() {
    void* const library = loaded_library(kOnCpu);
    if (!library) throw Error(std::string("no ") + kOnCpu + " is loaded in this process");
    StableAbi abi{};
    const auto find = [library](const char* name, auto& function) {
        void* const found = symbol_of(library, name);
        if (!found) throw Error(std::string("torch 2.10 or later is needed: this one has no ") + name);
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    find("aoti_torch_get_dim", abi.dim);
    find("aoti_torch_get_sizes", abi.sizes);
    find("aoti_torch_get_strides", abi.strides);
    find("aoti_torch_get_numel", abi.numel);
    find("aoti_torch_get_dtype", abi.dtype);
    find("aoti_torch_get_device_type", abi.device_type);
    find("aoti_torch_get_device_index", abi.device_index);
    find("aoti_torch_get_data_ptr", abi.data);
    find("aoti_torch_empty_strided", abi.empty);
    find("aoti_torch_zero_", abi.zero);
    find("aoti_torch_delete_tensor_object", abi.release);
    find("aoti_torch_dtype_float32", abi.float32);
    find("aoti_torch_dtype_float16", abi.float16);
    find("aoti_torch_dtype_uint8", abi.uint8);
    find("aoti_torch_device_type_cpu", abi.cpu);
    find("aoti_torch_get_current_device_index", abi.current_device);
    find("aoti_torch_create_device_guard", abi.make_guard);
    find("aoti_torch_delete_device_guard", abi.release_guard);
    find("aoti_torch_library_init_impl", abi.implement);
    find("aoti_torch_library_impl", abi.add);
    find("torch_parallel_for", abi.parallel_for);
    for (const char* const name : {kOnCuda, kOnHip})
        if (void* const gpus = loaded_library(name); gpus && !abi.current_stream)
            abi.current_stream =
                reinterpret_cast<decltype(abi.current_stream)>(symbol_of(gpus, "aoti_torch_get_current_cuda_stream"));
    return abi;
}

}  // namespace

const StableAbi& stable_abi() {
    static const StableAbi abi = find_all();
    return abi;
}

}  // namespace sdort::torch
