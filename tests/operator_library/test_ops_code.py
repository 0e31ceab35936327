"""The machine code of every kernel, read from the built objects of every architecture, against what headers say."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

from kernel_report import (
    HEADING,
    NOT_MEASURED,
    Kernel,
    amd_metadata,
    merged,
    objects_of,
    read,
    read_table,
    table,
    unit_of,
)
from support import native
from support.machine_code import all_objects, instructions, kernels, machine_of, moves, objects, wide
from support.rows import Promise, operator_of

LDS = 65536
"""Bytes that a block may have on every AMD GPU."""

IN_FLIGHT = 32 << 10
"""Bytes of loads that a compute unit waits for at a time: twice what bandwidth times latency asks for.

An H100's share is 3.35 TB/s x 650 ns / 132 = 16 KiB, an MI300X's 5.3 TB/s x 800 ns / 304 = 14 KiB, and that of an
RX 7900 XTX's work-group processors 0.96 TB/s x 600 ns / 48 = 12 KiB.
"""


def kernel_names(architecture: str) -> set[str]:
    """Of the source for that kind of machine, as its CPU code registers them; wgmma is Hopper's alone."""
    library = native.simulated(machine_of(architecture))
    library.sdort_body_names.restype = ctypes.c_char_p
    names: bytes = library.sdort_body_names()
    return {name for name in names.decode().split() if architecture != "sm_80" or "wgmma" not in name}


def all_kernels() -> Iterator[tuple[Path, Kernel]]:
    for path in all_objects():
        for kernel in kernels(path).values():
            yield path, kernel


def test_every_architecture_has_every_kernel() -> None:
    assert {path.stem for path in objects("*.hsaco")} >= native.ARCHITECTURES
    for path in all_objects():
        assert set(kernels(path)) == kernel_names(path.stem), path.stem
        assert {kernel.architecture for kernel in kernels(path).values()} == {path.stem}


def test_the_report_finds_in_the_library_what_was_compiled() -> None:
    embedded = {kernel for code in objects_of(native.library()) for kernel in read(code)}
    assert embedded == {kernel for _, kernel in all_kernels()}


def test_the_list_of_registers_has_every_kernel() -> None:
    listed = set(re.findall(r"^\| `(\w+)`", (native.SOURCE / "REGISTERS.md").read_text(), re.M))
    assert listed == set[str]().union(*(kernel_names(each) for each in ("gfx942", "gfx1100", "gfx1201", "sm_90")))


def test_gpus_for_which_nothing_is_built_need_no_more_registers_than_another() -> None:
    """What a whole build (``MATRIX=all``) gave them: blocks and shared memory alike, and no spills."""
    text = (native.SOURCE / "REGISTERS.md").read_text()
    listed = read_table(text[text.index(HEADING) :])
    checked = set()
    for name, rows in listed.items():
        for other in native.COVERED.keys() & rows.keys():
            threads, registers, _, shared, spills, _ = rows[native.COVERED[other]]
            found = rows[other]
            assert (found[0], found[3], found[4]) == (threads, shared, spills) == (threads, shared, "0"), (name, other)
            assert int(found[1]) <= int(registers), (name, other)
            checked.add(other)
    assert checked == native.COVERED.keys()
    sources = [path.read_text() for path in native.SOURCE.rglob("*.h")]
    assert not [text for text in sources if re.search(rf"(__|\b)({'|'.join(native.COVERED)})", text)]


def test_the_list_is_written_anew_without_what_no_compiler_here_builds() -> None:
    text = (native.SOURCE / "REGISTERS.md").read_text()
    listed = read_table(text[text.index(HEADING) :])
    assert table(listed) == text[text.index(HEADING) :]
    old: dict[str, tuple[str, ...]] = {"gfx942": ("64",), "gfx950": ("72",)}
    new: dict[str, tuple[str, ...]] = {"gfx942": ("60",)}
    assert merged({"a": old, "gone": old}, {"a": new, "b": new}) == {
        "a": {"gfx942": ("60",), "gfx950": ("72",)},
        "b": {"gfx942": ("60",), "gfx950": NOT_MEASURED},
    }
    assert merged({"a": old, "gone": old}, {"b": new}, "b").keys() == {"a", "b", "gone"}


