"""Decoding in slices and tiles: what it costs, what it changes, when it is chosen."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from support.nvidia import Card, nvml
from support.tiny_pipeline import Tiny

from sdort.errors import MemoryShortageError, ProviderError
from sdort.first_use.command import run
from sdort.generation.latents import decode
from sdort.generation.latents.decode import Decoder, Plan, Planner, in_tiles, ramp, starts
from sdort.generation.latents.graph_memory import GraphMemory
from sdort.generation.pipeline import load_pipeline
from sdort.generation.requests.request import Request
from sdort.graph.signature import TensorSpec
from sdort.machine.gpus import free_memory
from sdort.machine.system import System
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.failures import run_error
from sdort.workload.cases import Case

Array = np.ndarray[Any, Any]
ON_CPU = RuntimeOptions("cpu")


# --- tiles ---


def pointwise(latents: Array) -> Array:
    """Every pixel depends on its own latent alone."""
    return np.repeat(np.repeat(latents[:, :3] * 2 + 1, 4, axis=2), 4, axis=3)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 32), (64, 100), (40, 17), (95, 200)])
def test_tiles_of_a_pointwise_decoder_make_the_whole(height: int, width: int) -> None:
    latents = np.random.default_rng(0).normal(size=(2, 4, height, width)).astype(np.float32)
    seen: list[tuple[int, ...]] = []

    def run(part: Array) -> Array:
        seen.append(part.shape)
        return pointwise(part)

    whole = pointwise(latents)
    tiles: list[tuple[int, int]] = []
    decoded = in_tiles(partial(map, run), latents, 32, (1, 4), lambda *tile: tiles.append(tile))
    np.testing.assert_allclose(decoded, whole, rtol=1e-5, atol=1e-5)
    assert tiles == [(number, len(seen)) for number in range(1, len(seen) + 1)]
    assert {shape[2:] for shape in seen} == {(min(height, 32), min(width, 32))}  # one shape: compiled once


@pytest.mark.parametrize("length", [33, 40, 56, 57, 64, 100, 1000])
def test_tiles_cover_everything_and_overlap_by_a_quarter(length: int) -> None:
    found = starts(length, 32)
    assert found[0] == 0
    assert found[-1] == length - 32
    assert all(after - before <= 24 for before, after in itertools.pairwise(found))
    assert len(found) == -(-(length - 32) // 24) + 1  # no more than needed


def test_weights_rise_and_fall_only_towards_neighbours() -> None:
    assert (ramp(8, 3, before=False, after=False) == 1).all()
    np.testing.assert_allclose(ramp(8, 3, before=True, after=False), [0.25, 0.5, 0.75, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(ramp(8, 3, before=True, after=True), [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25])


@pytest.mark.parametrize(("height", "width"), [(32, 56), (56, 32), (56, 56), (100, 40)])
def test_no_seam_is_visible_where_tiles_differ(height: int, width: int) -> None:
    """Each tile comes out in a grey of its own, which changes step by step into its neighbour's."""
    greys: list[float] = []

    def run(part: Array) -> Array:
        greys.append(float(len(greys) % 2))
        return np.full((1, 3, part.shape[2] * 4, part.shape[3] * 4), greys[-1], np.float32)

    image = in_tiles(partial(map, run), np.zeros((1, 4, height, width), np.float32), 32, (1, 4))[0, 0]
    assert len(greys) > 1
    assert (image.min(), image.max()) == (0, 1)
    for axis in (0, 1):
        assert np.abs(np.diff(image, axis=axis)).max() <= 1.5 / (8 * 4)  # a quarter of a tile, in pixels


def test_tiles_are_close_to_the_whole(tiny: Tiny) -> None:
    """72 x 96 latents in tiles of 64 x 64; each tile has its own means and variances, and its own attention."""
    latents = np.random.default_rng(3).normal(size=(1, 4, 72, 96)).astype(np.float32)
    whole, tiled = (next(decoder(tiny).decode(latents, Plan(tile=tile))) for tile in (None, 64))
    assert 0 < np.abs(tiled - whole).mean() < whole.std() / 30


