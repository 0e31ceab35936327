"""GroupNorm for tests: problems with their tensors, run on the simulated machines, and their results in float64."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from support import native
from support.drawn import Generator, chance, epsilon_and_spread, grid, near, unit_of
from support.problems import problem

Array = NDArray[Any]

DEVICES = {
    "mfma": ("gfx942", 304),
    "wmma_gfx11": ("gfx1100", 48),
    "wmma_gfx12": ("gfx1201", 32),
    "mma_sync": ("sm_90", 132),
}
"""A device for each simulated machine: architecture and compute units."""

GUARD = 64
"""Bytes around outputs that nobody may touch."""


@dataclass(frozen=True)
class Case:
    """Shapes and which optional tensors there are; ``x2`` is how many of the channels come from the second input."""

    images: int
    hw: int
    channels: int
    groups: int = 32
    silu: bool = True
    x2: int = 0
    skip: bool = False
    bias: bool = False
    embedding: bool = False
    sum: bool = False
    mean: float = 0.0
    units: int | None = None
    epsilon: float = 1e-5
    spread: float = 1.0

    def __str__(self) -> str:
        flags = "".join("-" + name for name in ("silu", "skip", "bias", "embedding", "sum") if getattr(self, name))
        values = (
            f"-{self.mean:g}" if self.spread == 1 else f"-e{self.epsilon:.0e}-mean{self.mean:.0e}-std{self.spread:.0e}"
        )
        return f"{self.images}x{self.hw}x{self.channels}+{self.x2}/{self.groups}{flags}{values}-{self.units}"


@dataclass
class Tensors:
    x: Array
    gamma: Array
    beta: Array
    skip: Array | None = None
    bias: Array | None = None
    embedding: Array | None = None


def make_tensors(case: Case, dtype: Any, seed: int = 0) -> Tensors:
    random = np.random.default_rng(seed)
    full, vector = (case.images, case.hw, case.channels), (case.channels,)

    def draw(there: bool, *shape: int) -> Array | None:
        return random.normal(size=shape).astype(dtype) if there else None

    return Tensors(
        (random.normal(size=full) + case.mean).astype(dtype),
        random.normal(size=vector).astype(np.float32),
        random.normal(size=vector).astype(np.float32),
        draw(case.skip, *full),
        draw(case.bias, *vector),
        draw(case.embedding, case.images, case.channels),
    )


def draw_case(rng: Generator, most: int, most_channels: int) -> Case:
    """Any shape of up to ``most`` elements, with any optional tensors; see :func:`drawn.epsilon_and_spread`.

    Half of the cases have whole vectors of channels; so has a second input of theirs more often than not. Some have
    groups of an element more or less than a block of elements, of the general kernel and of the CPU's.
    """
    blocks = chance(rng, 0.15)
    size = 1 if blocks else near(rng, (1, 2, 4, 8, 10, 16, 20, 32), 81)
    groups = int(rng.integers(1, 5)) if blocks else int(rng.integers(1, max(1, min(64, most_channels // size)) + 1))
    if not blocks and chance(rng):
        groups = -(-groups // (8 // math.gcd(8, size))) * (8 // math.gcd(8, size))
    channels = size * groups
    images = int(rng.integers(1, 4))
    rows = (256, 1024, 4096) if blocks else (1, 2, 3, 8, 16, 25, 32, 64, 100, 128)
    hw = near(rng, rows, max(1, most // (images * channels)))
    x2 = int(rng.integers(1, channels)) if channels > 1 and chance(rng, 0.3) else 0
    if channels % 8 == 0 and chance(rng, 0.7):
        x2 = x2 // 8 * 8
    epsilon, spread = epsilon_and_spread(rng)
    mean = spread * float(rng.choice([0.0, 1.0, -30.0]))
    flags = {name: chance(rng) for name in ("silu", "bias", "embedding", "sum")}
    skip = chance(rng)
    units = int(rng.choice([1, 2, 3, 8, 24, 64]))
    return Case(
        images, hw, channels, groups, x2=x2, skip=skip, mean=mean, units=units, epsilon=epsilon, spread=spread, **flags
    )


def draw_tensors(case: Case, dtype: Any, seed: int) -> Tensors:
    """Values of :func:`drawn.grid`, of which the last pixel's first and last channel of each group lie far off.

    Leaving out any one of those, or counting it for another group, changes a group's statistics by far more than
    rounding does.
    """
    rng = np.random.default_rng([seed, 1])
    full, size = (case.images, case.hw, case.channels), case.channels // case.groups

    def draw(there: bool, *shape: int) -> Array | None:
        return grid(rng, shape, dtype, case.spread) if there else None

    x = grid(rng, full, dtype, case.spread, case.mean)
    x[:, -1, ::size] -= dtype(8 * unit_of(case.spread))
    x[:, -1, size - 1 :: size] += dtype(16 * unit_of(case.spread))
    gamma, beta = (rng.normal(size=case.channels).astype(np.float32) for _ in range(2))
    skip, bias = draw(case.skip, *full), draw(case.bias, case.channels)
    return Tensors(x, gamma, beta, skip, bias, draw(case.embedding, case.images, case.channels))


def exact_sum(tensors: Tensors) -> Array:
    """X + skip + bias + embedding in float64, (N, H*W, C)."""
    total = tensors.x.astype(np.float64)
    if tensors.skip is not None:
        total = total + tensors.skip
    if tensors.bias is not None:
        total = total + tensors.bias
    if tensors.embedding is not None:
        total = total + tensors.embedding[:, None]
    return total


def exact(
    total: Array, gamma: Array, beta: Array, groups: int, silu: bool, epsilon: float = 1e-5
) -> tuple[Array, Array]:
    """Y in float64 for S = ``total`` (N, H*W, C), and the error that float32 arithmetic may make on the way.

    Rounding what is multiplied and added costs some 2^-24 of each term. Every lane and block holds its mean in float32
    before they are merged, as distances to the first one: 2^-24 of the mean and of those distances is lost.
    """
    images, _, channels = total.shape
    grouped = total.astype(np.float64).reshape(images, -1, groups, channels // groups)
    mean = grouped.mean((1, 3), keepdims=True)
    distance = grouped - mean
    deviation = np.sqrt((distance**2).mean((1, 3), keepdims=True) + epsilon)
    scaled = (distance / deviation).reshape(total.shape) * gamma
    largest = np.abs(mean) + np.abs(distance).max((1, 3), keepdims=True) / 2
    lost = np.broadcast_to(largest / deviation, grouped.shape).reshape(total.shape) * np.abs(gamma)
    y = scaled + beta
    error = 2.0**-20 * (np.abs(scaled) + np.abs(beta)) + 2.0**-23 * lost
    return (y / (1 + np.exp(-y)) if silu else y), error


def tolerance(y: Array, error: Array, dtype: Any) -> Array:
    """``error`` and the rounding of the result: half a unit in float16's last place; float32's is within ``error``."""
    if dtype != np.float16:
        return error
    return error + 0.5 * np.spacing(np.abs(y).astype(np.float16)).astype(np.float64)


@cache
def simulator(machine: str) -> ctypes.CDLL:
    library = native.simulated(machine)
    library.simulated_group_norm_instances.restype = ctypes.c_char_p
    library.simulated_group_norm_workspace.restype = ctypes.c_size_t
    return library


def address(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


class Guarded:
    """An array of NaN bytes with guard bytes on both sides."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = np.full(size + 2 * GUARD + 64, 0xFF, np.uint8)
        start = -memory.ctypes.data % 64
        self.bytes = memory[start : start + size + 2 * GUARD]
        self.array: Array = self.bytes[GUARD : GUARD + size].view(dtype).reshape(shape)

    def check(self) -> None:
        around = np.concatenate([self.bytes[:GUARD], self.bytes[-GUARD:]])
        assert (around == 0xFF).all(), "written beyond the output"


