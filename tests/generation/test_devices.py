"""Several devices that compute an image together. On the CPU each is a session of its own, by the same code."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.tiny_pipeline import Tiny

import sdort
from sdort.batches.ray_cluster import check_workers
from sdort.cli import cli
from sdort.errors import MemoryShortageError, ProviderError, UsageError
from sdort.generation.latents import decode
from sdort.generation.latents.decode import Decoder, Plan, Planner
from sdort.graph.signature import TensorSpec
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.runtime_options import RuntimeOptions, read_devices
from sdort.runtime import probe
from sdort.runtime.environment import device_names
from sdort.runtime.other_devices import OtherDevice, shares, side_by_side
from sdort.runtime.session import Session
from sdort.runtime.step.bound_unet import BoundBuffers

STEPS: dict[str, Any] = {"steps": 2, "seed": 3}


@pytest.fixture(scope="module")
def alone(tiny: Tiny) -> Any:
    return sdort.load(tiny.onnx, provider="cpu")


@pytest.fixture(scope="module")
def shared(tiny: Tiny) -> Any:
    return sdort.load(tiny.onnx, provider="cpu", devices=[0, 1, 2])


def drawn(pipeline: Any, prompt: str = "a cat", **options: Any) -> list[bytes]:
    return [image.pixels.tobytes() for image in pipeline.generate(prompt, **STEPS | options).images]


CASES: dict[str, dict[str, Any]] = {
    "guidance": {},
    "as many samples as devices": {"prompt": "a cat AND a dog"},
    "several images": {"num_images": 4},
    "several images, one by one": {"num_images": 4, "vae_slicing": True},
    "steps through the host": {"scheduler": "heun", "num_images": 2},
    "another prompt on the way": {"prompt": "a [cat:dog:1]"},
    "the outer part alone": {"deep_cache": 2},
    "tiles": {"vae_tiling": True},
}


@pytest.mark.parametrize("case", CASES)
def test_images_are_those_of_one_device(alone: Any, shared: Any, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit: the CPU's kernels compute a sample as they do in a batch."""
    ran: list[Any] = []
    run = BoundBuffers.run

    def noted(self: Any, step: int, whole: bool = True, **options: Any) -> None:
        ran.append(self.session)
        run(self, step, whole, **options)

    monkeypatch.setattr(BoundBuffers, "run", noted)
    monkeypatch.setattr(decode, "TILE_LATENTS", 8)
    monkeypatch.setattr(Planner, "_usual_tile", lambda *_: 8)
    expected, devices = drawn(alone, **CASES[case]), len({*ran})
    ran.clear()
    assert (drawn(shared, **CASES[case]), devices) == (expected, 1)
    assert len({*ran}) == (3 if case in ("as many samples as devices", "several images") else len({*ran}))
    assert len({*ran}) >= 2


