"""GroupNorm's GPU kernels, run thread by thread on simulated machines, against float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support import native
from support.drawn import Generator, drawn, name_of
from support.group_norm_cases import (
    DEVICES,
    Case,
    Simulation,
    Tensors,
    draw_case,
    draw_tensors,
    exact,
    exact_sum,
    make_tensors,
    simulate,
    simulator,
    tolerance,
)

EVERYTHING = {"skip": True, "bias": True, "embedding": True, "sum": True}

CASES = [
    # The UNet's channels and groups, with fewer pixels.
    Case(2, 64, 320),
    Case(2, 49, 640, silu=False),
    Case(2, 30, 960, x2=320),
    Case(1, 64, 1280, **EVERYTHING),
    Case(1, 33, 1920, x2=640, bias=True, embedding=True),
    Case(1, 16, 2560, x2=1280, skip=True, sum=True),
    # The VAE's, on few compute units, so that rows are split, put into shared memory and read twice.
    Case(1, 2500, 128, units=1),
    Case(1, 1500, 128, units=1, **EVERYTHING),
    Case(1, 1111, 256, units=2, skip=True),
    Case(1, 700, 512, units=1, bias=True),
    Case(1, 1300, 128, units=3, sum=True),
    # More slabs than fit at a time, which take turns.
    Case(1, 1500, 256, units=1),
    Case(2, 777, 128, units=1, **EVERYTHING),
    # Channels of a group from 4 to 80, numbers of groups from 8 to 64, images from 1 to 16, odd numbers of pixels.
    Case(1, 77, 64, 16, silu=False),
    Case(3, 21, 448, 64),
    Case(16, 9, 144, 16, **EVERYTHING),
    Case(5, 37, 88, 8),
    Case(1, 101, 640, 8, units=8),
    Case(2, 1, 320),
    Case(1, 150, 48, 8, x2=16, units=4, **EVERYTHING),
    # For the general variant: odd channels, too many groups in a vector, a second input that cuts one, large groups.
    Case(2, 35, 60, 4),
    Case(1, 19, 33, 3, x2=10, units=24, **EVERYTHING),
    Case(1, 40, 40, 40),
    Case(1, 70, 40, 8, silu=False),
    Case(2, 12, 80, 8, x2=12),
    Case(1, 50, 320, 1, units=6, **EVERYTHING),
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["fp16", "fp32"])
@pytest.mark.parametrize("machine", native.MACHINES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_variant_is_exact(case: Case, machine: str, dtype: Any) -> None:
    """S is the sum rounded once, and Y normalizes that S, within rounding."""
    simulation = simulate(machine, case, dtype)
    tensors = simulation.tensors
    total = exact_sum(tensors)
    for variant in simulation.variants():
        y, stored = simulation.run(variant)
        source = total.astype(dtype)
        if stored is not None:
            # Three float32 additions before the rounding, which they may tip over at a tie.
            bound = 2.0**-22 * (3 + np.abs(total)) + (0.5 * np.spacing(np.abs(source)) if dtype == np.float16 else 0)
            assert (np.abs(stored - total) <= bound).all(), variant
            source = stored
        expected, error = exact(source, tensors.gamma, tensors.beta, case.groups, case.silu)
        assert (np.abs(y - expected) <= tolerance(expected, error, dtype)).all(), variant


@dataclass(frozen=True)
class Drawn:
    seed: int
    machine: str
    dtype: Any
    case: Case

    def __str__(self) -> str:
        return f"{self.machine}-{name_of(self.dtype)}-{self.case}"


def draw(rng: Generator, seed: int) -> Drawn:
    dtype = (np.float16, np.float32)[seed // len(native.MACHINES) % 2]
    return Drawn(seed, native.MACHINES[seed % len(native.MACHINES)], dtype, draw_case(rng, 30000, 1280))


@drawn(160, draw)
def test_any_problem(case: Drawn) -> None:
    """Any sizes and epsilon, by every variant and the general one, waves in any order. The sum is exact."""
    tensors, problem = draw_tensors(case.case, case.dtype, case.seed), case.case
    simulation = Simulation(case.machine, problem, case.dtype, tensors, order=case.seed)
    source = exact_sum(tensors).astype(case.dtype)
    expected, error = exact(source, tensors.gamma, tensors.beta, problem.groups, problem.silu, problem.epsilon)
    allowed = tolerance(expected, error, case.dtype)
    for variant in dict.fromkeys([*simulation.variants(), "general"]):
        y, stored = simulation.run(variant)
        assert stored is None or np.array_equal(stored, source), variant
        assert (np.abs(y - expected) <= allowed).all(), variant


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["fp16", "fp32"])
@pytest.mark.parametrize("machine", ["mfma", "mma_sync"])
def test_mean_far_above_deviation(machine: str, dtype: Any) -> None:
    """Where E[x^2] - E[x]^2 in float32 has no digit left: 10^6 less 10^6."""
    for case in (
        Case(1, 400, 320, silu=False, mean=1000, units=16),
        Case(1, 2000, 128, silu=False, mean=1000, units=1),
        Case(2, 35, 60, 4, silu=False, mean=-1000),
    ):
        simulation = simulate(machine, case, dtype)
        tensors = simulation.tensors
        expected, error = exact(tensors.x, tensors.gamma, tensors.beta, case.groups, case.silu)
        for variant in simulation.variants():
            y, _ = simulation.run(variant)
            assert (np.abs(y - expected) <= tolerance(expected, error, dtype)).all(), variant


@pytest.mark.parametrize("machine", ["mfma", "mma_sync"])
def test_what_rounding_takes_from_a_mean_is_not_lost(machine: str) -> None:
    """Float32 holds a mean of 1000 within 2^-15; where one block has a group, its values are together off by less.

    Lanes' means are rounded, too, but independently. A group has 24 of them or more: their mean's error has a standard
    deviation of 2^-15 / sqrt(3 * 24), four of which are half of 2^-15.
    """
    case = Case(1, 400, 320, silu=False, mean=1000, units=1)
    simulation = simulate(machine, case, np.float32)
    tensors = simulation.tensors
    expected, _ = exact(tensors.x, tensors.gamma, tensors.beta, case.groups, case.silu)
    grouped = tensors.x.astype(np.float64).reshape(-1, case.groups, 10)
    mean, deviation = grouped.mean((0, 2)), grouped.std((0, 2))
    assert np.abs(mean - mean.astype(np.float32)).max() > 0.8 * 2.0**-15
    alone = [name for name in simulation.variants() if name.endswith("splits=1")]
    for variant in [*alone, "general"]:
        y, _ = simulation.run(variant)
        off = ((y - expected) / tensors.gamma).reshape(-1, case.groups, 10).mean((0, 2)) * deviation
        assert np.abs(off).max() < 0.5 * 2.0**-15, variant


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["fp16", "fp32"])
@pytest.mark.parametrize("machine", ["mfma", "mma_sync"])
def test_outlier_first(machine: str, dtype: Any) -> None:
    """The values that the sums are taken as distances to may lie anywhere: 16 rows long, 17 times the rounding then."""
    for case in (Case(1, 300, 320, silu=False, units=16), Case(1, 2000, 128, silu=False, units=1)):
        tensors = make_tensors(case, dtype)
        tensors.x[:, 0, :] = 10000
        expected, error = exact(tensors.x, tensors.gamma, tensors.beta, case.groups, case.silu)
        error += 17 * 2.0**-23 * np.abs(expected)
        simulation = Simulation(machine, case, dtype, tensors)
        for variant in simulation.variants():
            y, _ = simulation.run(variant)
            assert (np.abs(y - expected) <= tolerance(expected, error, dtype)).all(), variant


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["fp16", "fp32"])
@pytest.mark.parametrize(
    "case",
    [Case(1, 70, 320, silu=False, units=16), Case(1, 1500, 128, silu=False, units=1), Case(1, 35, 60, 4, silu=False)],
    ids=str,
)
def test_equal_values_give_beta(case: Case, dtype: Any) -> None:
    """Variance zero: 1 / sqrt(epsilon) times any rounding error of the mean would show."""
    tensors = make_tensors(case, dtype)
    tensors.x[:] = 1000.1
    for machine in native.MACHINES:
        simulation = Simulation(machine, case, dtype, tensors)
        for variant in simulation.variants():
            y, _ = simulation.run(variant)
            assert np.array_equal(y, np.broadcast_to(tensors.beta.astype(dtype), y.shape)), (machine, variant)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "case",
    [Case(2, 70, 320, units=16), Case(1, 1500, 128, units=1), Case(1, 37, 88, 8), Case(1, 35, 60, 4)],
    ids=str,
)
def test_infinity_stays_in_its_group(case: Case, value: float) -> None:
    """Its group becomes NaN, as mean and variance are; all others keep their bits, a lane's other group too."""
    clean = make_tensors(case, np.float16)
    size = case.channels // case.groups
    for channel in (0, size - 1, case.channels - 1):
        dirty = Tensors(clean.x.copy(), clean.gamma, clean.beta)
        dirty.x[0, case.hw // 2, channel] = value
        group = channel // size
        own = np.zeros(clean.x.shape, bool)
        own[0, :, group * size : (group + 1) * size] = True
        for machine in ("mfma", "mma_sync"):
            without, within = (Simulation(machine, case, np.float16, tensors) for tensors in (clean, dirty))
            for variant in without.variants():
                expected, y = without.run(variant)[0], within.run(variant)[0]
                assert np.isnan(y[own]).all(), variant
                assert np.array_equal(y[~own].view(np.uint16), expected[~own].view(np.uint16)), variant


@pytest.mark.parametrize("machine", native.MACHINES)
def test_launches_take_turns_on_one_workspace(machine: str) -> None:
    """As graphs replay them: shapes and variants in any order, nothing cleared in between, the same bits every time."""
    cases = [Case(2, 130, 320, units=32), Case(1, 900, 128, units=2), Case(1, 100, 33, 3, units=24), Case(1, 64, 1280)]
    sizes = [simulate(machine, case, np.float16).workspace_bytes() for case in cases]
    workspace = np.zeros(max(sizes), np.uint8)
    shared = [Simulation(machine, c, np.float16, make_tensors(c, np.float16), workspace) for c in cases]
    alone = [simulate(machine, case, np.float16) for case in cases]
    launched = 0
    for _ in range(3):
        for ours, fresh in zip(shared, alone, strict=True):
            for variant in ours.variants():
                ours.launch(variant)
                expected, _ = fresh.run(variant)
                assert np.array_equal(ours.y.array.view(np.uint16), expected.view(np.uint16)), variant
                launched += sum(launch.cooperative for launch in ours.launches(variant))
    # Launches whose blocks exchange statistics, each of which moves the counter on by 2^16, whatever its grid.
    assert (launched > 20) == (machine == "mma_sync")
    assert workspace[:8].view(np.uint64)[0] == launched << 16


def test_two_launches_leave_no_marks() -> None:
    """Blocks that later exchange statistics in the same memory wait for their launch's mark above each number: what two
    launches leave there has no launch's."""
    simulation = simulate("mma_sync", Case(1, 130, 320, units=32), np.float32)
    for name in simulation.variants():
        if name.startswith("twice"):
            simulation.workspace[:] = 0
            simulation.run(name)
            numbers, marks = simulation.workspace[128 : simulation.workspace_bytes()].view(np.uint32).reshape(-1, 2).T
            assert numbers.any()
            assert not marks.any(), name


@pytest.mark.parametrize("machine", native.MACHINES)
def test_no_block_waits_for_another_but_in_a_cooperative_launch(machine: str) -> None:
    """A block that waited for one that has no room would do so for ever; AMD GPUs have no launch that gives it room."""
    for case in (Case(2, 130, 320, units=32), Case(1, 900, 128, units=2, sum=True), Case(1, 100, 33, 3, units=24)):
        simulation = simulate(machine, case, np.float16)
        simulation.most_blocks()
        for variant in simulation.variants():
            simulation.run(variant)
            together = simulation.together(variant)
            assert (simulation.most_blocks() > 1) == together, variant
            assert not together or machine == "mma_sync"
            # A device that has too little room, or no such launch, has a variant that needs none.
        assert not all(map(simulation.together, simulation.variants()))


UNET_CHANNELS = {
    4096: (320, 640, 960),
    1024: (320, 640, 960, 1280, 1920),
    256: (640, 1280, 1920, 2560),
    64: (1280, 2560),
}
UNET = [(2, hw, channels) for hw, widths in UNET_CHANNELS.items() for channels in widths]
VAE = [
    (1, side * side, channels)
    for side, channels in ((512, 128), (512, 256), (256, 256), (256, 512), (128, 512), (64, 512))
]


def shape_only(machine: str, images: int, hw: int, channels: int, groups: int = 32) -> Simulation:
    """No memory behind the pointers: for questions about the geometry."""
    simulation = simulate(machine, Case(images, 1, channels, groups), np.float16)
    simulation.problem.hw = hw
    return simulation


@pytest.mark.parametrize("machine", native.MACHINES)
def test_geometry_of_the_real_shapes(machine: str) -> None:
    units = DEVICES[machine][1]
    most = {tuple(row[:3]): row[3] for row in instances(machine)}
    for shape in [*UNET, *VAE, (1, 512 * 512, 64, 16)]:  # the last one is a single slab
        simulation = shape_only(machine, *shape)
        names = simulation.variants()
        assert 2 <= len(set(names)) <= 11, shape
        assert len(set(names)) == len(names), shape
        for name in names:
            launches = simulation.launches(name)
            if not simulation.together(name):
                assert len(launches) == 1 + name.startswith("twice")
                continue
            for launch in launches:
                instance = tuple(int(part) for part in launch.kernel.split("_")[-3:])
                assert launch.threads == instance[0]
                assert launch.x * launch.y <= units * most[instance], (shape, name)  # all of them resident
                assert launch.x <= units or instance == ONCE, (shape, name)
            assert sum(launch.y for launch in launches) * int(name.split("lanes=")[1].split("/")[0]) == (
                shape[0] * shape[2] // 8
            )


def test_more_than_65536_blocks() -> None:
    """32 images of 512 x 512 x 256: no more blocks than a device holds where they wait, nor slabs than a grid."""
    for machine in native.MACHINES:
        simulation = shape_only(machine, 32, 512 * 512, 256)
        for name in simulation.variants():
            for launch in simulation.launches(name):
                assert launch.y <= 65535
                assert not launch.cooperative or launch.x * launch.y <= 4 * DEVICES[machine][1]


@pytest.mark.parametrize("machine", native.MACHINES)
def test_more_slabs_than_a_grid_is_high(machine: str) -> None:
    """80,000 slabs of 64 bytes a pixel, 40,000 of 128: a variant needs no cooperative launch even so."""
    simulation = shape_only(machine, 20_000, 96 * 96, 128)
    names = simulation.variants()
    assert not all(map(simulation.together, names))
    assert all(launch.y <= 65535 for name in names for launch in simulation.launches(name))


@pytest.mark.parametrize("machine", ["mfma", "wmma_gfx11", "wmma_gfx12"])
def test_no_block_reads_a_slab_twice_where_two_launches_can(machine: str) -> None:
    """More slabs than compute units, 320 KiB each: the shipped choice has several blocks a slab."""
    simulation = shape_only(machine, 80, 64 * 64, 320)
    measure, apply = simulation.launches(simulation.variants()[0])
    assert measure.x == apply.x == 4
    assert measure.y == apply.y == 80 * 4


@pytest.mark.parametrize("shape", UNET, ids=str)
def test_unet_is_read_once_by_most_of_an_h100(shape: tuple[int, int, int]) -> None:
    """The shipped choice: every row in registers; where a slab is split, nine in ten of the 132 multiprocessors."""
    hw = shape[1]
    simulation = shape_only("mma_sync", *shape)
    name = simulation.variants()[0]
    [(kernel, blocks, slabs, threads, _)] = simulation.launches(name)
    rows, lanes = int(kernel.split("_")[4]), int(name.split("lanes=")[1].split("/")[0])
    split_rows = -(-hw // blocks) if slabs > 1 else hw
    assert -(-split_rows // (threads // lanes)) <= rows
    if slabs > 1:
        assert blocks * slabs >= 0.9 * 132
        assert lanes * 16 % 32 == 0  # no sector of 32 bytes belongs to two tiles
    else:
        assert hw * lanes * 16 <= 24 << 10 or blocks >= 132


def test_unknown_variant_is_an_error() -> None:
    simulation = simulate("mma_sync", Case(1, 8, 320), np.float16)
    with pytest.raises(AssertionError, match=r"^GroupNorm has no variant 512-4-0/lanes=7/splits=1$"):
        simulation.launch("512-4-0/lanes=7/splits=1")


ONCE = (128, 12, 20)
"""The instance that keeps most of a tensor, slab after slab where it cannot keep all."""


def once_of(simulation: Simulation) -> list[str]:
    """Variants of that instance that read every row once."""
    _, rows, kept = ONCE
    found = []
    for name in simulation.variants():
        kernel, blocks, _, threads, _ = simulation.launches(name)[0]
        lanes = int(name.split("lanes=")[1].split("/")[0])
        split_rows = math.ceil(simulation.problem.hw / blocks)
        steps = math.ceil(split_rows / (threads // lanes))
        if kernel.endswith("128_12_20") and steps <= rows + kept:
            found.append(name)
    return found


@pytest.mark.parametrize("shape", VAE[:4], ids=str)
def test_vae_is_read_once_by_an_h100(shape: tuple[int, int, int]) -> None:
    """The shipped choice above 16 MiB: a slab, a cache line of each pixel, fits the blocks that are there at a time."""
    simulation = shape_only("mma_sync", *shape)
    name = simulation.variants()[0]
    assert name in once_of(simulation)
    assert "lanes=8/" in name
    assert (4 * 132) % simulation.launches(name)[0].x == 0  # whole slabs fill the device


def test_slabs_take_turns_where_not_all_fit() -> None:
    """A launch has as many blocks as four, which are on the device together, and the others follow."""
    for case in (Case(1, 1500, 256, units=1), Case(2, 777, 128, units=1, **EVERYTHING)):
        simulation = simulate("mma_sync", case, np.float16)
        [name] = once_of(simulation)
        launches = simulation.launches(name)
        assert len(launches) > 1
        assert all(launch.x * launch.y <= 4 for launch in launches)
        simulation.most_blocks()
        simulation.run(name)
        assert 1 < simulation.most_blocks() <= 4


def test_teams_of_blocks() -> None:
    """More blocks a slab than a wave gathers parts of at a time."""
    case = Case(1, 5000, 64, 16, mean=100, units=41)
    tensors = draw_tensors(case, np.float16, 0)  # whose last row lies far off: its block is a smaller part than others
    simulation = Simulation("mma_sync", case, np.float16, tensors)
    name = once_of(simulation)[0]
    [launch] = simulation.launches(name)
    assert launch.x > 160
    simulation.most_blocks()
    y, _ = simulation.run(name)
    assert simulation.most_blocks() == launch.x
    expected, error = exact(tensors.x, tensors.gamma, tensors.beta, case.groups, case.silu)
    assert (np.abs(y - expected) <= tolerance(expected, error, np.float16)).all()


def instances(machine: str) -> list[list[int]]:
    text = simulator(machine).simulated_group_norm_instances().decode()
    return [[int(part) for part in line.split()] for line in text.splitlines()]
