"""Faults that are planted in the machine code must show when it runs in the emulator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

if sys.version_info < (3, 11):
    pytest.skip("tinygrad's tables need Python 3.11", allow_module_level=True)

from support import emulated
from support.emulated import Target
from support.emulator import EmulationError
from support.machine_code_cases import Case, cases, run
from support.planted import Instruction, Words, field, found, nothing, planted

SEEDS = range(1, 9)
"""A wave must get ahead of another one for a missing barrier to show; some seed does it."""

TARGETS = [target for target in emulated.targets() if target.architecture in {"gfx942", "gfx1100", "gfx1201"}]
"""Waves of 64, and both kinds of 32."""

every_kind = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.architecture)


def case_of(target: Target, kernel: str) -> Case:
    return next(case for case in cases(target) if case.kernel == kernel)


def shows(target: Target, case: Case) -> str:
    """How a fault shows: the emulator's error, wrong values, values that are not the same for all seeds; or not."""
    try:
        outcome = run(target, case, SEEDS)
    except EmulationError as error:
        return f"{error}"
    if outcome.error > 1:
        return f"error {outcome.error:.3g}"
    return "" if outcome.same else "not the same"


def barriers(target: Target, kernel: str) -> Iterator[list[Instruction]]:
    """Each as the instructions that make it up."""
    if target.machine != "wmma_gfx12":
        yield from ([each] for each in found(target, kernel, "s_barrier$"))
        return
    signals, waits = (found(target, kernel, f"s_barrier_{part}") for part in ("signal", "wait"))
    for signal, wait in zip(signals, waits, strict=True):
        assert signal.at < wait.at
        yield [signal, wait]


@every_kind
@pytest.mark.parametrize(
    "kernel",
    [
        "attention_f16_64_q1_k64_s64",
        "attention_f16_128_q1_whole",
        "skip_layer_norm_f16_l128v1",
        "group_norm_f16_alone_512_4",
    ],
)
def test_a_missing_barrier_shows(target: Target, kernel: str) -> None:
    case, each = case_of(target, kernel), list(barriers(target, kernel))
    assert each
    assert not shows(target, case)
    for barrier in each:
        assert shows(planted(target, barrier, nothing), case), barrier


LANES: list[tuple[str, str, str, Callable[[Words], Words]]] = [
    # DPP's control: bits 8 to 16 of its word. In place of its neighbour, a lane meets the one after that twice.
    ("gfx942", "skip_layer_norm_f16_l128v1", r".*_dpp .*quad_perm:\[1,0,3,2\]", field(1, 8, 9, 0x4E)),
    ("gfx1100", "skip_layer_norm_f16_l128v1", ".*_dpp .*row_xmask:1 ", field(1, 8, 9, 0x162)),
    ("gfx1201", "skip_layer_norm_f16_l128v1", ".*_dpp .*row_xmask:1 ", field(1, 8, 9, 0x162)),
    ("gfx1100", "rotary_embedding_f16_pairs_l8", ".*_dpp .*row_xmask:1 ", field(1, 8, 9, 0x162)),
    # SWAP,16 becomes SWAP,8: the offset's 16 bits.
    ("gfx942", "skip_layer_norm_f16_l128v1", r"ds_swizzle_b32 .*SWAP,16", field(0, 0, 16, 0x201F)),
    ("gfx1100", "skip_layer_norm_f16_l128v1", r"ds_swizzle_b32 .*SWAP,16", field(0, 0, 16, 0x201F)),
    ("gfx1201", "attention_f16_64_q1_k64_s64", r"ds_swizzle_b32 .*SWAP,16", field(0, 0, 16, 0x201F)),
    # Lanes 14 and 15 trade places.
    ("gfx1100", "attention_f16_64_q1_k64_s64", "v_permlanex16_b32", field(2, 0, 32, 0xEFDCBA98)),
]


@pytest.mark.parametrize(
    ("architecture", "kernel", "pattern", "change"), LANES, ids=[f"{each[0]}-{each[1]}-{each[2]}" for each in LANES]
)
def test_a_wrong_lane_shows(architecture: str, kernel: str, pattern: str, change: Callable[[Words], Words]) -> None:
    [target] = [target for target in TARGETS if target.architecture == architecture]
    case, instructions = case_of(target, kernel), found(target, kernel, pattern)
    assert instructions
    for instruction in instructions:
        assert shows(planted(target, [instruction], change), case), instruction


@every_kind
@pytest.mark.parametrize("kernel", ["skip_layer_norm_f16_l128v1", "attention_general_f16_64", "group_norm_f16_measure"])
def test_lanes_that_do_not_come_back_show(target: Target, kernel: str) -> None:
    """A branch that only some lanes have taken, and behind which the others stay off.

    At the rest of a kernel's first branches no lane is off in this case, or only such code follows as they skip anyway.
    """
    instructions = found(target, kernel, r"s_or_b(32|64) exec")[:16]
    assert len(instructions) >= 2
    seen = [bool(shows(planted(target, [each], nothing), case_of(target, kernel))) for each in instructions]
    assert sum(seen) >= len(seen) / 2, seen


@every_kind
@pytest.mark.parametrize("kernel", ["modulated_norm_f16_l128v2"])
def test_a_fault_of_one_form_shows_in_that_form(target: Target, kernel: str) -> None:
    """Layer norms and those of root mean squares have sums of their own: each barrier and exchange of neighbours."""
    forms = [case for case in cases(target) if case.kernel == kernel]
    assert len(forms) == 2
    faults: list[tuple[list[Instruction], Callable[[tuple[int, ...]], tuple[int, ...]]]] = [
        (barrier, nothing) for barrier in barriers(target, kernel)
    ]
    if target.machine != "mfma":
        met = field(1, 8, 9, 0x162)
        faults += [([each], met) for each in found(target, kernel, ".*_dpp .*row_xmask:1 ")]
    assert len(faults) >= 3
    for instructions, change in faults:
        assert any(shows(planted(target, instructions, change), case) for case in forms), instructions


STORING = (
    "bias_add_f16_vector",
    "bias_add_f32_narrow",
    "rotary_embedding_f16_halves_l8",
    "gated_sum_f16_vector",
    "attention_f16_64_q1_k64_s64",
)


@every_kind
@pytest.mark.parametrize("kernel", STORING)
def test_a_store_beyond_the_output_is_refused(target: Target, kernel: str) -> None:
    """One element or vector further than the code has it."""
    stores = found(target, kernel, "global_store")
    assert stores
    for store in stores[-1:]:
        word, low, bits = (2, 8, 24) if target.machine == "wmma_gfx12" else (0, 0, 13)
        further = (store.words[word] >> low & (1 << bits) - 1) + 64
        with pytest.raises(EmulationError):
            run(planted(target, [store], field(word, low, bits, further)), case_of(target, kernel))
