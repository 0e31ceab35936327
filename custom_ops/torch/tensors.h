// What a boxed operator of torch gets: its arguments, and of a tensor what a kernel has to know.
#pragma once

#include <string>
#include <utility>

#include "driver/launch.h"
#include "stable_abi.h"

namespace sdort::torch {

// There is no form of the kernels for these tensors; the text says why and what would help.
struct Unserved {
    std::string reason;
};

// A vector of weights lies or is typed as the kernels do not read it: a converted copy can be given instead.
struct NeedsCopy {};

// Owns the handle. Without one it is an argument that was left out.
class Tensor {
public:
    Tensor() = default;
    explicit Tensor(Handle handle) : handle_(handle) {
        const StableAbi& abi = stable_abi();
        abi.dim(handle, &dim_), abi.sizes(handle, &sizes_), abi.strides(handle, &strides_), abi.numel(handle, &numel_);
        abi.dtype(handle, &dtype_), abi.data(handle, &data_);
    }
    Tensor(Tensor&& other) noexcept { *this = std::move(other); }
    Tensor& operator=(Tensor&& other) noexcept {
        std::swap(handle_, other.handle_);
        dim_ = other.dim_, numel_ = other.numel_, dtype_ = other.dtype_;
        sizes_ = other.sizes_, strides_ = other.strides_, data_ = other.data_;
        return *this;
    }
    ~Tensor() {
        if (handle_) stable_abi().release(handle_);
    }

    explicit operator bool() const { return handle_ != nullptr; }
    int64_t dim() const { return dim_; }
    int64_t size(int64_t d) const { return sizes_[d]; }
    int64_t stride(int64_t d) const { return strides_[d]; }
    int64_t numel() const { return numel_; }
    int32_t dtype() const { return dtype_; }

    int32_t device_type() const {
        int32_t type = -1;
        stable_abi().device_type(handle_, &type);
        return type;
    }
    bool on_cpu() const { return device_type() == stable_abi().cpu(); }
    // 0 on the CPU.
    int32_t device() const {
        int32_t index = 0;
        stable_abi().device_index(handle_, &index);
        return index < 0 ? 0 : index;
    }
    void clear() const { stable_abi().zero(handle_); }

    // Dense in the order of its dimensions; `channels_last`: with the second one last.
    bool is_dense(bool channels_last = false) const {
        int64_t expected = 1;
        const auto fits = [&](int64_t d) {
            const bool fitting = sizes_[d] == 1 || strides_[d] == expected;
            expected *= sizes_[d];
            return fitting;
        };
        if (numel_ == 0) return true;
        if (channels_last && !fits(1)) return false;
        for (int64_t d = dim_; d-- > 0;)
            if (!(channels_last && d == 1) && !fits(d)) return false;
        return true;
    }
    bool is_aligned() const { return reinterpret_cast<uintptr_t>(data_) % kAlignment == 0; }

    // The address, as kernels read 16 bytes at once.
    void* data() const {
        if (!is_aligned()) throw Unserved{"a tensor does not lie at a multiple of 16 bytes (clone() moves it)"};
        return data_;
    }

private:
    static constexpr uintptr_t kAlignment = 16;
    Handle handle_ = nullptr;
    int64_t dim_ = 0, numel_ = 0;
    int64_t *sizes_ = nullptr, *strides_ = nullptr;
    int32_t dtype_ = -1;
    void* data_ = nullptr;
};

// The arguments in their order; every tensor has to be taken, as its taker releases it. Nothing here throws.
class Arguments {
public:
    explicit Arguments(const Value* stack) : next_(stack) {}

    Tensor tensor() { return Tensor(reinterpret_cast<Handle>(*next_++)); }
    Tensor optional_tensor() {
        Value value = 0;
        return take(value) ? Tensor(reinterpret_cast<Handle>(value)) : Tensor();
    }
    int64_t integer() { return static_cast<int64_t>(*next_++); }
    bool boolean() { return as<bool>(*next_++); }
    double real() { return as<double>(*next_++); }
    double optional_real(double otherwise) {
        Value value = 0;
        return take(value) ? as<double>(value) : otherwise;
    }

private:
    template <class T>
    static T as(const Value& value) {
        T result;
        __builtin_memcpy(&result, &value, sizeof result);
        return result;
    }
    // What is on the heap was made by libtorch's `new` and is ours.
    bool take(Value& value) {
        auto* const on_heap = reinterpret_cast<Value*>(*next_++);
        if (!on_heap) return false;
        value = *on_heap;
        delete on_heap;
        return true;
    }
    const Value* next_;
};

}  // namespace sdort::torch
