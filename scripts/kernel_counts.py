#!/usr/bin/env python3
"""Counts what the kernels' AMD machine code does, and what that allows at best on four GPUs, as Markdown tables.

    python scripts/kernel_counts.py [--gpu gfx1100] [--kernel SUBSTRING] [--lines] [--update custom_ops/COUNTS.md]

Of each launch the first workgroup of the grid and the one in its middle run in the emulator of the tests
(tests/support/emulator), which counts instructions by class, bank conflicts of LDS and cache lines. The busier one
counts: all workgroups are taken to do as much. Shapes are those of SD 1.5 and SDXL (batch 2) and of the VAE, in fp16.
--lines prints the instructions that conflict or touch more lines than needed, one by one. --update writes the tables
into that file in place of its own. Takes a minute, and some more where the machine code has to be built
(tests/support/native.py).

It is a model, not a measurement: custom_ops/COUNTS.md says what it leaves out.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter as Bag
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from measuring import Arguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import kernel_report
import numpy as np
import numpy.typing as npt
from support import attention_cases, emulated, native
from support.emulator.counts import Counter, Counts, Line, class_of, counts_of
from support.kernel_cases import Launch, recorded, simulate
from support.machine_code import machine_of
from support.problems import problem

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

FLOPS = 2 * 16 * 16 * 16
"""Of one matrix instruction, WMMA or MFMA 16x16x16."""
SIMDS = 4
"""Of a compute unit (CDNA) and of a work-group processor (RDNA)."""


@dataclass(frozen=True)
class Gpu:
    """Published rates; custom_ops/COUNTS.md has the sources."""

    name: str
    architecture: str
    units: int  # compute units (CDNA), work-group processors (RDNA)
    clock: float  # GHz, highest
    bandwidth: float  # GB/s
    vector: int  # clocks of a SIMD for an instruction of a wave
    slow: int  # of 32-bit integer multiplications
    transcendental: int
    matrix: int
    shared: int  # bytes a clock and unit of LDS
    apart: str  # what leaves the vector ALU free but for its issue: "matrix" or "transcendental" instructions

    @property
    def peak(self) -> float:
        """TFLOP/s of fp16 matrix instructions."""
        return self.units * SIMDS * FLOPS / self.matrix * self.clock / 1000


GPUS = (
    Gpu("RX 7900 XTX", "gfx1100", 48, 2.5, 960, 1, 4, 4, 32, 256, "transcendental"),
    Gpu("RX 9070 XT", "gfx1201", 32, 2.97, 640, 1, 4, 4, 16, 256, "transcendental"),
    Gpu("MI300X", "gfx942", 304, 2.1, 5300, 4, 4, 16, 16, 128, "matrix"),
    Gpu("MI210", "gfx90a", 104, 1.7, 1638, 4, 4, 16, 32, 128, "matrix"),
)


def zeros(*shape: int, dtype: npt.DTypeLike = np.float16) -> Array:
    """Aligned as allocations on GPUs are; memory that nobody touches is never there."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room: Bytes = np.zeros(size + 256, np.uint8)
    start = -room.ctypes.data % 256
    return room[start : start + size].view(dtype).reshape(shape)


@dataclass
class Bound:
    """A problem over tensors."""

    problem: ctypes.Structure
    inputs: list[Array]
    outputs: list[Array]

    def ranges(self) -> list[tuple[int, int, bool]]:
        marked = [(a, False) for a in self.inputs] + [(a, True) for a in self.outputs]
        return [(a.ctypes.data, a.ctypes.data + a.nbytes, writable) for a, writable in marked]


@dataclass(frozen=True)
class Case:
    """One operator at one shape, by the variant that its geometry prefers, or by the one of that number."""

    operator: str
    label: str
    bind: Callable[[Gpu], Bound]
    products: float = 0
    """fp16 matrix flops that the operator has."""
    variant: int = 0

    def launches(self, gpu: Gpu, target: emulated.Target, bound: Bound) -> list[Launch]:
        device = (self.variant, 0, gpu.units, gpu.architecture)
        with recorded(target.machine) as launches:
            if not simulate(target.machine, self.operator, bound.problem, np.float16, *device):
                raise LookupError(f"no variant {self.variant}: {self.label}")
        return launches