def test_slices_are_the_same_images(tiny: Tiny) -> None:
    pipeline = load_pipeline(tiny.onnx, ON_CPU)
    request = Request("a house", steps=2, seed=3, num_images=3)
    together = [image.pixels for image in pipeline.generate(request)]
    sliced = [image.pixels for image in pipeline.generate(Request(**{**request.__dict__, "vae_slicing": True}))]
    assert str(pipeline.decoded) == "image by image"
    for one, other in zip(together, sliced, strict=True):
        assert np.abs(one.astype(int) - other).max() <= 1


# --- what is chosen ---


def decoder(tiny: Tiny) -> Decoder:
    pipeline = load_pipeline(tiny.onnx, ON_CPU)
    return Decoder(pipeline.sessions["vae_decoder"], pipeline.folder.vae, pipeline.folder.vae_factor)


def test_memory_decides_where_nothing_is_asked(tiny: Tiny) -> None:
    found, shape = decoder(tiny), (4, 96, 128)

    def plan(share: float, tiling: bool | None = None, slicing: bool | None = None) -> Plan:
        return found.plan(shape, tiling, slicing, int(found.bytes_for(shape, Plan()) * share / decode.SHARE))

    one, tiled = (found.bytes_for(shape, p) / found.bytes_for(shape, Plan()) for p in (Plan(True), Plan(True, 64)))
    assert one == pytest.approx(1 / 4)
    assert plan(1.01) == Plan()
    assert plan(0.99) == plan(one * 1.01) == Plan(slicing=True)
    assert plan(one * 0.99) == plan(tiled * 1.01) == Plan(slicing=True, tile=64)
    assert plan(tiled * 0.99) == plan(0.0) == Plan(slicing=True, tile=32)
    assert plan(0.0, tiling=False, slicing=False) == Plan()
    assert plan(0.0, slicing=False) == Plan(tile=32)
    assert plan(9.0, tiling=True, slicing=True) == Plan(True, 64)
    assert found.plan((1, 8, 8), None, None, None) == Plan()


def test_a_fifth_of_the_free_memory_stays_free(tiny: Tiny) -> None:
    found, shape = decoder(tiny), (1, 96, 128)
    needed = found.bytes_for(shape, Plan())
    assert found.plan(shape, None, None, int(needed * 1.26)) == Plan()
    assert found.plan(shape, None, None, int(needed * 1.24)) == Plan(tile=64)


def test_the_estimate_is_of_the_largest_tensors(tiny: Tiny) -> None:
    """By hand for Stable Diffusion 1.5 in fp16 at 512x512: 2 x 256 + 128 channels of 512 KiB, twice; 8 S^2 is less."""
    found = decoder(tiny)
    found.config, found.factor = {"block_out_channels": [128, 256, 512, 512]}, 8
    element = found.session.inputs["latent_sample"].dtype.itemsize
    assert found.bytes_for((1, 64, 64), Plan()) == 2 * 640 * 512 * 512 * element
    # The attention's scores, and beside them a quarter of the rest.
    assert found.bytes_for((1, 256, 256), Plan()) == 8 * 256**4 + 2 * 640 * 2048 * 2048 * element // 4


def planner(*shape: int | str, dtype: Any = np.float32) -> Planner:
    return Planner(TensorSpec("z", np.dtype(dtype), shape), {"block_out_channels": [128, 256, 512, 512]}, 8)


OPEN = planner("N", 4, "H", "W")
STATIC = planner(2, 4, 64, 64)


def test_a_side_that_is_too_long_is_enough_for_tiles() -> None:
    for size in ((1, 128, 32), (1, 32, 128), (1, 65, 64), (1, 64, 65)):
        assert OPEN.plan(size, True, None, None) == Plan(tile=64)
        assert OPEN.plan(size, None, None, 0) == Plan(tile=32)
    assert OPEN.plan((1, 64, 64), True, None, None) == Plan()
    assert OPEN.plan((1, 64, 33), None, None, 0) == Plan(tile=32)
    assert OPEN.plan((1, 32, 32), None, None, 0) == Plan()