def test_no_kernel_spills() -> None:
    for _, kernel in all_kernels():
        assert kernel.spills == 0, kernel


def test_waves_shared_memory_and_arguments_are_what_amd_has() -> None:
    for path in objects("*.hsaco"):
        wave = 64 if path.stem.startswith("gfx9") else 32
        for name, numbers in amd_metadata(path.read_bytes()).items():
            assert numbers["wavefront_size"] == wave, (path.name, name)
            assert numbers["group_segment_fixed_size"] <= LDS, (path.name, name)
            assert numbers["kernarg_segment_size"] <= 512, (path.name, name)


def promise_of(kernel: Kernel) -> Promise | None:
    """Of a kernel over rows (tests/support/rows); None of another."""
    found = operator_of(kernel.name)
    return found and found[0].promise(found[1], kernel.architecture.startswith("sm_"))


def stated_blocks(kernel: Kernel) -> int:
    """Blocks on a compute unit that the kernel's header counts on, as far as registers go."""
    nvidia = kernel.architecture.startswith("sm_")
    if promised := promise_of(kernel):
        return promised.blocks or 1
    if kernel.name.startswith("group_norm"):
        return launch_bounds(kernel.architecture).get(kernel.name, 1)
    if "general" in kernel.name:
        return launch_bounds(kernel.architecture)[kernel.name] if nvidia else 2
    return launch_bounds(kernel.architecture).get(kernel.name, 4) if nvidia else 3  # four where it has all keys


BEFORE_HOPPER = re.compile(
    r"^#if defined\(__CUDA_ARCH__\) && __CUDA_ARCH__ < 900.*?\n(.*?)#else\n(.*?)#endif\n", re.M | re.S
)


def launch_bounds(architecture: str) -> dict[str, int]:
    """Kernel -> the blocks that its source names: for GroupNorm, and for attention on NVIDIA."""
    folder = native.SOURCE / "operators"
    found: dict[str, int] = {}
    for form, path in (("alone", "group_norm/kernel.h"), ("together", "group_norm/together_kernel.h")):
        text = (folder / path).read_text()
        for instance, blocks in re.findall(rf"^SDORT_GROUP_NORM_{form.upper()}\(([\d, ]+), (\d+)\)", text, re.M):
            name = f"{form}_{instance.replace(', ', '_')}"
            found |= {f"group_norm_{dtype}_{name}": int(blocks) for dtype in ("f16", "f32")}
    [blocks] = re.findall(r"kTwoBlocks = (\d+);", (folder / "group_norm/group_norm.h").read_text())
    found |= {f"group_norm_{dtype}_{name}": int(blocks) for dtype in ("f16", "f32") for name in ("measure", "apply")}
    text = (folder / "attention/general_kernel.h").read_text()
    for columns, blocks in re.findall(r"^SDORT_ATTENTION_GENERAL\((\d+), (\d+)\)", text, re.M):
        found |= {f"attention_general_{dtype}_{columns}": int(blocks) for dtype in ("f16", "f32")}
    text = (folder / "attention/kernel.h").read_text()
    text = BEFORE_HOPPER.sub(r"\1" if architecture == "sm_80" else r"\2", text)
    for size, keys, step, tiles, blocks in re.findall(
        r"^SDORT_ATTENTION\((\d+), (\d+), (\d+), (\d+), (\d+)\)", text, re.M
    ):
        found[f"attention_f16_{size}_q{tiles}_k{keys}_s{step}"] = int(blocks)
    text = "".join(
        (folder / f"attention/{name}_kernel.h").read_text() for name in ("wide", "wide_wgmma", "flash_wgmma")
    )
    wide = re.findall(r"^SDORT_KERNEL_RESIDENT\((\w+), \w+, (?:\(kAsyncCopies \? )?(\d+)", text, re.M)
    return found | {name: int(blocks) for name, blocks in wide}