def _at(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def group_norm(images: int, hw: int, channels: int, groups: int, options: str, gpu: Gpu) -> Bound:
    """``options``: of "silu", "bias", "skip"; with a skip there are bias and embedding too, and the sum is stored."""
    x, y = (zeros(images, hw, channels) for _ in range(2))
    gamma, beta = (zeros(channels, dtype=np.float32) for _ in range(2))
    more: dict[str, Array] = {}
    if "skip" in options:
        more = {"skip": zeros(images, hw, channels), "bias": zeros(channels), "embedding": zeros(images, channels)}
    elif "bias" in options:
        more = {"bias": zeros(channels)}
    total = {"sum": zeros(images, hw, channels)} if more else {}
    made = problem(
        "group_norm",
        **{name: _at(a) for name, a in {"x": x, "y": y, "gamma": gamma, "beta": beta, **more, **total}.items()},
        epsilon=1e-5,
        silu=int("silu" in options),
        images=images,
        hw=hw,
        channels=channels,
        x_channels=channels,
        groups=groups,
    )
    machine = machine_of(gpu.architecture)
    size = native.simulated(machine).simulated_group_norm_workspace
    size.restype = ctypes.c_size_t
    workspace = zeros(size(ctypes.byref(made), 1, gpu.architecture.encode(), gpu.units) + 64, dtype="u1")
    made.workspace = _at(workspace)
    return Bound(made, [x, gamma, beta, *more.values()], [y, *total.values(), workspace])


def bias_split_gelu(rows: int, width: int, _: Gpu) -> Bound:
    x, bias, y = zeros(rows, 2 * width), zeros(2 * width), zeros(rows, width)
    made = problem("bias_split_gelu", x=_at(x), bias=_at(bias), y=_at(y), rows=rows, width=width)
    return Bound(made, [x, bias], [y])


def bias_add(rows: int, width: int, _: Gpu) -> Bound:
    x, skip, bias, y = zeros(rows, width), zeros(rows, width), zeros(width), zeros(rows, width)
    made = problem("bias_add", x=_at(x), bias=_at(bias), skip=_at(skip), y=_at(y), rows=rows, width=width)
    return Bound(made, [x, skip, bias], [y])


def skip_layer_norm(rows: int, width: int, _: Gpu) -> Bound:
    names = ("x", "skip", "y", "sum")
    tensors = {name: zeros(rows, width) for name in names} | {n: zeros(width) for n in ("gamma", "beta", "bias")}
    sizes = {"rows": rows, "skip_rows": rows, "width": width, "epsilon": 1e-5}
    made = problem("skip_layer_norm", **{name: _at(a) for name, a in tensors.items()}, **sizes)
    return Bound(made, [a for n, a in tensors.items() if n not in ("y", "sum")], [tensors["y"], tensors["sum"]])


def layer_norm(rows: int, width: int, _: Gpu) -> Bound:
    x, y, gamma, beta = zeros(rows, width), zeros(rows, width), zeros(width), zeros(width)
    tensors = {"x": x, "y": y, "gamma": gamma, "beta": beta}
    made = problem("layer_norm", **{n: _at(a) for n, a in tensors.items()}, rows=rows, width=width, epsilon=1e-5)
    return Bound(made, [x, gamma, beta], [y])


def interleave_phases(images: int, side: int, width: int, _: Gpu) -> Bound:
    """``side`` is that of the small image."""
    x, bias, y = zeros(images, side + 1, side + 1, 4 * width), zeros(width), zeros(images, 2 * side, 2 * side, width)
    sizes = {"rows": images * 4 * side * side, "width": width, "height": 2 * side, "image_width": 2 * side}
    return Bound(problem("interleave_phases", x=_at(x), bias=_at(bias), y=_at(y), **sizes), [x, bias], [y])


def attention(batch: int, queries: int, keys: int, heads: int, size: int, form: str, gpu: Gpu) -> Bound:
    """``form``: "packed" (N, S, heads, 3, size), or "apart"."""
    y = zeros(batch, queries, heads * size)
    parts = 3 if form == "packed" else 1
    tensors = [zeros(batch, rows, heads, parts, size) for rows in ([queries] if parts == 3 else [queries, keys, keys])]
    row = heads * parts * size

    def part(n: int) -> ctypes.Structure:
        tensor, rows = tensors[n % len(tensors)], queries if n == 0 else keys
        offset = n * size * 2 if parts == 3 else 0
        return attention_cases.strided(tensor.ctypes.data + offset, rows * row, row, parts * size)

    sizes = {"batches": batch, "heads": heads, "queries": queries, "keys": keys, "size": size, "value_size": size}
    made = problem("attention", q=part(0), k=part(1), v=part(2), y=_at(y), scale=size**-0.5, **sizes)
    machine = machine_of(gpu.architecture)
    workspace = zeros(attention_cases.workspace_bytes(machine, made, np.float16, gpu.units) + 1, dtype="u1")
    made.workspace = _at(workspace)
    return Bound(made, tensors, [y, workspace])


def norm_cases() -> Iterator[Case]:
    shapes = [(2, side, channels) for side, channels in ((64, 320), (64, 640), (64, 960), (32, 640), (32, 1920))]
    shapes += [(2, side, channels) for side, channels in ((16, 1280), (16, 2560), (8, 1280), (128, 320))]
    shapes += [(1, side, channels) for side, channels in ((512, 128), (512, 256), (256, 512), (128, 512), (64, 512))]
    for images, side, channels in shapes:
        label = f"{images}x{side}x{side}x{channels} silu"
        yield Case("group_norm", label, partial(group_norm, images, side * side, channels, 32, "silu"))
    yield Case("group_norm", "2x64x64x330 silu, 33 groups", partial(group_norm, 2, 4096, 330, 33, "silu"))
    yield Case("group_norm", "2x8x8x36 silu, 3 groups", partial(group_norm, 2, 64, 36, 3, "silu"))
    for images, side, channels in ((2, 64, 320), (2, 32, 640), (1, 512, 128), (1, 64, 512)):
        label = f"{images}x{side}x{side}x{channels} silu bias sum"
        yield Case("group_norm", label, partial(group_norm, images, side * side, channels, 32, "silu bias"))
    for side, channels in ((64, 320), (32, 640), (16, 1280), (8, 1280)):
        label = f"2x{side}x{side}x{channels} silu skip sum"
        yield Case("group_norm", label, partial(group_norm, 2, side * side, channels, 32, "silu skip"))


def row_cases() -> Iterator[Case]:
    for rows, width in ((8192, 1280), (2048, 2560), (512, 5120)):
        yield Case("bias_split_gelu", f"2x{rows // 2}x{2 * width}", partial(bias_split_gelu, rows, width))
    for rows, width in ((8192, 320), (2048, 640), (512, 1280)):
        yield Case("bias_add", f"2x{rows // 2}x{width}", partial(bias_add, rows, width))
    for rows, width in ((8192, 320), (2048, 640), (512, 1280), (8192, 640), (2048, 1280)):
        yield Case("layer_norm", f"2x{rows // 2}x{width}", partial(layer_norm, rows, width))
        yield Case("skip_layer_norm", f"2x{rows // 2}x{width} sum", partial(skip_layer_norm, rows, width))
    for images, side, width in ((2, 8, 1280), (2, 16, 1280), (2, 32, 640), (1, 64, 512), (1, 256, 256)):
        label = f"{images}x{side}x{side} to {2 * side}x{2 * side}x{width}"
        yield Case("interleave_phases", label, partial(interleave_phases, images, side, width))


def attention_shapes() -> Iterator[Case]:
    shapes = [(2, 4096, 4096, 8, 40), (2, 4096, 77, 8, 40), (2, 1024, 1024, 8, 80), (2, 1024, 77, 8, 80)]
    shapes += [(2, 256, 256, 8, 160), (2, 64, 64, 8, 160), (2, 4096, 4096, 10, 64), (2, 4096, 77, 10, 64)]
    shapes += [(2, 1024, 1024, 20, 64), (2, 1024, 1024, 16, 96), (2, 1024, 1024, 8, 128), (2, 1024, 1024, 8, 72)]
    shapes += [(1, 4096, 4096, 1, 512)]
    for shape in shapes:
        batch, queries, keys, heads, size = shape
        form = "packed" if queries == keys and heads > 1 else "apart"
        label = f"{batch}x{queries}x{keys} {heads}x{size} {form}"
        yield Case("attention", label, partial(attention, *shape, form), 4.0 * batch * heads * queries * keys * size)


def cases() -> list[Case]:
    return [*attention_shapes(), *norm_cases(), *row_cases()]


@dataclass
class Result:
    """A launch: counts are those of one workgroup, times those of all, in microseconds."""

    case: Case
    kernel: kernel_report.Kernel
    workgroups: int
    counts: Counts
    bytes: float  # of memory, of all workgroups
    program: list[Line] = field(repr=False)
    times: dict[str, float] = field(default_factory=dict)

    @property
    def bound(self) -> str:
        return max(self.times, key=lambda name: self.times[name])

    @property
    def best(self) -> float:
        return self.times[self.bound]


def run(gpu: Gpu, target: emulated.Target, case: Case) -> tuple[list[Result], float]:
    """Its launches, and the time of the roofline: every tensor once, or the operator's products at the peak."""
    bound = case.bind(gpu)
    numbers = {kernel.name: kernel for kernel in kernel_report.read(target.data)}
    results, memory = [], bound.ranges()
    for launch in case.launches(gpu, target, bound):
        blocks = launch.grid[0] * launch.grid[1]
        counters = []
        for block in sorted({0, blocks // 2}):
            counters.append(Counter(gpu.architecture))
            target.object.run(*launch, memory=memory, seed=1, blocks=range(block, block + 1), counter=counters[-1])
        counter = max(counters, key=lambda each: sum(line.executed for line in each.program))
        moved = sum(
            min(part * blocks, end - begin)
            for (begin, end, _), touched in zip(memory, counter.touched, strict=False)  # the last one is the arguments
            for part in (touched.read, touched.written)
        )
        result = Result(case, numbers[launch.kernel], blocks, counts_of(counter.program), moved, counter.program)
        result.times = times(gpu, result)
        results.append(result)
    tensors = [*bound.inputs, *bound.outputs[: len(bound.outputs) - (case.operator in ("attention", "group_norm"))]]
    least = max(sum(a.nbytes for a in tensors) / gpu.bandwidth / 1000, case.products / gpu.peak / 1e6)
    return results, least


def times(gpu: Gpu, result: Result) -> dict[str, float]:
    """Microseconds that each resource is busy if nothing waits for another, on the unit that has most workgroups."""
    counts = result.counts
    on_unit = -(-result.workgroups // gpu.units) / gpu.clock / 1000
    slow = sum(line.executed for line in result.program if line.name.startswith(SLOW))
    vector = gpu.vector * (counts.vector - slow) + max(gpu.vector, gpu.slow) * slow
    matrix, transcendental = gpu.matrix * counts.matrix, gpu.transcendental * counts.transcendental
    beside = matrix if gpu.apart == "transcendental" else transcendental
    vector += beside + gpu.vector * (counts.transcendental if gpu.apart == "transcendental" else counts.matrix)
    lanes = counts.lanes * (256 if gpu.vector == 4 else 128) / gpu.shared
    busy = {
        "matrix": matrix / SIMDS,
        "transcendental": transcendental / SIMDS,
        "vector": vector / SIMDS,
        "LDS": counts.shared_cycles * 128 / gpu.shared + lanes,
    }
    return {"memory": result.bytes / gpu.bandwidth / 1000} | {name: clocks * on_unit for name, clocks in busy.items()}


SLOW = ("V_MUL_LO_U32", "V_MUL_HI_U32", "V_MUL_HI_I32", "V_MAD_U64_U32", "V_MAD_CO_U64_U32", "V_MAD_I64_I32")

COLUMNS = (
    *("operator, shape", "kernel", "workgroups", "on a unit", "vector", "transc.", "matrix", "LDS", "LDS clocks"),
    *("global", "lines", "scalar", "waits", "barriers", "MB", "bound", "at best, µs", "roofline, µs", "share"),
)


def ratio(part: int, least: int) -> str:
    """How many times the least it is."""
    return f"{part} ({part / least:.2f}x)" if least and part != least else f"{part}"


def row(gpu: Gpu, result: Result, first: bool, least: float | None, total: float) -> str:
    counts = result.counts
    waves = -(-result.kernel.threads // result.kernel.wave)
    each = [counts.vector, counts.transcendental, counts.matrix, counts.shared + counts.lanes]
    cells = [
        f"{result.case.operator} {result.case.label}" if first else "",
        f"`{result.kernel.name.removeprefix(result.case.operator + '_')}`",
        f"{result.workgroups}",
        f"{result.kernel.blocks}",
        *(f"{number / waves:.0f}" for number in each),
        ratio(counts.shared_cycles, counts.shared_least),
        f"{counts.access / waves:.0f}",
        ratio(counts.lines, counts.least_lines),
        f"{(counts.scalar + counts.scalar_memory) / waves:.0f}",
        f"{counts.waits / waves:.0f} ({counts.drains / waves:.0f})",
        f"{counts.barriers / waves:.0f}",
        f"{result.bytes / 1e6:.1f}",
        result.bound,
        f"{result.best:.1f}",
        "" if least is None else f"{least:.1f}",
        "" if least is None else f"{least / total:.0%}",
    ]
    return f"| {' | '.join(cells)} |\n"


def table(gpu: Gpu, target: emulated.Target, part: str, lines: bool) -> str:
    """Of one GPU, in Markdown."""
    text = [f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"]
    for case in cases():
        if part not in f"{case.operator} {case.label}":
            continue
        results, least = run(gpu, target, case)
        total = sum(result.best for result in results)
        for n, result in enumerate(results):
            last = n == len(results) - 1
            text.append(row(gpu, result, n == 0, least if last else None, total))
            if lines:
                print(f"{gpu.architecture} {result.kernel.name} {case.label}: {result.times}", file=sys.stderr)
                print_lines(result.program)
    return "".join(text)


def print_lines(program: Sequence[Line]) -> None:
    """Accesses that take longer or touch more than they need, and how often instructions run by name."""
    names: Bag[str] = Bag()
    for line in program:
        names[f"{class_of(line.name)} {line.name}"] += line.executed
        if line.cycles > line.least_cycles or line.lines > line.least_lines:
            needed = f"{line.cycles} of {line.least_cycles} clocks, {line.lines} of {line.least_lines} lines"
            print(f"  {line.offset:#6x} {line.name}: {line.executed} times, {needed}", file=sys.stderr)
    for name, executed in names.most_common(40):
        print(f"  {executed:8} {name}", file=sys.stderr)


HEADING = "<!-- written by scripts/kernel_counts.py -->\n"


def main() -> int:
    parser = Arguments(__doc__)
    names = [gpu.architecture for gpu in GPUS]
    parser.add_argument("--gpu", action="append", choices=names, help="only this one (repeatable)")
    parser.add_argument("--kernel", default="", metavar="SUBSTRING", help="only operators and shapes that contain it")
    parser.add_argument("--lines", action="store_true", help="print wasteful instructions one by one, on stderr")
    parser.add_argument("--update", type=Path, metavar="FILE", help="write all tables into this file")
    args = parser.parse_args()
    if args.update and (args.gpu or args.kernel):
        parser.error("--update writes all tables: leave --gpu and --kernel out")
    targets = {target.architecture: target for target in emulated.targets()}
    text = ""
    for gpu in GPUS:
        if args.gpu and gpu.architecture not in args.gpu:
            continue
        if gpu.architecture not in targets:
            parser.error(f"there is no machine code for {gpu.architecture}: its compiler is missing")
        heading = f"\n## {gpu.name} ({gpu.architecture})\n\n"
        text += heading + table(gpu, targets[gpu.architecture], args.kernel, args.lines)
    if args.update:
        before = args.update.read_text()
        args.update.write_text(before[: before.index(HEADING) + len(HEADING)] + text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
