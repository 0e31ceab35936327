#include "reserved.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "driver/error.h"
#include "driver/shared_library.h"

namespace sdort {
namespace {

class HostReserved : public Reserved {
public:
    HostReserved() {
        granularity_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        reserved_ = granularity_ * static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
        void* const range = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) throw Error("no range of " + std::to_string(reserved_) + " bytes of addresses is free");
        begin_ = static_cast<char*>(range);
    }
    ~HostReserved() override { munmap(begin_, reserved_); }

    bool extend(size_t bytes) override {
        if (bytes > reserved_ - used_ || mprotect(begin_ + used_, bytes, PROT_READ | PROT_WRITE) != 0) return false;
        used_ += bytes;
        return true;
    }
};

// CUmemLocation and hipMemLocation, CUmemAllocationProp and hipMemAllocationProp, CUmemAccessDesc and hipMemAccessDesc are
// laid out alike, and their constants are numbered alike.
struct Location {
    int type = 1;  // a device
    int id = 0;
};
struct Properties {
    int type = 1;  // pinned: memory that stays where it is
    int handles = 0;
    Location location;
    void* windows = nullptr;
    unsigned char flags[8] = {};
};
struct Access {
    Location location;
    int flags = 3;  // to read and to write
};

// The functions of CUDA's driver and of HIP's runtime, which have the same signatures.
struct VirtualMemory {
    int (*total)(size_t*, int device);
    int (*granularity)(size_t*, const Properties*, int option);
    int (*reserve)(void** address, size_t bytes, size_t alignment, void* wanted, unsigned long long flags);
    int (*release_range)(void* address, size_t bytes);
    int (*create)(void** handle, size_t bytes, const Properties*, unsigned long long flags);
    int (*release)(void* handle);
    int (*map)(void* address, size_t bytes, size_t offset, void* handle, unsigned long long flags);
    int (*unmap)(void* address, size_t bytes);
    int (*allow)(void* address, size_t bytes, const Access*, size_t count);
    int (*exchange_mode)(int* mode);
};

// While a stream is captured as a graph, the drivers refuse to give memory to the thread that captures, unless it says that it
// knows what it does: the pool's memory stays as long as the graph.
class DuringCapture {
public:
    explicit DuringCapture(const VirtualMemory& calls) : calls_(calls) { calls_.exchange_mode(&mode_); }
    ~DuringCapture() { calls_.exchange_mode(&mode_); }
    DuringCapture(const DuringCapture&) = delete;

private:
    const VirtualMemory& calls_;
    int mode_ = 2;  // relaxed
};

VirtualMemory virtual_memory(Vendor vendor) {
    void* const library = driver_library(vendor);
    if (!library) throw Error(std::string("no ") + name_of(vendor) + " driver can be loaded here");
    const bool hip = vendor == Vendor::kHip;
    const std::string prefix = hip ? "hip" : "cu";
    VirtualMemory found{};
    const auto find = [&](auto& function, const std::string& name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol_of(library, name.c_str()));
        if (!function) throw Error("the driver has no " + name);
    };
    find(found.total, hip ? "hipDeviceTotalMem" : "cuDeviceTotalMem_v2");
    find(found.granularity, prefix + "MemGetAllocationGranularity");
    find(found.reserve, prefix + "MemAddressReserve");
    find(found.release_range, prefix + "MemAddressFree");
    find(found.create, prefix + "MemCreate");
    find(found.release, prefix + "MemRelease");
    find(found.map, prefix + "MemMap");
    find(found.unmap, prefix + "MemUnmap");
    find(found.allow, prefix + "MemSetAccess");
    find(found.exchange_mode, prefix + "ThreadExchangeStreamCaptureMode");
    return found;
}

class DeviceReserved : public Reserved {
public:
    DeviceReserved(Vendor vendor, int device) : calls_(virtual_memory(vendor)) {
        properties_.location.id = access_.location.id = device;
        size_t total = 0;
        check(calls_.total(&total, device), "asking for the memory of the device");
        check(calls_.granularity(&granularity_, &properties_, 0), "asking for the granularity of virtual memory");
        reserved_ = rounded(total);
        void* range = nullptr;
        check(calls_.reserve(&range, reserved_, 0, nullptr, 0), "reserving addresses of the device");
        begin_ = static_cast<char*>(range);
    }
    ~DeviceReserved() override {
        while (!pieces_.empty()) drop_last();
        calls_.release_range(begin_, reserved_);
    }

    bool extend(size_t bytes) override {
        if (bytes > reserved_ - used_) return false;
        const DuringCapture guard(calls_);
        void* handle = nullptr;
        if (calls_.create(&handle, bytes, &properties_, 0) != 0) return false;
        char* const place = begin_ + used_;
        if (calls_.map(place, bytes, 0, handle, 0) != 0) return calls_.release(handle), false;
        pieces_.push_back({handle, bytes});
        used_ += bytes;
        if (calls_.allow(place, bytes, &access_, 1) == 0) return true;
        drop_last();
        return false;
    }

private:
    struct Piece {
        void* handle;
        size_t bytes;
    };

    void drop_last() {
        const auto [handle, bytes] = pieces_.back();
        pieces_.pop_back();
        used_ -= bytes;
        calls_.unmap(begin_ + used_, bytes);
        calls_.release(handle);
    }
    size_t rounded(size_t bytes) const { return (bytes + granularity_ - 1) / granularity_ * granularity_; }
    static void check(int code, const std::string& what) {
        if (code != 0) throw Error(what + " failed with code " + std::to_string(code));
    }

    VirtualMemory calls_;
    Properties properties_;
    Access access_;
    std::vector<Piece> pieces_;
};

}  // namespace

std::unique_ptr<Reserved> Reserved::make(Place place, int device) {
    if (place == kOnCpu) return std::make_unique<HostReserved>();
    return std::make_unique<DeviceReserved>(place == kOnHip ? Vendor::kHip : Vendor::kCuda, device);
}

}  // namespace sdort
