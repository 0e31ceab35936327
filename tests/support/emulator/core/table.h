// Every instruction by its name, without the encoding's suffix (_E32, _DPP16, V_DUAL_).
#pragma once

#include "alu.h"
#include "control.h"
#include "lanes.h"
#include "matrix.h"
#include "memory.h"

namespace emulator {

constexpr unsigned kOnCdna = 1 << kCdna, kOnRdna3 = 1 << kRdna3, kOnRdna4 = 1 << kRdna4, kOnRdna = kOnRdna3 | kOnRdna4,
                   kOnAll = kOnCdna | kOnRdna;

struct Entry {
    unsigned families;
    const char* name;
    Run run;
};

#define EMULATOR_OWN_VECTOR(name) {kOnAll, #name, vector_operation<own::name>}
#define EMULATOR_OWN_SCALAR(name) {kOnAll, #name, scalar_operation<own::name>}
// One access under its names on CDNA and on RDNA, to global and to flat addresses.
#define EMULATOR_LOAD(cdna, rdna, function, ...)                        \
    {kOnCdna, "GLOBAL_LOAD_" cdna, own::function<false, __VA_ARGS__>},  \
        {kOnCdna, "FLAT_LOAD_" cdna, own::function<true, __VA_ARGS__>}, \
        {kOnRdna, "GLOBAL_LOAD_" rdna, own::function<false, __VA_ARGS__>}, {kOnRdna, "FLAT_LOAD_" rdna, own::function<true, __VA_ARGS__>}
#define EMULATOR_STORE(cdna, rdna, ...)                                    \
    {kOnCdna, "GLOBAL_STORE_" cdna, own::store<false, __VA_ARGS__>},       \
        {kOnCdna, "FLAT_STORE_" cdna, own::store<true, __VA_ARGS__>},      \
        {kOnRdna, "GLOBAL_STORE_" rdna, own::store<false, __VA_ARGS__>}, {kOnRdna, "FLAT_STORE_" rdna, own::store<true, __VA_ARGS__>}
#define EMULATOR_ATOMIC(cdna, rdna, function, type)                             \
    {kOnCdna, "GLOBAL_ATOMIC_" cdna, own::function<type, false>},               \
        {kOnCdna, "FLAT_ATOMIC_" cdna, own::function<type, true>},              \
        {kOnRdna, "GLOBAL_ATOMIC_" rdna, own::function<type, false>}, {kOnRdna, "FLAT_ATOMIC_" rdna, own::function<type, true>}
#define EMULATOR_SHARED(cdna, rdna, ...) {kOnCdna, cdna, own::__VA_ARGS__}, {kOnRdna, rdna, own::__VA_ARGS__}

inline const Entry kOwn[] = {
    EMULATOR_OWN_VECTOR(V_BFREV_B32), EMULATOR_OWN_VECTOR(V_PERM_B32), EMULATOR_OWN_VECTOR(V_PACK_B32_F16),
    EMULATOR_OWN_VECTOR(V_CVT_PK_F16_F32), EMULATOR_OWN_VECTOR(V_BITOP3_B32), {kOnCdna, "V_PK_MUL_LO_U16", own::pk_mul_lo_u16},
    {kOnAll, "V_PK_MUL_F16", own::pk_mul_f16},
    EMULATOR_OWN_VECTOR(V_MOV_B64), EMULATOR_OWN_VECTOR(V_MBCNT_LO_U32_B32), EMULATOR_OWN_VECTOR(V_MBCNT_HI_U32_B32),
    EMULATOR_OWN_VECTOR(V_MAD_U64_U32), {kOnAll, "V_MAD_CO_U64_U32", vector_operation<own::V_MAD_U64_U32>},
    EMULATOR_OWN_VECTOR(V_MAD_I64_I32), {kOnAll, "V_MAD_CO_I64_I32", vector_operation<own::V_MAD_I64_I32>},
    EMULATOR_OWN_VECTOR(V_ADD_NC_U32), {kOnCdna, "V_ADD_U32", vector_operation<own::V_ADD_NC_U32>},
    EMULATOR_OWN_VECTOR(V_SUB_NC_U32), {kOnCdna, "V_SUB_U32", vector_operation<own::V_SUB_NC_U32>},
    EMULATOR_OWN_VECTOR(V_SUBREV_NC_U32), {kOnCdna, "V_SUBREV_U32", vector_operation<own::V_SUBREV_NC_U32>},
    EMULATOR_OWN_VECTOR(V_MAC_F32), EMULATOR_OWN_VECTOR(V_MAX_F32), EMULATOR_OWN_VECTOR(V_MIN_F32),
    EMULATOR_OWN_VECTOR(V_MAX3_F32), EMULATOR_OWN_VECTOR(V_MIN3_F32), EMULATOR_OWN_VECTOR(V_MAX_NUM_F32),
    EMULATOR_OWN_VECTOR(V_MIN_NUM_F32), EMULATOR_OWN_VECTOR(V_MAX3_NUM_F32), EMULATOR_OWN_VECTOR(V_MIN3_NUM_F32),
    EMULATOR_OWN_VECTOR(V_DIV_SCALE_F32), EMULATOR_OWN_VECTOR(V_DIV_FMAS_F32), EMULATOR_OWN_VECTOR(V_DIV_FIXUP_F32),
    EMULATOR_OWN_VECTOR(V_CEIL_F32), EMULATOR_OWN_VECTOR(V_EXP_F32), EMULATOR_OWN_VECTOR(V_LOG_F32), EMULATOR_OWN_VECTOR(V_RCP_F32),
    {kOnAll, "V_RCP_IFLAG_F32", vector_operation<own::V_RCP_F32>}, EMULATOR_OWN_VECTOR(V_RSQ_F32),
    EMULATOR_OWN_VECTOR(V_SQRT_F32), EMULATOR_OWN_SCALAR(V_S_RCP_F32), EMULATOR_OWN_SCALAR(S_BCNT1_I32_B32),
    EMULATOR_OWN_SCALAR(S_BCNT1_I32_B64), EMULATOR_OWN_SCALAR(S_BFE_I64),
    {kOnAll, "V_FMA_MIX_F32", own::fma_mix}, {kOnAll, "V_FMA_MIXLO_F16", own::fma_mix},
    {kOnAll, "V_FMA_MIXHI_F16", own::fma_mix}, {kOnCdna, "V_PK_FMA_F32", own::pk_fma_f32},
    {kOnCdna, "V_PK_MUL_F32", own::pk_mul_f32}, {kOnCdna, "V_PK_ADD_F32", own::pk_add_f32},
    {kOnCdna, "V_PK_MOV_B32", own::pk_mov_b32},

    {kOnAll, "V_READFIRSTLANE_B32", own::readfirstlane}, {kOnAll, "V_READLANE_B32", own::readlane},
    {kOnRdna, "V_PERMLANE16_B32", own::permlane16<false>}, {kOnRdna, "V_PERMLANEX16_B32", own::permlane16<true>},
    {kOnAll, "DS_BPERMUTE_B32", own::ds_bpermute}, {kOnAll, "DS_SWIZZLE_B32", own::ds_swizzle},

    EMULATOR_LOAD("DWORD", "B32", load, 1), EMULATOR_LOAD("DWORDX2", "B64", load, 2),
    EMULATOR_LOAD("DWORDX3", "B96", load, 3), EMULATOR_LOAD("DWORDX4", "B128", load, 4),
    EMULATOR_LOAD("UBYTE", "U8", load_narrow, uint8_t), EMULATOR_LOAD("SBYTE", "I8", load_narrow, int8_t),
    EMULATOR_LOAD("USHORT", "U16", load_narrow, uint16_t), EMULATOR_LOAD("SSHORT", "I16", load_narrow, int16_t),
    EMULATOR_LOAD("SHORT_D16", "D16_B16", load_half, false), EMULATOR_LOAD("SHORT_D16_HI", "D16_HI_B16", load_half, true),
    EMULATOR_STORE("BYTE", "B8", 1), EMULATOR_STORE("SHORT", "B16", 2), EMULATOR_STORE("SHORT_D16_HI", "D16_HI_B16", 2, 16),
    EMULATOR_STORE("DWORD", "B32", 4), EMULATOR_STORE("DWORDX2", "B64", 8), EMULATOR_STORE("DWORDX3", "B96", 12),
    EMULATOR_STORE("DWORDX4", "B128", 16),
    EMULATOR_ATOMIC("ADD", "ADD_U32", atomic_add, uint32_t), EMULATOR_ATOMIC("ADD_X2", "ADD_U64", atomic_add, uint64_t),
    EMULATOR_ATOMIC("SWAP", "SWAP_B32", atomic_swap, uint32_t), EMULATOR_ATOMIC("SWAP_X2", "SWAP_B64", atomic_swap, uint64_t),
    EMULATOR_ATOMIC("OR", "OR_B32", atomic_or, uint32_t), EMULATOR_ATOMIC("OR_X2", "OR_B64", atomic_or, uint64_t),

    EMULATOR_SHARED("DS_READ_B32", "DS_LOAD_B32", ds_load<4>), EMULATOR_SHARED("DS_READ_B64", "DS_LOAD_B64", ds_load<8>),
    EMULATOR_SHARED("DS_READ_B96", "DS_LOAD_B96", ds_load<12>), EMULATOR_SHARED("DS_READ_B128", "DS_LOAD_B128", ds_load<16>),
    EMULATOR_SHARED("DS_READ_U8", "DS_LOAD_U8", ds_load_narrow<uint8_t>),
    EMULATOR_SHARED("DS_READ_I8", "DS_LOAD_I8", ds_load_narrow<int8_t>),
    EMULATOR_SHARED("DS_READ_U16", "DS_LOAD_U16", ds_load_narrow<uint16_t>),
    EMULATOR_SHARED("DS_READ_I16", "DS_LOAD_I16", ds_load_narrow<int16_t>),
    EMULATOR_SHARED("DS_WRITE_B8", "DS_STORE_B8", ds_store<1>), EMULATOR_SHARED("DS_WRITE_B16", "DS_STORE_B16", ds_store<2>),
    EMULATOR_SHARED("DS_WRITE_B32", "DS_STORE_B32", ds_store<4>), EMULATOR_SHARED("DS_WRITE_B64", "DS_STORE_B64", ds_store<8>),
    EMULATOR_SHARED("DS_WRITE_B96", "DS_STORE_B96", ds_store<12>),
    EMULATOR_SHARED("DS_WRITE_B128", "DS_STORE_B128", ds_store<16>),
    EMULATOR_SHARED("DS_READ2_B32", "DS_LOAD_2ADDR_B32", ds_load_two<1, 4>),
    EMULATOR_SHARED("DS_READ2_B64", "DS_LOAD_2ADDR_B64", ds_load_two<2, 8>),
    EMULATOR_SHARED("DS_READ2ST64_B32", "DS_LOAD_2ADDR_STRIDE64_B32", ds_load_two<1, 256>),
    EMULATOR_SHARED("DS_READ2ST64_B64", "DS_LOAD_2ADDR_STRIDE64_B64", ds_load_two<2, 512>),
    EMULATOR_SHARED("DS_WRITE2_B32", "DS_STORE_2ADDR_B32", ds_store_two<1, 4>),
    EMULATOR_SHARED("DS_WRITE2_B64", "DS_STORE_2ADDR_B64", ds_store_two<2, 8>),
    EMULATOR_SHARED("DS_WRITE2ST64_B32", "DS_STORE_2ADDR_STRIDE64_B32", ds_store_two<1, 256>),
    EMULATOR_SHARED("DS_WRITE2ST64_B64", "DS_STORE_2ADDR_STRIDE64_B64", ds_store_two<2, 512>),
    EMULATOR_SHARED("S_LOAD_DWORD", "S_LOAD_B32", scalar_load<1>), EMULATOR_SHARED("S_LOAD_DWORDX2", "S_LOAD_B64", scalar_load<2>),
    {kOnRdna4, "S_LOAD_B96", own::scalar_load<3>}, EMULATOR_SHARED("S_LOAD_DWORDX4", "S_LOAD_B128", scalar_load<4>),
    EMULATOR_SHARED("S_LOAD_DWORDX8", "S_LOAD_B256", scalar_load<8>),
    EMULATOR_SHARED("S_LOAD_DWORDX16", "S_LOAD_B512", scalar_load<16>),

    {kOnCdna, "V_MFMA_F32_16X16X16_F16", own::spread_16x16x16_f16<4>},
    {kOnRdna3, "V_WMMA_F32_16X16X16_F16", own::wmma_16x16x16_f16_rdna3},
    {kOnRdna4, "V_WMMA_F32_16X16X16_F16", own::spread_16x16x16_f16<8>},

    {kOnAll, "S_BRANCH", own::branch}, {kOnAll, "S_CBRANCH_SCC0", own::cbranch_scc0},
    {kOnAll, "S_CBRANCH_SCC1", own::cbranch_scc1}, {kOnAll, "S_CBRANCH_VCCZ", own::cbranch_vccz},
    {kOnAll, "S_CBRANCH_VCCNZ", own::cbranch_vccnz}, {kOnAll, "S_CBRANCH_EXECZ", own::cbranch_execz},
    {kOnAll, "S_CBRANCH_EXECNZ", own::cbranch_execnz}, {kOnAll, "S_ENDPGM", own::endpgm},
    {kOnCdna | kOnRdna3, "S_BARRIER", own::barrier}, {kOnRdna4, "S_BARRIER_SIGNAL", own::barrier_signal},
    {kOnRdna4, "S_BARRIER_WAIT", own::barrier_wait}, {kOnAll, "S_SLEEP", own::sleep},

    {kOnAll, "S_NOP", own::nothing}, {kOnAll, "V_NOP", own::nothing}, {kOnAll, "S_CLAUSE", own::nothing},
    {kOnAll, "S_DELAY_ALU", own::nothing}, {kOnAll, "S_SENDMSG", own::nothing}, {kOnAll, "S_SETPRIO", own::nothing},
    {kOnAll, "S_WAITCNT", own::nothing}, {kOnRdna3, "S_WAITCNT_DEPCTR", own::nothing},
    {kOnRdna3, "S_WAITCNT_VSCNT", own::nothing}, {kOnRdna3, "S_WAITCNT_VMCNT", own::nothing},
    {kOnRdna3, "S_SET_INST_PREFETCH_DISTANCE", own::nothing}, {kOnRdna3, "BUFFER_GL0_INV", own::nothing},
    {kOnRdna3, "BUFFER_GL1_INV", own::nothing}, {kOnRdna4, "S_WAIT_ALU", own::nothing},
    {kOnRdna4, "S_WAIT_DSCNT", own::nothing}, {kOnRdna4, "S_WAIT_KMCNT", own::nothing},
    {kOnRdna4, "S_WAIT_LOADCNT", own::nothing}, {kOnRdna4, "S_WAIT_STORECNT", own::nothing},
    {kOnRdna4, "S_WAIT_LOADCNT_DSCNT", own::nothing}, {kOnRdna4, "S_WAIT_STORECNT_DSCNT", own::nothing},
    {kOnRdna4, "GLOBAL_WB", own::nothing}, {kOnRdna4, "GLOBAL_INV", own::nothing},
    {kOnCdna, "BUFFER_WBL2", own::nothing}, {kOnCdna, "BUFFER_INV", own::nothing}, {kOnCdna, "BUFFER_WBINVL1", own::nothing},
    {kOnCdna, "BUFFER_WBINVL1_VOL", own::nothing}, {kOnCdna, "BUFFER_INVL2", own::nothing},
};

}  // namespace emulator
