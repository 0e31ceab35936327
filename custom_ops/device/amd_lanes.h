// Everything by which lanes of an AMD wave read what other lanes have; no other file calls such a builtin.
//
// Every lane takes part in an exchange, so a compiler must not move one, with what it passes, to where fewer lanes are on.
// That no pass moves an intrinsic is LLVM's rule ("convergent"), but after instruction selection each instruction has to be
// marked anew, and LLVM 19 forgot v_permlane* and v_wmma_*: its MachineSink carries them into the branch that uses them
// (llvm/llvm-project pull requests 142962, 182162). An empty asm, which HIP counts as convergent, takes their result where
// they stand (`pinned`). It is no instruction and, not being volatile, no barrier to scheduling. DPP, ds_*, v_readfirstlane and
// v_mfma_* are marked, and DPP that is pinned could not become a part of the addition after it (v_add_f32_dpp). A vote is a
// comparison, which does not move if its result is used as a number. tests/support/exec_gate.py reads all of that from the objects.
#pragma once

namespace sdort {

template <class T>
SDORT_INLINE T pinned(T value) {
    asm("" : "+v"(value));
    return value;
}

SDORT_INLINE float shuffle(float value, int lane) {
    return real(__builtin_amdgcn_ds_bpermute(lane << 2, bits(value)));
}

// Within a row of 16 lanes DPP costs nothing beside the addition; further away LDS hardware permutes.
template <int Mask>
SDORT_INLINE float shuffle_xor(float value) {
#if defined(__GFX9__)
    if constexpr (Mask < 4) {
        constexpr int quad = (0 ^ Mask) | (1 ^ Mask) << 2 | (2 ^ Mask) << 4 | (3 ^ Mask) << 6;
        return real(__builtin_amdgcn_update_dpp(0, bits(value), quad, 0xf, 0xf, true));
    } else if constexpr (Mask < 32) {
        return real(__builtin_amdgcn_ds_swizzle(bits(value), Mask << 10 | 0x1f));
    } else {
        return shuffle(value, lane_index() ^ Mask);
    }
#else
    if constexpr (Mask < 16) {
        return real(__builtin_amdgcn_update_dpp(0, bits(value), 0x160 + Mask, 0xf, 0xf, true));  // row_xmask
    } else {
        return real(__builtin_amdgcn_ds_swizzle(bits(value), Mask << 10 | 0x1f));
    }
#endif
}

// Of a value that all lanes have: one for the whole wave, so that branches on it are jumps, with every lane on.
SDORT_INLINE int same_in_wave(int value) { return __builtin_amdgcn_readfirstlane(value); }

SDORT_INLINE bool wave_any(bool value) { return __builtin_amdgcn_ballot_w64(value) != 0; }

#if defined(__GFX11__) || defined(__GFX12__)
// v_permlanex16: lane l gets what lane l ^ 16 has.
SDORT_INLINE uint32_t other_half(uint32_t word) {
    return pinned(__builtin_amdgcn_permlanex16(word, word, 0x76543210, 0xfedcba98, false, false));
}
#endif

// A matrix instruction: two operands of 16-bit floats, sums in and out. The types that a machine has for them are only here.
template <class Operand, class Sums>
SDORT_INLINE Sums matrix_product(const Operand& a, const Operand& b, const Sums& sums) {
    typedef half Halves __attribute__((ext_vector_type(sizeof(Operand) / 2)));
    typedef float Floats __attribute__((ext_vector_type(sizeof(Sums) / 4)));
    const Halves left = __builtin_bit_cast(Halves, a), right = __builtin_bit_cast(Halves, b);
    const Floats before = __builtin_bit_cast(Floats, sums);
#if defined(SDORT_MATRIX_MFMA)
    const Floats after = __builtin_amdgcn_mfma_f32_16x16x16f16(left, right, before, 0, 0, 0);
#elif defined(SDORT_MATRIX_WMMA_GFX11)
    const Floats after = pinned(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32(left, right, before));
#elif defined(SDORT_MATRIX_WMMA_GFX12)
    const Floats after = pinned(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(left, right, before));
#endif
    return __builtin_bit_cast(Sums, after);
}

}  // namespace sdort
