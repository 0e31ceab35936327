"""For every kernel the smallest problems that reach it on an AMD target, to be run as machine code
(tests/support/emulated.py).

Tensors, results in float64 and tolerances are those of the simulated machines' tests; launches are what the project's
own geometry makes of a problem for that target. Problems have more than one block, last tiles that are partial, and
optional inputs; GroupNorm's have slabs of one block each and of several.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from support import attention_cases, emulated, group_norm_cases
from support.emulated import Bound, Target, largest
from support.kernel_cases import Guarded, Launch, recorded, simulate
from support.row_cases import Rows
from support.rows import Inputs, Results, RowOperator, operators

Array = npt.NDArray[Any]
DTYPES = (np.float16, np.float32)

SEEDS = (1, 2, 3)
"""Of the order of waves and blocks, and of what registers and shared memory hold before."""


class Problem(Protocol):
    def bind(self, target: Target) -> Bound:
        """With outputs of its own."""


@dataclass(frozen=True)
class Case:
    """A problem for one kernel."""

    kernel: str
    problem: Problem

    def __str__(self) -> str:
        return f"{self.kernel}-{self.problem}"

    def launches(self, bound: Bound) -> list[Launch]:
        """Of the first variant that launches the kernel.

        Raises:
            LookupError: there is none.
        """
        for launches in bound.variants():
            if any(launch.kernel == self.kernel for launch in launches):
                return launches
        raise LookupError(f"no variant launches it: {self}")


@dataclass(frozen=True)
class Outcome:
    kernels: tuple[str, ...]
    error: float
    """The largest of all outputs, in tolerances."""
    same: bool
    """Whether all seeds gave the same bits."""


def run(target: Target, case: Case, seeds: Sequence[int] = SEEDS) -> Outcome:
    """With every seed, or the first one where no wave meets another.

    Raises:
        EmulationError: see :meth:`emulated.Bound.run`.
        LookupError: see :meth:`Case.launches`.
    """
    bound = case.problem.bind(target)
    launches = case.launches(bound)
    shared = emulated.shared_bytes(target.architecture)
    meet = len(launches) > 1 or any(shared[launch.kernel] for launch in launches)
    results, errors = set(), []
    for seed in seeds if meet else seeds[:1]:
        results.add(bound.run(target, launches, seed))
        errors.append(bound.error())
    return Outcome(tuple(launch.kernel for launch in launches), max(errors), len(results) == 1)


def variants(target: Target, operator: str, problem: Any, dtype: Any, units: int) -> Iterator[list[Launch]]:
    """The launches of each variant in turn, by the operator's geometry."""
    for variant in itertools.count():
        with recorded(target.machine) as launches:
            there = simulate(target.machine, operator, problem, dtype, variant, 0, units, target.architecture)
        if not there:
            return
        yield launches


def short_name(dtype: Any) -> str:
    """In the names of kernels."""
    return "f16" if dtype is np.float16 else "f32"


@dataclass(frozen=True)
class RowProblem:
    """Of an operator over rows, on one compute unit."""

    operator: RowOperator
    rows: Rows

    def __str__(self) -> str:
        skip_rows = f"-{self.rows.skip_rows}" if self.rows.skip_rows > 1 else ""
        return f"{self.rows.rows}x{self.rows.width}{skip_rows}"

    def bind(self, target: Target) -> Bound:
        operator, case = self.operator, self.rows
        inputs, results = _rows(operator, case)
        outputs = {name: Guarded(exact.shape, case.dtype) for name, (exact, _) in results.items()}
        problem = operator.bind(case, inputs, outputs)

        def error() -> float:
            return max(
                largest(np.abs(outputs[name].check() - exact), allowed) for name, (exact, allowed) in results.items()
            )

        return Bound(
            [tensor for tensor in inputs.values() if tensor is not None],
            [output.array for output in outputs.values()],
            lambda: variants(target, operator.kernels, problem, case.dtype, 1),
            error,
        )


@cache
def _rows(operator: RowOperator, case: Rows) -> tuple[Inputs, Results]:
    inputs = operator.inputs(case)
    return inputs, operator.results(case, inputs)