def test_what_was_asked_holds_whatever_memory_says() -> None:
    size = (3, 128, 128)
    for free in (None, 0, 1 << 60):
        assert OPEN.plan(size, False, False, free) == Plan()
        assert OPEN.plan(size, True, True, free) == Plan(True, 64)
        assert OPEN.plan(size, True, False, free) == Plan(False, 64)
        assert OPEN.plan(size, False, True, free) == Plan(True)
    assert OPEN.plan(size, None, True, 0) == Plan(True, 32)
    assert OPEN.plan(size, False, None, 0) == Plan(True)


def test_a_static_decoder_has_tiles_of_its_own_size_alone() -> None:
    assert STATIC.plan((2, 128, 64), True, None, None) == Plan(tile=64)
    assert STATIC.plan((2, 64, 64), True, None, None) == Plan()
    # Other tiles than the one that it was made for it cannot take.
    assert STATIC.plan((1, 64, 64), None, None, 0) == Plan()
    assert STATIC.smaller((1, 64, 64), Plan()) is None
    assert STATIC.part((5, 128, 96), Plan(True, 64)) == (2, 64, 64)


def test_memory_grows_with_images_pixels_and_the_width_of_numbers() -> None:
    one = OPEN.bytes_for((1, 64, 64), Plan())
    assert OPEN.bytes_for((3, 64, 64), Plan()) == 3 * one
    assert OPEN.bytes_for((1, 64, 128), Plan()) == 2 * one
    assert planner("N", 4, "H", "W", dtype=np.float16).bytes_for((1, 64, 64), Plan()) == one // 2
    assert OPEN.bytes_for((5, 128, 128), Plan(True, 64)) == one
    # Where the attention's scores are the most, of all images.
    assert OPEN.bytes_for((3, 256, 256), Plan()) == 3 * OPEN.bytes_for((1, 256, 256), Plan()) > 3 * 8 * 256**4
    fused = Planner(OPEN.latents, OPEN.config, 8, GraphMemory(4, 0))
    assert fused.bytes_for((1, 256, 256), Plan()) == 16 * fused.bytes_for((1, 64, 64), Plan())


def test_a_case_and_its_part_keep_height_and_width_apart() -> None:
    case = Case("vae_decoder", 3, 1024, 768)
    assert OPEN.size(case) == (3, 128, 96)
    assert OPEN.part_of(case, Plan()) == case
    assert OPEN.part_of(case, Plan(True)) == Case("vae_decoder", 1, 1024, 768)
    assert OPEN.part_of(Case("vae_decoder", 3, 1024, 384), Plan(tile=64)) == Case("vae_decoder", 3, 512, 384)


