// wgmma.h's instructions.
#pragma once

namespace sdort::wgmma {

SDORT_INLINE uint32_t address_of(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

SDORT_INLINE void arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
SDORT_INLINE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Groups>
SDORT_INLINE void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
}
SDORT_INLINE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

SDORT_INLINE Fragment load(uint32_t tile, int row, int unit) {
    const int lane = lane_index();
    Fragment f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.words[0]), "=r"(f.words[1]), "=r"(f.words[2]), "=r"(f.words[3])
                 : "r"(tile + place(row + lane % 16, unit + lane / 16))
                 : "memory");
    return f;
}

// The sums as an instruction's operands, and as its text.
#define SDORT_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SDORT_SUMS_20 SDORT_SUMS_4(0), SDORT_SUMS_4(4), SDORT_SUMS_4(8), SDORT_SUMS_4(12), SDORT_SUMS_4(16)
#define SDORT_SUMS_16(i) SDORT_SUMS_4(i), SDORT_SUMS_4(i + 4), SDORT_SUMS_4(i + 8), SDORT_SUMS_4(i + 12)
#define SDORT_SUMS_32 SDORT_SUMS_16(0), SDORT_SUMS_16(16)
#define SDORT_SUMS_40 SDORT_SUMS_32, SDORT_SUMS_4(32), SDORT_SUMS_4(36)
#define SDORT_SUMS_64 SDORT_SUMS_32, SDORT_SUMS_16(32), SDORT_SUMS_16(48)
#define SDORT_SUMS_128 SDORT_SUMS_64, SDORT_SUMS_16(64), SDORT_SUMS_16(80), SDORT_SUMS_16(96), SDORT_SUMS_16(112)
#define SDORT_TEXT_20 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19"
#define SDORT_TEXT_32 SDORT_TEXT_20 ", %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SDORT_TEXT_40 SDORT_TEXT_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SDORT_TEXT_64 SDORT_TEXT_40 \
    ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55" \
    ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SDORT_TEXT_128 SDORT_TEXT_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// `numbers` and `condition` are those of the operands behind the `count` sums; the flags negate neither, and say how a and b lie.
#define SDORT_LEFT_SHARED "l"(a)
#define SDORT_LEFT_FRAGMENT "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3])
#define SDORT_MULTIPLY(columns, count, Left, left, numbers, condition, flags)                                        \
    SDORT_INLINE void multiply(float (&d)[count], Left a, uint64_t b, bool add) {                                   \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " condition ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
                     "k16.f32.f16.f16 {" SDORT_TEXT_##count "}, " numbers ", p, " flags ";\n}"                       \
                     : SDORT_SUMS_##count                                                                          \
                     : SDORT_LEFT_##left, "l"(b), "r"(static_cast<int>(add)));                                      \
    }
SDORT_MULTIPLY(64, 32, uint64_t, SHARED, "%32, %33", "%34", "1, 1, 0, 0")
SDORT_MULTIPLY(256, 128, uint64_t, SHARED, "%128, %129", "%130", "1, 1, 0, 0")
SDORT_MULTIPLY(40, 20, const Fragment&, FRAGMENT, "{%20, %21, %22, %23}, %24", "%25", "1, 1, 1")
SDORT_MULTIPLY(64, 32, const Fragment&, FRAGMENT, "{%32, %33, %34, %35}, %36", "%37", "1, 1, 1")
SDORT_MULTIPLY(80, 40, const Fragment&, FRAGMENT, "{%40, %41, %42, %43}, %44", "%45", "1, 1, 1")
SDORT_MULTIPLY(128, 64, const Fragment&, FRAGMENT, "{%64, %65, %66, %67}, %68", "%69", "1, 1, 1")

}  // namespace sdort::wgmma
