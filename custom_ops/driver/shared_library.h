// Shared libraries as the system has them: what this one exports, and others of the process.
#pragma once

#ifdef _WIN32
#define SDORT_EXPORT extern "C" __attribute__((dllexport))
#else
#define SDORT_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace sdort {

// A shared library that the process has loaded; null if it has not.
void* loaded_library(const char* name);

// A shared library by its name, loaded if need be; null where there is none.
void* load_library(const char* name);

// A function or a variable of a library; null where it has none of that name.
void* symbol_of(void* library, const char* name);

}  // namespace sdort