def test_launch_bounds_are_found_in_the_source() -> None:
    bounds = launch_bounds("sm_90")
    assert bounds["group_norm_f16_together_128_12_20"] == 4
    flash = {name for name in kernel_names("sm_90") if re.search(r"attention.*(_k\d|general|wide|wgmma)", name)}
    assert flash == {name for name in bounds if name.startswith("attention")}
    assert {name for name, blocks in launch_bounds("sm_80").items() if blocks != bounds[name]} == {
        "attention_f16_40_q2_k64_s32"
    }


def test_as_many_blocks_as_headers_count_on() -> None:
    """What shared memory leaves room for is the tiling's or geometry's business, and held elsewhere to the byte."""
    for _, kernel in all_kernels():
        unit = unit_of(kernel.architecture)
        room = unit.shared // (kernel.shared + unit.block_shared) if kernel.shared else 32
        assert kernel.blocks >= min(room, stated_blocks(kernel)), kernel


def vectors_in_flight(kernel: Kernel) -> int | None:
    """16-byte loads that a lane has on their way at a time, of tensors; None of what goes by elements or computes."""
    name = kernel.name
    if promised := promise_of(kernel):
        return promised.in_flight
    if found := re.fullmatch(r"group_norm_f\d\d_(?:alone|together)_\d+_(\d+)(?:_\d+)?", name):
        return int(found[1])
    if re.fullmatch(r"group_norm_f\d\d_(measure|apply)", name):
        return 8
    return None


def test_enough_loads_are_on_their_way_to_fill_the_memory() -> None:
    for _, kernel in all_kernels():
        if vectors := vectors_in_flight(kernel):
            assert kernel.blocks * kernel.threads * vectors * 16 >= IN_FLIGHT, kernel


def test_vector_kernels_move_16_bytes_and_nothing_else() -> None:
    """At least one load or store for each tensor, row and vector that the operator's module names."""
    held = set()
    for path, kernel in all_kernels():
        promised = promise_of(kernel)
        if promised and promised.loads:
            counts = moves(instructions(path)[kernel.name])
            loads, stores = wide(counts, "load"), wide(counts, "store")
            assert loads >= promised.loads, (kernel, counts)
            assert stores >= promised.stores, (kernel, counts)
            assert loads + stores == counts.total(), (kernel, counts)
            held.add(kernel.name)
    by_rows = {name for name in kernel_names("sm_90") if operator_of(name)}
    assert held == {name for name in by_rows if not name.endswith(BY_ELEMENTS)}
    assert len(held) >= 2 * (1 + 3 + 10 + 10)


BY_ELEMENTS = ("_narrow", "_wide")
"""Variants of kernels over rows."""


def test_the_others_move_elements_and_no_bytes() -> None:
    """An access is as wide as an element, so f32 has no 16-bit ones, and none is half an element.

    Of pairs of neighbours the two may be one access.
    """
    for path, kernel in all_kernels():
        if operator_of(kernel.name) and kernel.name.endswith(BY_ELEMENTS):
            names = " ".join(moves(instructions(path)[kernel.name]))
            element, two = r"short|_u16|_b16|\.U16", r"_dword\b|_b32|\.32"
            if "_f32_" in kernel.name:
                element, two = two, r"_dwordx2\b|_b64|\.64"
            pattern = f"{element}|{two}" if kernel.name.endswith("_pairs_wide") else element
            assert len(re.findall(pattern, names)) == len(names.split()) > 0, (kernel, names)


def test_sums_of_matrix_products_stay_in_vector_registers() -> None:
    """Where a lane may have more than 256 registers, clang moves them to accumulation registers and back."""
    for path in objects("gfx9*.hsaco"):
        for name, counts in instructions(path).items():
            assert not {each for each in counts if "accvgpr" in each}, (path.name, name)