@dataclass(frozen=True)
class AttentionProblem:
    """On one compute unit; ``sizes`` and ``options`` are those of ``attention_cases.make``.

    And ``last_key``, a factor for it.
    """

    dtype: Any
    sizes: tuple[int, int, int, int, int]
    form: str = "apart"
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        options = [name if value is True else f"{name}{value}" for name, value in self.options]
        return "-".join(["x".join(map(str, self.sizes)), self.form, *options])

    @property
    def case(self) -> attention_cases.Case:
        return _attention(self.dtype, self.sizes, self.options)

    def bind(self, target: Target) -> Bound:
        case, inputs = self.case, self.case.inputs(self.form)
        y = Guarded(case.output_shape, self.dtype)
        problem = case.problem(inputs, self.form, y.pointer)
        bytes_ = attention_cases.workspace_bytes(target.machine, problem, self.dtype, 1)
        workspace = Guarded((bytes_ // 2,), np.float16)
        problem.workspace = workspace.pointer
        # By matrix instructions where it is given without options that those do not know.
        matrix = not {"bias", "causal", "value_size"} & dict(self.options).keys()
        exact, allowed = _attention_exact(self, matrix)
        return Bound(
            [each for each in inputs.values() if each is not None],
            [y.array, *([workspace.array] if bytes_ else [])],
            lambda: variants(target, "attention", problem, self.dtype, 1),
            lambda: largest(np.abs(y.check() - exact), allowed),
        )


@cache
def _attention(dtype: Any, sizes: tuple[int, ...], options: tuple[tuple[str, Any], ...]) -> attention_cases.Case:
    given = dict(options)
    last = given.pop("last_key", 1)
    case = attention_cases.make(dtype, *sizes, **given)
    case.k[:, -1] *= last
    return case


@cache
def _attention_exact(problem: AttentionProblem, matrix: bool) -> tuple[Array, Array]:
    return problem.case.exact(), attention_cases.tolerance(problem.case, problem.dtype, matrix)


@dataclass(frozen=True)
class NormProblem:
    """GroupNorm. The sum is exact but for its rounding."""

    case: group_norm_cases.Case
    dtype: Any

    def __str__(self) -> str:
        return str(self.case)

    def bind(self, target: Target) -> Bound:
        tensors, exact, allowed, total = _norm(self)
        simulation = group_norm_cases.Simulation(
            target.machine, self.case, self.dtype, tensors, architecture=target.architecture
        )
        given = [*simulation.inputs, *(getattr(tensors, n) for n in ("skip", "bias", "embedding", "gamma", "beta"))]
        outputs = [each for each in (simulation.y, simulation.sum) if each]

        def launches() -> Iterator[list[Launch]]:
            for name in dict.fromkeys([*simulation.variants(), "general"]):
                with recorded(target.machine) as found:
                    simulation.launch(name)
                yield found

        def error() -> float:
            for output in outputs:
                output.check()
            right = simulation.sum is None or np.array_equal(simulation.sum.array, total)
            return largest(np.abs(simulation.y.array - exact), allowed) if right else math.inf

        workspace = simulation.workspace[: simulation.workspace_bytes()]
        inputs = [each for each in given if each is not None and each.size]
        return Bound(inputs, [each.array for each in outputs], launches, error, [workspace])


@cache
def _norm(problem: NormProblem) -> tuple[group_norm_cases.Tensors, Array, Array, Array]:
    """Tensors, Y and the error that it may have, and the sum as it is stored."""
    case = problem.case
    tensors = group_norm_cases.draw_tensors(case, problem.dtype, 0)
    total = group_norm_cases.exact_sum(tensors).astype(problem.dtype)
    exact, error = group_norm_cases.exact(total, tensors.gamma, tensors.beta, case.groups, case.silu, case.epsilon)
    return tensors, exact, group_norm_cases.tolerance(exact, error, problem.dtype), total


def cases(target: Target) -> list[Case]:
    """Of every kernel."""
    attention = [*attention_matrix_cases(target), *attention_wide_cases(), *attention_general_cases()]
    return [*row_cases(target), *attention, *group_norm_kernel_cases()]


def row_cases(target: Target) -> Iterator[Case]:
    """Every variant of every operator over rows."""
    for operator, dtype in itertools.product(operators(), DTYPES):
        for variant, rows in operator.variants(dtype, target.wave):
            yield Case(f"{operator.kernels}_{short_name(dtype)}_{variant}", RowProblem(operator, rows))


def attention_matrix_cases(target: Target) -> Iterator[Case]:
    """Of the last tile's keys one, some or all but one are there; one query or more beyond a block's.

    The last key is so large that the weights of its step have to be computed again for some queries, relative to its
    scores. With all keys at hand, a workgroup goes on with the second tile of queries. Most weights are small: less
    than the least normal number of float16.
    """
    forms, last = itertools.cycle(attention_cases.FORMS), itertools.cycle((1, 37, 63))
    small = target.machine == "wmma_gfx11"
    flash = [(40, 2, 64, 32), (40, 1, 64, 64), (64, 1, 64, 64), (80, 1, 64, 64), (96, 1, 32, 32), (128, 1, 32, 32)]
    flash += [(160, 1, 32, 32)] + ([] if small else [(64, 2, 64, 32), (80, 2, 32, 32)])
    for size, tiles, keys, step in flash:
        form, more = next(forms), next(last)
        sizes = (1, 64 * tiles + (more if form == "packed_qkv" else 1), 64 * tiles + more, 2, size)
        problem = AttentionProblem(np.float16, sizes, form, (("spread", 2.0), ("last_key", 4)))
        yield Case(f"attention_f16_{size}_q{tiles}_k{keys}_s{step}", problem)
    for size, count in zip((40, 64, 80, 96, 128), (65, 70, 79, 66, 77), strict=True):
        form = next(forms)
        sizes = (2, count if form == "packed_qkv" else 65, count, 2, size)
        problem = AttentionProblem(np.float16, sizes, form, (("spread", 2.0),))
        yield Case(f"attention_f16_{size}_q1_whole", problem)


def attention_wide_cases() -> Iterator[Case]:
    """A tile whose last segment has no key, and of whose queries most are not there."""
    problem = AttentionProblem(np.float16, (1, 3, 37, 1, 192), options=(("spread", 2.0),))
    for kernel in ("scores", "values"):
        yield Case(f"attention_wide_{kernel}_f16", problem)


def attention_general_cases() -> Iterator[Case]:
    """Head sizes of more than one step and no multiples of anything; one more query or key than a tile, Y in slices."""
    for dtype in DTYPES:
        name = short_name(dtype)
        for width, sizes, options in (
            (64, (1, 33, 65, 2, 33), {"value_size": 20, "bias": True}),
            (192, (1, 33, 33, 1, 35), {"value_size": 131, "bias": True, "causal": True}),
            (512, (1, 3, 65, 1, 34), {"value_size": 514}),
        ):
            yield Case(
                f"attention_general_{name}_{width}", AttentionProblem(dtype, sizes, "apart", (*options.items(),))
            )


EVERYTHING: dict[str, Any] = {"skip": True, "bias": True, "embedding": True, "sum": True}


@dataclass(frozen=True)
class Slabs:
    """A GroupNorm of one image for the fast kernels: ten channels a group, as the UNet's, so a vector may have two.

    A lane has ``steps`` rows, the last of which some lanes have not.
    """

    kernel: str
    threads: int
    lanes: int  # vectors of a slab's row
    slabs: int
    steps: int
    splits: int = 1
    units: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    second: bool = False  # half of the channels come from a second input

    def case(self, dtype: Any) -> Case:
        channels = self.slabs * self.lanes * 16 // np.dtype(dtype).itemsize
        rows = self.splits * (self.threads // self.lanes * self.steps) - 3
        x2 = channels // 2 if self.second else 0
        options: dict[str, Any] = {"units": self.units, "epsilon": 1e-2, "x2": x2} | self.options
        case = group_norm_cases.Case(1, rows, channels, channels // 10, **options)
        return Case(f"group_norm_{short_name(dtype)}_{self.kernel}", NormProblem(case, dtype))


SLABS = (
    Slabs("alone_256_4", 256, 5, 2, 3, options=EVERYTHING),
    Slabs("alone_256_8", 256, 5, 2, 7, second=True),
    Slabs("alone_512_4", 512, 5, 2, 2, options=EVERYTHING),
    Slabs("alone_512_8", 512, 5, 2, 5, second=True),
    Slabs("alone_512_16", 512, 5, 2, 9),
    Slabs("alone_512_16", 512, 10, 1, 34, options=EVERYTHING),  # more than registers hold is read again
    Slabs("measure", 256, 10, 2, 3, splits=2, units=2, options=EVERYTHING),
    Slabs("apply", 256, 10, 2, 10, splits=2, units=2, second=True),
    Slabs("apply", 256, 10, 1, 2, splits=72, units=36, options={"silu": False}),  # more parts than a wave has lanes
)


def group_norm_kernel_cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for slabs in SLABS:
            yield slabs.case(dtype)
        for kernel, units in (("general", 1), ("general_measure", 6)):
            case = group_norm_cases.Case(1, 40, 33, 3, x2=10, units=units, **EVERYTHING)
            yield Case(f"group_norm_{short_name(dtype)}_{kernel}", NormProblem(case, dtype))
        case = group_norm_cases.Case(1, 70 * 17 - 1, 12, 2, units=35)
        yield Case(f"group_norm_{short_name(dtype)}_general_apply", NormProblem(case, dtype))