@pytest.mark.parametrize(("tiling", "slicing"), [(None, None), (True, None), (None, False), (False, True)])
def test_memory_is_asked_for_where_something_is_left_to_decide(
    tiling: bool | None, slicing: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def free(vendor: str, device_id: int) -> int:
        asked.append((vendor, device_id))
        return 0

    class Opened:
        provider, options, others = ROCM, RuntimeOptions("rocm", device_id=3), ()
        inputs: ClassVar[dict[str, TensorSpec]] = {"z": OPEN.latents}
        outputs: ClassVar[list[TensorSpec]] = [OPEN.latents]

    monkeypatch.setattr(decode, "free_memory", free)
    opened: Any = Opened()
    plan = decode.choose(Decoder(opened, OPEN.config, 8), opened, (2, 128, 128), tiling, slicing)
    decided = tiling is None or slicing is None
    assert asked == ([("amd", 3)] if decided else [])
    assert plan == OPEN.plan((2, 128, 128), tiling, slicing, 0 if decided else None)


class Failing:
    """A session that runs out of memory with more than so many latent pixels at once."""

    others, provider = (), CPU

    def __init__(self, session: Any, most: int) -> None:
        self.inputs, self.outputs = session.inputs, session.outputs
        self.session, self.most = session, most
        self.runs: list[tuple[int, ...]] = []

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        (latents,) = feeds.values()
        self.runs.append(latents.shape)
        if latents[:, 0].size > self.most:
            raise MemoryShortageError("out of memory", component="vae_decoder")
        return {self.outputs[0].name: self.session.run(feeds)[self.outputs[0].name]}


def test_running_out_of_memory_goes_on_in_smaller_parts(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    found = decoder(tiny)
    latents = np.random.default_rng(0).normal(size=(2, 4, 72, 40)).astype(np.float32)
    whole = list(found.decode(latents, Plan()))
    failing = Failing(found.session, 64 * 40)
    found.session = failing  # type: ignore[assignment]
    parts = list(found.decode(latents, Plan()))
    assert [shape[0] for shape in failing.runs[:2]] == [2, 1]
    assert {shape[2:] for shape in failing.runs[2:]} == {(64, 40)}
    assert len(parts) == 2
    assert found.plan_now == Plan(slicing=True, tile=64)
    assert all(np.abs(a - b).mean() < 0.05 * b.std() for a, b in zip(parts, whole, strict=True))
    told = capsys.readouterr().err
    assert "image by image" in told
    assert "in tiles of 64 x 64 latents" in told


def test_each_smaller_form_takes_less_at_once(tiny: Tiny) -> None:
    found = decoder(tiny)
    assert found.smaller((2, 72, 40), Plan()) == Plan(slicing=True)
    assert found.smaller((1, 72, 40), Plan()) == Plan(True, 64)
    assert found.smaller((1, 64, 64), Plan()) == Plan(True, 32)  # a tile of 64 is all of it
    assert found.smaller((1, 32, 32), Plan()) is None
    assert found.smaller((4, 32, 32), Plan(tile=32)) == Plan(True, 32)
    name, dtype = found.latents.name, found.latents.dtype
    found.latents = TensorSpec(name, dtype, (2, 4, "h", "w"))  # two images at once, whatever is asked
    assert found.smaller((4, 72, 40), Plan()) == Plan(True, 64)
    assert found.bytes_for((4, 72, 40), Plan()) == found.bytes_for((2, 72, 40), Plan(slicing=True))
    found.latents = TensorSpec(name, dtype, (1, 4, 64, 64))
    assert found.smaller((4, 128, 128), Plan(tile=64)) is None


def test_a_static_batch_is_sliced_in_its_own_size(tiny: Tiny) -> None:
    found = decoder(tiny)
    counted = Failing(found.session, 4 * 8 * 8)
    latents = found.latents
    counted.inputs = {latents.name: TensorSpec(latents.name, latents.dtype, (2, 4, "h", "w"))}
    static = Decoder(counted, found.config, found.factor)  # type: ignore[arg-type]
    images = list(static.decode(np.zeros((4, 4, 8, 8), np.float32), Plan(slicing=True)))
    assert len(images) == 4
    assert counted.runs == [(2, 4, 8, 8), (2, 4, 8, 8)]


class Drawn:
    """A session of fp16 whose pixels each are their own latent; of its calls, those in ``fails`` run out of memory."""

    component, others, provider = "vae_decoder", (), CPU

    def __init__(self, batch: int | str, *fails: int) -> None:
        self.inputs = {"z": TensorSpec("z", np.dtype("float32"), (batch, 4, "h", "w"))}
        self.outputs = [TensorSpec("y", np.dtype("float16"), (batch, 3, "8h", "8w"))]
        self.fails, self.sizes = fails, list[int]()

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        self.sizes.append(len(feeds["z"]))
        if len(self.sizes) in self.fails:
            raise MemoryShortageError("out of memory", component=self.component)
        return {"y": pointwise(feeds["z"]).astype(np.float16)}


@pytest.mark.parametrize(
    ("session", "plan", "sizes"),
    [
        (Drawn("n"), Plan(), [4]),
        (Drawn("n"), Plan(slicing=True), [1, 1, 1, 1]),
        (Drawn(2), Plan(), [2, 2]),
        (Drawn(2), Plan(slicing=True), [2, 2]),
        (Drawn(1), Plan(), [1, 1, 1, 1]),
        # What was decoded before memory ran out is not decoded again: the last two images have two tiles each.
        (Drawn("n", 3), Plan(slicing=True), [1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_each_image_comes_once_and_in_order_and_in_fp32(session: Any, plan: Plan, sizes: list[int]) -> None:
    latents = np.random.default_rng(0).normal(size=(4, 4, 72, 8)).astype(np.float32)
    images = list(Decoder(session, OPEN.config, 4).decode(latents, plan))
    assert {image.dtype for image in images} == {np.dtype("float32")}
    np.testing.assert_allclose(images, pointwise(latents), rtol=2e-3, atol=2e-3)  # fp16 has 11 bits
    assert session.sizes == sizes


def test_what_the_smallest_tile_does_not_fit_is_an_error(tiny: Tiny) -> None:
    found = decoder(tiny)
    found.session = Failing(found.session, 10)  # type: ignore[assignment]
    with pytest.raises(MemoryShortageError):
        list(found.decode(np.zeros((1, 4, 80, 80), np.float32), Plan()))


def test_free_memory_is_read_where_the_provider_runs(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("proc/meminfo", "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   16000000 kB\n")
    for node, version, minor in ((0, 0, 0), (1, 110000, 128), (2, 110001, 129)):
        write(
            f"sys/class/kfd/kfd/topology/nodes/{node}/properties",
            f"gfx_target_version {version}\ndrm_render_minor {minor}\n",
        )
    for minor, used in ((128, 10), (129, 300)):
        write(f"sys/class/drm/renderD{minor}/device/mem_info_vram_total", "1000")
        write(f"sys/class/drm/renderD{minor}/device/mem_info_vram_used", str(used))
    system = System(tmp_path, environ={}, management=nvml(Card(total=None), Card(free=512 << 20)))
    assert free_memory(CPU.vendor, 0, system) == 16000000 * 1024
    assert [free_memory(ROCM.vendor, device, system) for device in range(3)] == [990, 700, None]
    assert free_memory(CUDA.vendor, 1, system) == 512 << 20
    assert free_memory(CUDA.vendor, 0, system) is None


# --- what ends a run ---


def test_finished_images_stay_when_a_later_one_fails(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_after(count: int, error: BaseException) -> Callable[..., Any]:
        real, calls = Decoder.decode, iter(range(100))

        def failing(self: Decoder, *args: Any) -> Any:
            if next(calls) >= count:
                raise error
            return real(self, *args)

        return failing

    for error in (
        run_error(RuntimeError("hipErrorIllegalAddress: an illegal memory access"), "unet", ROCM),
        KeyboardInterrupt(),
    ):
        monkeypatch.setattr(Decoder, "decode", fail_after(2, error))
        with pytest.raises(type(error)):
            run(
                tiny.onnx, "a house", steps=1, seed=1, num_images=3, images_at_once=1, provider="cpu",
                output=tmp_path / "out.png", overwrite=True,
            )  # fmt: skip
        monkeypatch.undo()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out-1.png", "out-2.png"]
        assert capsys.readouterr().err.count("wrote") == 2


@pytest.mark.parametrize(
    "text",
    [
        "CUDA failure 700: an illegal memory access was encountered ; GPU=0",
        "HIP failure 719: hipErrorLaunchFailure",
        "CUDNN_STATUS_EXECUTION_FAILED: unspecified launch failure",
    ],
)
def test_a_lost_device_is_named_so(text: str) -> None:
    error = run_error(RuntimeError(text), "unet", ROCM)
    assert isinstance(error, ProviderError)
    assert "rocm lost the GPU" in str(error)
    assert "dmesg" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "Failed to allocate memory for requested buffer of size 9",
        "HIP failure 2: hipErrorOutOfMemory",
        "std::bad_alloc",
        "BFCArena::AllocateRawInternal Available memory of 0 is smaller than requested bytes of 536870912",
    ],
)
def test_exhausted_memory_is_told_apart(text: str) -> None:
    assert isinstance(run_error(RuntimeError(text), "unet", ROCM), MemoryShortageError)
