# Builds sdort_ops.dll on Linux, with Debian's g++-mingw-w64-x86-64-posix:
#
#   cmake -S custom_ops -B build --toolchain cmake/mingw.cmake -DSDORT_HIP=OFF -DSDORT_CUDA=OFF
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_ASM_COMPILER x86_64-w64-mingw32-gcc-posix)
