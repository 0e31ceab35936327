// Copies of 16 bytes from global to shared memory that pass no register, where the machine has them.
//
//   kAsyncCopies                    whether the copies go on while the thread computes
//   copy_async(to, from)            queues one
//   wait_for_copies()               until all that this thread has queued are there; others see them after a barrier
//   commit_copies()                 makes what was queued since the last time a group
//   wait_for_copies<Groups>()       until all groups but the last `Groups` are there
//   keep_order()                    instructions are not scheduled across it, so that loads from shared memory do not all
//                                   come first and fill the registers
//   not_before(number)              the same number, of which nothing is computed before a branch that this stands in; all
//                                   lanes have the same
//   forget_memory()                 the compiler reads again what it would keep in registers since an earlier iteration
#pragma once

#include "device.h"

namespace sdort {

#if defined(__CUDACC__)

constexpr bool kAsyncCopies = true;

SDORT_INLINE void copy_async(Quad* to, const Quad* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
}
SDORT_INLINE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
SDORT_INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Groups>
SDORT_INLINE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

#else

#if defined(SDORT_MATRIX_MMA_SYNC)
constexpr bool kAsyncCopies = true;
#else
constexpr bool kAsyncCopies = false;
#endif

SDORT_INLINE void copy_async(Quad* to, const Quad* from) { *to = *from; }
SDORT_INLINE void wait_for_copies() {}
SDORT_INLINE void commit_copies() {}
template <int Groups>
SDORT_INLINE void wait_for_copies() {}

#endif

#if defined(__AMDGCN__)
SDORT_INLINE void keep_order() { __builtin_amdgcn_sched_barrier(0); }
SDORT_INLINE int not_before(int number) {
    asm("" : "+s"(number));
    return number;
}
#else
SDORT_INLINE void keep_order() {}
SDORT_INLINE int not_before(int number) { return number; }
#endif
SDORT_INLINE void forget_memory() { asm volatile("" ::: "memory"); }

}  // namespace sdort
