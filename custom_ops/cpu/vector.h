// What makes plain loops fast on whatever CPU runs them: one binary, a clone of the function per instruction set.
#pragma once

// On a function with loops over float and _Float16: x86-64-v4 and v3 have conversions and fused multiply-adds in hardware.
// Windows has no clones: its programs are not linked by a loader that chooses. GCC there keeps 32-byte vectors on a stack that is
// aligned to 16 (its bug 54412), so that a build for newer CPUs would not do either.
#if defined(__x86_64__) && !defined(_WIN32)
#define SDORT_CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SDORT_CPU_CLONES
#endif