def test_every_device_takes_tiles(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    run = Session.run

    def noted(self: Any, feeds: Any) -> Any:
        ran.append(self)
        return run(self, feeds)

    monkeypatch.setattr(Session, "run", noted)
    monkeypatch.setattr(decode, "TILE_LATENTS", 8)
    result = shared.generate("a cat", **STEPS, vae_tiling=True)
    # 16 latents across; two tiles of 10 that share a quarter are 18.
    assert result.decoded == Plan(tile=10)
    assert [sum(session.component == "vae_decoder" for session in {*ran})] == [3]


@pytest.mark.parametrize(
    ("devices", "side", "tile"), [(1, 128, 64), (2, 128, 74), (4, 256, 147), (5, 256, 103), (2, 80, 64)]
)
def test_tiles_are_as_large_as_gives_each_device_one(devices: int, side: int, tile: int) -> None:
    planner = Planner(
        TensorSpec("latents", np.dtype("f4"), ("n", 4, "h", "w")), {"block_out_channels": [1, 1]}, 8, devices=devices
    )
    assert planner.plan((1, side, side), True, True, None).tile == tile
    assert len(decode.starts(side, tile)) ** 2 >= devices
    # Where memory is short, tiles are as small as on one device.
    short = planner.bytes_for((1, 64, 64), Plan()) / decode.SHARE
    assert planner.plan((1, side, side), True, None, int(short * 1.01)).tile == 64


def test_what_is_idle_is_told_once(shared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    drawn(shared, guidance_scale=1.0)
    drawn(shared, guidance_scale=1.0)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "--devices" in line]
    assert line == (
        "--devices: 1 of 3 GPUs compute the steps, which have 1 sample: an image is one sample without guidance and "
        "two with it, and --images-at-once images share a step"
    )
    drawn(shared)
    assert "--devices: 2 of 3 GPUs compute the steps, which have 2 samples:" in capsys.readouterr().err


def test_the_command_line(tiny: Tiny, alone: Any, tmp_path: Path) -> None:
    words = ["run", str(tiny.onnx), "--prompt", "a cat", "--steps", "2", "--seed", "3", "--provider", "cpu", "--json"]
    result = CliRunner().invoke(cli, [*words, "--devices", "0,1", "-o", str(tmp_path / "a.png")])
    assert result.exit_code == 0, result.stderr
    assert "--devices on cpu: 2 sessions share one processor, which makes nothing faster" in result.stderr
    record = json.loads(result.stdout)
    one = alone.generate("a cat", **STEPS)
    assert record["device"] == f"2 x {one.device}"
    result = CliRunner().invoke(cli, [*words, "--devices", "0", "-o", str(tmp_path / "b.png")])
    assert "--devices 0 is one GPU, as --device-id 0: nothing is shared" in result.stderr
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": ""}, "--devices '' is not a whole number"),
        ({"devices": []}, "--devices has no number"),
        ({"devices": "0,x"}, "--devices 'x' is not a whole number from 0 to 1,023"),
        ({"devices": "0,-1"}, "--devices -1 is not"),
        ({"devices": "1,0,1"}, "--devices has 1 twice"),
        ({"devices": "0,1", "device_id": 1}, "--device-id 1 is not the first of --devices"),
        ({"devices": "0,1", "memory": "low"}, "--memory low loads models in turn"),
    ],
)
def test_what_is_no_list_of_devices_is_refused(tiny: Tiny, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        sdort.load(tiny.onnx, provider="cpu", **options)
    assert refused.value.message.startswith(message)
    assert refused.value.hint


def test_forms_of_a_list() -> None:
    of_numpy: Any = np.array([2, 0])
    assert read_devices(" 2, 0") == read_devices([2, 0]) == read_devices(of_numpy) == (2, 0)
    options = RuntimeOptions(devices=[2, 0])
    assert (options.devices, options.device_id, options.other_devices) == ("2,0", 2, (0,))
    assert RuntimeOptions(devices="1", device_id=1, memory="low").all_devices == (1,)
    assert RuntimeOptions(device_id=4).all_devices == (4,)


def test_controls_are_refused(shared: Any, tiny: Tiny, tmp_path: Path) -> None:
    """Before anything of them is read but what a request is made of."""
    from sdort.generation.shared_devices import refuse_shared

    plan: Any = SimpleNamespace(request=SimpleNamespace(control=["one"]))
    with pytest.raises(UsageError, match="--control steers the UNet of one GPU, and --devices has several"):
        refuse_shared(shared._models.folder, plan, 1, shared._models.provider, RuntimeOptions(devices="0,1"))
    refuse_shared(shared._models.folder, plan, 1, shared._models.provider, RuntimeOptions(devices="0"))


def test_workers_of_ray_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdort.batches.ray_cluster.need_packages", lambda *_, **__: None)
    with pytest.raises(UsageError, match="--ray gives each worker a GPU, and --devices an image several"):
        check_workers(RuntimeOptions(devices="0,1"))


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "import_onnxruntime", lambda: None)
    monkeypatch.setattr(
        probe, "_why_not", lambda name, number, *_: f"{name} has no GPU {number}" if number > 1 else None
    )
    options = RuntimeOptions("cuda", devices="0,1")
    assert probe.choose_provider(options) == (CUDA, None)
    with pytest.raises(ProviderError, match="--devices: cuda cannot use GPU 2: cuda has no GPU 2"):
        probe.choose_provider(RuntimeOptions("cuda", devices="0,2"))


def test_shares_of_samples() -> None:
    def sizes(*of: int) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in shares(*of)]

    assert sizes(2, 1, 2) == [(0, 1), (1, 2)]
    assert sizes(1, 1, 4) == [(0, 1)]
    assert sizes(7, 1, 3) == [(0, 3), (3, 5), (5, 7)]
    assert sizes(6, 2, 2) == [(0, 4), (4, 6)]
    assert sizes(2, 2, 2) == [(0, 2)]


def test_parts_side_by_side() -> None:
    """As many are begun as there are devices; where one fails, the others have ended."""
    ended: list[int] = []

    def compute(part: int) -> int:
        if part == 2:
            raise ValueError(part)
        ended.append(part)
        return 10 * part

    others: list[OtherDevice[None]] = [OtherDevice(number, lambda: None) for number in (1, 2)]

    def begins(other: OtherDevice[None]) -> Callable[[int], Future[int]]:
        return lambda part: other.begin(lambda _: compute(part))

    elsewhere = [begins(other) for other in others]
    assert list(side_by_side(compute, elsewhere, range(3, 10))) == [30, 40, 50, 60, 70, 80, 90]
    assert sorted(ended) == [*range(3, 10)]
    ended.clear()
    with pytest.raises(ValueError, match="2"):
        list(side_by_side(compute, elsewhere, (2, 3, 4)))
    assert sorted(ended) == [3, 4]


def test_a_device_that_does_not_open() -> None:
    def opening() -> None:
        raise ProviderError("no memory")

    other = OtherDevice(1, opening)
    for call in (lambda: other.session, lambda: other.call(lambda _: 1)):
        with pytest.raises(ProviderError, match="no memory"):
            call()


