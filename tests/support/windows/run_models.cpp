// Runs models in Windows' ONNX Runtime with sdort's operators: run_models.exe FOLDER, where onnxruntime.dll, sdort_ops.dll
// and the models lie.
//
// Beside NAME.onnx lies NAME.in, and NAME.out is written: tensors one after another, each a length and a name, ONNX's number of
// its dtype, its rank and dimensions, and its bytes; all numbers are int64.
#include <windows.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#define _stdcall
#include <onnxruntime_c_api.h>

namespace fs = std::filesystem;

const OrtApi* ort = nullptr;

void check(OrtStatus* status) {
    if (status) throw std::runtime_error(ort->GetErrorMessage(status));
}

FARPROC symbol(HMODULE library, const char* name) {
    const FARPROC found = library ? GetProcAddress(library, name) : nullptr;
    if (!found) throw std::runtime_error(std::string("no ") + name);
    return found;
}

struct Tensor {
    std::string name;
    int64_t dtype = 0;
    std::vector<int64_t> dims;
    std::vector<char> bytes;
    size_t count() const {
        size_t total = 1;
        for (const int64_t dim : dims) total *= static_cast<size_t>(dim);
        return total;
    }
};

size_t size_of(int64_t dtype) { return dtype == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 ? 2 : dtype == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : 4; }

int64_t read_number(std::istream& file) {
    int64_t number = 0;
    file.read(reinterpret_cast<char*>(&number), sizeof number);
    return number;
}

void write_number(std::ostream& file, int64_t number) { file.write(reinterpret_cast<const char*>(&number), sizeof number); }

std::vector<Tensor> read_tensors(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<Tensor> tensors;
    while (file.peek() != EOF) {
        Tensor tensor;
        tensor.name.resize(static_cast<size_t>(read_number(file)));
        file.read(tensor.name.data(), static_cast<std::streamsize>(tensor.name.size()));
        tensor.dtype = read_number(file);
        tensor.dims.resize(static_cast<size_t>(read_number(file)));
        for (int64_t& dim : tensor.dims) dim = read_number(file);
        tensor.bytes.resize(tensor.count() * size_of(tensor.dtype));
        file.read(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()));
        tensors.push_back(std::move(tensor));
    }
    return tensors;
}

void write_tensor(std::ostream& file, const std::string& name, const OrtValue* value) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(ort->GetTensorTypeAndShape(value, &info));
    ONNXTensorElementDataType dtype;
    check(ort->GetTensorElementType(info, &dtype));
    Tensor tensor{name, dtype, {}, {}};
    size_t rank = 0;
    check(ort->GetDimensionsCount(info, &rank));
    tensor.dims.resize(rank);
    check(ort->GetDimensions(info, tensor.dims.data(), rank));
    ort->ReleaseTensorTypeAndShapeInfo(info);
    void* data = nullptr;
    check(ort->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    write_number(file, static_cast<int64_t>(name.size()));
    file.write(name.data(), static_cast<std::streamsize>(name.size()));
    write_number(file, tensor.dtype);
    write_number(file, static_cast<int64_t>(rank));
    for (const int64_t dim : tensor.dims) write_number(file, dim);
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(tensor.count() * size_of(dtype)));
}

void run(const fs::path& model, const OrtEnv* env, const OrtSessionOptions* options, const OrtMemoryInfo* memory) {
    OrtSession* session = nullptr;
    check(ort->CreateSession(env, model.c_str(), options, &session));
    std::vector<Tensor> feeds = read_tensors(fs::path(model).replace_extension(".in"));
    std::vector<const char*> names;
    std::vector<const OrtValue*> values;
    for (Tensor& feed : feeds) {
        OrtValue* value = nullptr;
        check(ort->CreateTensorWithDataAsOrtValue(memory, feed.bytes.data(), feed.bytes.size(), feed.dims.data(), feed.dims.size(),
                                                  static_cast<ONNXTensorElementDataType>(feed.dtype), &value));
        names.push_back(feed.name.c_str());
        values.push_back(value);
    }
    OrtAllocator* allocator = nullptr;
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    size_t count = 0;
    check(ort->SessionGetOutputCount(session, &count));
    std::vector<char*> outputs(count);
    for (size_t i = 0; i < count; ++i) check(ort->SessionGetOutputName(session, i, allocator, &outputs[i]));
    std::vector<OrtValue*> results(count, nullptr);
    check(ort->Run(session, nullptr, names.data(), values.data(), names.size(), outputs.data(), count, results.data()));
    std::ofstream file(fs::path(model).replace_extension(".out"), std::ios::binary);
    for (size_t i = 0; i < count; ++i) write_tensor(file, outputs[i], results[i]);
    ort->ReleaseSession(session);
}

int main(int, char** arguments) try {
    const fs::path folder = fs::absolute(arguments[1]);
    const auto load = [&](const char* name) { return LoadLibraryW((folder / name).c_str()); };
    const auto* base = reinterpret_cast<const OrtApiBase* (*)()>(symbol(load("onnxruntime.dll"), "OrtGetApiBase"))();
    ort = base->GetApi(ORT_API_VERSION);
    std::printf("%s\n", base->GetVersionString());
    std::printf("%s\n", reinterpret_cast<const char* (*)()>(symbol(load("sdort_ops.dll"), "sdort_ops_describe"))());
    OrtEnv* env = nullptr;
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "models", &env));
    OrtMemoryInfo* memory = nullptr;
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    OrtSessionOptions* options = nullptr;
    check(ort->CreateSessionOptions(&options));
    check(ort->SetIntraOpNumThreads(options, 1));
    check(ort->AddSessionConfigEntry(options, "optimization.disable_specified_optimizers", "ConvActivationFusion"));
    check(ort->RegisterCustomOpsLibrary_V2(options, (folder / "sdort_ops.dll").c_str()));
    std::set<fs::path> models;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".onnx") models.insert(entry.path());
    for (const fs::path& model : models) run(model, env, options, memory);
    std::printf("%zu models\n", models.size());
    std::fflush(stdout);
    // ONNX Runtime's threads may still run while Windows unloads what they run in.
    TerminateProcess(GetCurrentProcess(), 0);
} catch (const std::exception& error) {
    std::printf("error: %s\n", error.what());
    return 1;
}
