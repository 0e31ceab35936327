#include "shared_library.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace sdort {

#ifdef _WIN32
void* loaded_library(const char* name) { return GetModuleHandleA(name); }
// Of the system's folder alone, where drivers are: not of the folder that somebody works in.
void* load_library(const char* name) { return LoadLibraryExA(name, nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32); }
void* symbol_of(void* library, const char* name) {
    return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}
#else
void* loaded_library(const char* name) { return dlopen(name, RTLD_NOW | RTLD_NOLOAD); }
void* load_library(const char* name) { return dlopen(name, RTLD_NOW); }
void* symbol_of(void* library, const char* name) { return dlsym(library, name); }
#endif

}  // namespace sdort