@pytest.mark.parametrize(("pooled", "recorded"), [(False, {}), (True, {1: (1, 5)}), (True, {1: (1, 4)})])
def test_a_graph_is_recorded_alone(pooled: bool, recorded: dict[int, Any]) -> None:
    """With a pool again, when others took memory since then."""
    held: Any = SimpleNamespace(
        options=SimpleNamespace(graph=True), _graphs={(1, False): "settings"}, _recorded=recorded,
        pool=SimpleNamespace(sizes=lambda: SimpleNamespace(state=5)) if pooled else None,
    )  # fmt: skip
    assert Session.records(held, 2)
    assert Session.records(held, 1) == (pooled and recorded[1][1] == 4)
    held.options.graph = False
    assert not Session.records(held, 2)


def test_a_further_gpu_without_memory(tiny: Tiny, shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sdort.generation import memory_need

    monkeypatch.setattr(memory_need, "free_memory", lambda vendor, number: 10**6 if number == 3 else 10**12)
    models = shared._models
    request: Any = SimpleNamespace()
    stages: Any = []
    monkeypatch.setattr(memory_need, "generation_bytes", lambda *_: 0)
    memory_need.refuse_other_device(models.folder, request, 1, CUDA, 2, None, stages)
    memory_need.refuse_other_device(models.folder, request, 1, CUDA, 3, 10**3, stages)
    with pytest.raises(MemoryShortageError, match="a part of each image on GPU 3 needs about"):
        memory_need.refuse_other_device(models.folder, request, 1, CUDA, 3, None, stages)


def test_names_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["H100", "L4", "H100"]
    monkeypatch.setattr("sdort.runtime.environment.device_name", lambda provider, number: names[number])
    assert device_names(CUDA, (0, 2)) == "2 x H100"
    assert device_names(CUDA, (0, 1, 2)) == "2 x H100 + L4"
    assert device_names(CUDA, (1,)) == "L4"


@pytest.mark.parametrize(
    ("batch", "slicing", "sizes"), [(1, False, [1] * 6), ("n", False, [2, 2, 2]), ("n", True, [1] * 6)]
)
def test_images_are_decoded_by_every_device(batch: int | str, slicing: bool, sizes: list[int]) -> None:
    ran: list[tuple[int, int]] = []

    class Doubling:
        component, provider = "vae_decoder", CPU
        inputs, outputs = (
            {"z": TensorSpec("z", np.dtype("f4"), (batch, 4, "h", "w"))},
            [TensorSpec("y", np.dtype("f4"), ())],
        )

        def __init__(self, number: int, *others: Any) -> None:
            self.number, self.others = number, others

        def run(self, feeds: Any) -> Any:
            ran.append((self.number, len(feeds["z"])))
            return {"y": feeds["z"] * 2}

    session: Any = Doubling(0, *(OtherDevice(number, partial(Doubling, number)) for number in (1, 2)))
    latents = np.random.default_rng(0).normal(size=(6, 4, 2, 2)).astype(np.float32)
    images = [*Decoder(session, {}, 8).decode(latents, Plan(slicing=slicing))]
    np.testing.assert_array_equal(images, latents * 2)
    assert [size for _, size in ran] == sizes
    assert sorted({number for number, _ in ran}) == [0, 1, 2]


def test_each_further_session_is_on_its_own_device(shared: Any) -> None:
    models = shared._models
    for component, session in models.sessions.items():
        numbers = [other.session.options.device_id for other in session.others]
        assert numbers == ([1, 2] if component in ("unet", "vae_decoder") else []), component
        assert all(other.session.options.other_devices == () for other in session.others)


@pytest.mark.parametrize("recording", [True, False])
def test_no_device_runs_while_one_records(tiny: Tiny, recording: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a recording they run at the same time: each waits for the other."""
    met, running, most, run = Barrier(2), [0], [0], BoundBuffers.run

    def noted(self: Any, step: int, whole: bool = True, **options: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        if not recording:
            met.wait(60)
        run(self, step, whole, **options)
        running[0] -= 1

    monkeypatch.setattr(BoundBuffers, "run", noted)
    # The second device alone has something to record.
    monkeypatch.setattr(BoundBuffers, "records", lambda self, whole: recording and self.share.start > 0)
    pipeline = sdort.load(tiny.onnx, provider="cpu", devices="0,1")
    pipeline.generate("a cat", **STEPS)
    assert most == [1 if recording else 2]


def test_what_fails_on_a_further_device_ends_the_run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Any, step: int, whole: bool = True) -> None:
        if step == 1:
            raise ProviderError("the GPU is gone", component="unet")

    pipeline = sdort.load(tiny.onnx, provider="cpu", devices="0,1")
    expected = drawn(pipeline)
    with monkeypatch.context() as patched:
        [buffers] = pipeline._models.loop._bound.values()
        patched.setattr(buffers._others[0].buffers, "run", failing.__get__(buffers))  # type: ignore[attr-defined]
        with pytest.raises(ProviderError, match="the GPU is gone"):
            drawn(pipeline)
    assert drawn(pipeline) == expected