class Launch(NamedTuple):
    """One of a variant's, of a grid of (x, y) blocks."""

    kernel: str
    x: int
    y: int
    threads: int
    cooperative: bool


class Simulation:
    """A case on one machine: tensors bound to a Problem, launched as often as wanted on one workspace.

    ``order`` decides which of a block's waves goes on when, between two barriers; 0 is all of them in step. The
    geometry is that of ``architecture``, or of the machine's in :data:`DEVICES`.
    """

    def __init__(
        self,
        machine: str,
        case: Case,
        dtype: Any,
        tensors: Tensors,
        workspace: Array | None = None,
        order: int = 0,
        architecture: str | None = None,
    ) -> None:
        self.library = simulator(machine)
        self.order = ctypes.c_uint64(order)
        usual, units = DEVICES[machine]
        self.device = ((architecture or usual).encode(), case.units or units)
        self.wave = 64 if machine == "mfma" else 32
        self.half = int(dtype == np.float16)
        own = case.channels - case.x2
        self.inputs = [np.ascontiguousarray(tensors.x[..., :own]), np.ascontiguousarray(tensors.x[..., own:])]
        self.tensors = tensors
        self.y = Guarded(tensors.x.shape, dtype)
        self.sum = Guarded(tensors.x.shape, dtype) if case.sum else None
        names = ("skip", "bias", "embedding", "gamma", "beta")
        self.problem: Any = problem(
            "group_norm",
            x=address(self.inputs[0]),
            x2=address(self.inputs[1] if case.x2 else None),
            **{name: address(getattr(tensors, name)) for name in names},
            y=address(self.y.array),
            sum=address(self.sum.array if self.sum else None),
            epsilon=case.epsilon,
            silu=int(case.silu),
            images=case.images,
            hw=case.hw,
            channels=case.channels,
            x_channels=own,
            groups=case.groups,
        )
        self.workspace = np.zeros(self.workspace_bytes() + GUARD, np.uint8) if workspace is None else workspace
        self.problem.workspace = address(self.workspace)

    def workspace_bytes(self) -> int:
        return int(self.library.simulated_group_norm_workspace(ctypes.byref(self.problem), self.half, *self.device))

    def variants(self) -> list[str]:
        text = self.library.simulated_variants(*self._where())
        return str(text.decode()).split()

    def _where(self) -> tuple[Any, ...]:
        """Operator, problem and device, as every function of the simulated machine takes them."""
        bytes_of_it = ctypes.c_size_t(ctypes.sizeof(self.problem))
        return (b"group_norm", ctypes.byref(self.problem), bytes_of_it, self.half, *self.device, self.wave)

    def launches(self, variant: str) -> list[Launch]:
        text = self.library.simulated_launches(*self._where(), variant.encode())
        rows = [line.split() for line in text.decode().splitlines()]
        return [
            Launch(name, int(x), int(y), int(threads), bool(int(together))) for name, x, y, threads, together in rows
        ]

    def together(self, variant: str) -> bool:
        """Whether blocks of this variant wait for each other."""
        return any(launch.cooperative for launch in self.launches(variant))

    def launch(self, variant: str) -> None:
        self.library.sdort_body_order(self.order)
        failed = self.library.simulate(*self._where(), variant.encode())
        assert not failed, self.library.simulated_error().decode()

    def most_blocks(self) -> int:
        """Blocks that had to be on the device together since this was last asked, of any simulation on this machine."""
        return int(self.library.sdort_body_most_blocks())

    def run(self, variant: str) -> tuple[Array, Array | None]:
        """Y and S of one launch, whose memory was NaN before."""
        before = [array.tobytes() for array in self.inputs]
        for output in (self.y, self.sum):
            if output:
                output.bytes[:] = 0xFF
        self.launch(variant)
        for output in (self.y, self.sum):
            if output:
                output.check()
        assert (self.workspace[self.workspace_bytes() :] == 0).all(), "written beyond the workspace"
        assert before == [array.tobytes() for array in self.inputs], "written to an input"
        return self.y.array.copy(), self.sum.array.copy() if self.sum else None


def simulate(machine: str, case: Case, dtype: Any, seed: int = 0) -> Simulation:
    return Simulation(machine, case, dtype, make_tensors(case, dtype, seed))
