// The HIP or CUDA driver that ONNX Runtime has brought into this process, found at run time: the library links to
// neither, so one binary serves both, and machines with none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "code_objects.h"
#include "launch.h"

namespace sdort {

enum class Vendor { kHip, kCuda };

constexpr const char* name_of(Vendor vendor) { return vendor == Vendor::kHip ? "hip" : "cuda"; }

// One device with the code object that fits it loaded. Made once per device and kept until the process ends, since a
// captured graph may replay its kernels at any time.
class Gpu {
public:
    // Throws Error: no driver, no such device, or no code object for it (the text names those that are here).
    static Gpu& get(Vendor vendor, int device);

    const Device& device() const { return device_; }

    // Makes the device's primary context the calling thread's where it has none, or another device's: launches and loads need
    // it. HIP: the thread's device.
    void make_current();

    // Loads the function if it is new. Call it when a kernel is created: while a graph is captured nothing may load.
    void prepare(const std::string& kernel);
    // Whether the driver can launch it: a cooperative grid must be resident as a whole, on what this process has of the
    // device.
    bool fits(const Launch& launch);
    // Queues the launch on `stream`. Throws Error with the driver's text and the launch's numbers.
    void launch(void* stream, const Launch& launch);
    // Whether what is queued on `stream` becomes part of a graph.
    bool is_capturing(void* stream);
    // Microseconds that the launches take together: the median of several batches between two events.
    double time(void* stream, const std::vector<Launch>& launches);
    // Device memory, zeroed, that lives as long as the process. Throws Error if there is none left.
    void* zeroed(size_t bytes);

private:
    struct State;
    Gpu(Vendor vendor, int device);
    void* function_of(const Launch& launch);
    std::shared_ptr<State> state_;
    Device device_;
};

// The vendor's driver, which is loaded here if it was not; null without one.
void* driver_library(Vendor vendor);

// Architectures of the devices that the vendor's driver sees here; empty without a driver. Never throws.
std::vector<std::string> visible_architectures(Vendor vendor);

// The object to load on `architecture`, or null.
const CodeObject* find_code_object(Vendor vendor, const std::string& architecture);

// "gfx90a, gfx942, gfx1100", or "none".
std::string embedded_architectures(Vendor vendor);

}  // namespace sdort
