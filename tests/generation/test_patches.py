"""Images that several devices compute in patches. On the CPU each device is a session of its own, by the same code."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image
from support import rocm_stub
from support.infotext import read_infotext
from support.tiny_pipeline import Tiny

import sdort
from sdort.errors import BadModelError, UsageError
from sdort.generation.denoising import device_loop
from sdort.generation.requests.deep_cache import whole_calls
from sdort.graph.signature import Array
from sdort.providers import CPU
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.opener import create_session
from sdort.runtime.session import open_session
from sdort.runtime.step.bound_unet import BoundBuffers
from sdort.runtime.step.patch_cut import cut_patches, given_by
from sdort.runtime.step.patched_unet import PatchedBuffers
from sdort.runtime.step.step_conditions import StepConditions

OPTIONS: dict[str, Any] = {"steps": 5, "seed": 3}


@pytest.fixture(scope="module")
def folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("patches") / "fast"
    sdort.optimize(tiny.onnx, made, provider="cpu")
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> Any:
    return sdort.load(folder, provider="cpu")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Any:
    return sdort.load(folder, provider="cpu", devices=[0, 1, 2, 3])


def draw(pipeline: Any, prompt: str = "a cat", **options: Any) -> list[Array]:
    return [image.pixels for image in pipeline.generate(prompt, **OPTIONS | options).images]


CASES: dict[str, dict[str, Any]] = {
    "halves of guidance, each in two patches": {"patches": 2},
    "one sample": {"patches": 2, "guidance_scale": 1.0},
    "several images": {"patches": 2, "num_images": 3},
    "steps through the host": {"patches": 2, "scheduler": "heun"},
    "four patches of two samples": {"patches": 4},
}


@pytest.mark.parametrize("case", CASES)
def test_exact_steps_alone_are_one_devices_image(alone: Any, shared: Any, case: str) -> None:
    options = CASES[case]
    expected = draw(alone, **{name: value for name, value in options.items() if name != "patches"})
    np.testing.assert_array_equal(draw(shared, **options, exact_steps=9), expected)
    assert not np.array_equal(draw(shared, **options, exact_steps=1), expected)


def test_without_patches_everything_is_as_before(alone: Any, shared: Any) -> None:
    stale, plain = draw(shared, patches=2, exact_steps=1), draw(alone)
    np.testing.assert_array_equal(draw(shared), plain)
    np.testing.assert_array_equal(draw(shared, patches=2, exact_steps=1), stale)
    assert not np.array_equal(stale, plain)


@pytest.mark.parametrize(("patches", "options"), [(2, {}), (4, {"num_images": 2}), (2, {"guidance_scale": 1.0})])
def test_stale_borders_are_those_of_the_step_before(
    folder: Path, shared: Any, patches: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NumPy and ONNX Runtime alone have it: one patch after the other, with what each gave a step earlier."""
    found = draw(shared, **options, patches=patches, exact_steps=2)
    pipeline = sdort.load(folder, provider="cpu", split=False)
    file = pipeline._models.folder.file("unet")
    cut = cut_patches(file.graph, patches, "unet")
    opened = partial(create_session, provider=CPU, options=RuntimeOptions("cpu"), data_folder=file.path.parent)
    whole, patch = (opened(each.SerializeToString()) for each in (cut.whole, cut.patch))
    kept: dict[int, list[dict[str, Array]]] = {}

    def run_named(session: Any, feeds: dict[str, Array]) -> dict[str, Array]:
        return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))

    def of_sample(number: int, feeds: dict[str, Array], step: int) -> Array:
        if step < 2:
            given = run_named(whole, feeds)
            names = cut.points.given
            kept[number] = [{name: given[given_by(name, index)] for name in names} for index in range(patches)]
            return given["out_sample"]
        rows, made, last = feeds["sample"].shape[2] // patches, [], kept[number]
        for index in range(patches):
            own = {**feeds, "sample": feeds["sample"][:, :, index * rows : (index + 1) * rows]}
            for name, (source, given_name) in cut.points.sources(index).items():
                own[name] = np.zeros_like(last[0][given_name]) if source is None else last[source][given_name]
            made.append(run_named(patch, own))
        kept[number] = made
        return np.concatenate([each["out_sample"] for each in made], axis=2)

    def simulated(self: Any, step: int, whole: bool = True, **more: Any) -> None:
        [feeds] = self.feeds()
        count, results = len(feeds["sample"]), []
        for number in range(count):
            one = {name: values[number : number + 1] if values.ndim else values for name, values in feeds.items()}
            one["timestep"] = feeds["timestep"] if np.size(feeds["timestep"]) == 1 else one["timestep"]
            results.append(of_sample(number, one, step))
        self.output.write(np.concatenate(results))

    monkeypatch.setattr(BoundBuffers, "run", simulated)
    expected = draw(pipeline, **options)
    # Steps alone compute what is prepared elsewhere, in another order.
    assert np.abs(np.asarray(found, int) - np.asarray(expected, int)).max() <= 1


def test_which_steps_are_whole(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones of each pass, and each whose prompt is another one."""
    runs: list[bool] = []
    run = PatchedBuffers.run

    def counted(self: Any, step: int, whole: bool = True, **options: Any) -> None:
        runs.append(whole)
        run(self, step, whole, **options)

    monkeypatch.setattr(PatchedBuffers, "run", counted)
    draw(shared, patches=2)
    assert runs == [True] * 4 + [False]
    runs.clear()
    draw(shared, "a [cat:dog:2]", patches=2, exact_steps=1)
    assert runs == [True, False, False, True, False]
    runs.clear()
    draw(shared, patches=2, exact_steps=1, hires=2.0, hires_strength=0.4)
    assert runs[:5] == [True] + [False] * 4
    assert runs[5:] == [True, False]
    one, other = [{"x": np.zeros((1, 1))}], [{"x": np.ones((1, 1))}]
    conditions = StepConditions([[one, one, one, other, other]])
    assert whole_calls(1, 5, conditions, 2) == [True, True, False, True, False]


def test_steps_through_the_host_are_the_same(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    [expected] = draw(shared, patches=2, exact_steps=2)
    monkeypatch.setattr(device_loop.Loop, "fits", lambda *_: False)
    [found] = draw(shared, patches=2, exact_steps=2)
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_the_file_says_it_and_repeats_it(shared: Any, tmp_path: Path) -> None:
    first = shared.generate("a cat", **OPTIONS, patches=2, exact_steps=1, output=tmp_path / "a.png")
    assert (first.patches, first.exact_steps) == (2, 1)
    texts = Image.open(tmp_path / "a.png").text  # type: ignore[attr-defined]
    kept = json.loads(texts["sdort"])
    assert (kept["patches"], kept["exact_steps"]) == (2, 1)
    told = read_infotext(texts["parameters"])
    assert (told["Patches"], told["Exact steps"]) == ("2", "1")
    again = shared.generate(from_image=tmp_path / "a.png")
    np.testing.assert_array_equal(again.images[0].pixels, first.images[0].pixels)
    plain = shared.generate("a cat", **OPTIONS)
    assert (plain.patches, plain.exact_steps) == (None, None)
    assert shared.generate("a cat", **OPTIONS, patches=2).exact_steps == 4


def test_more_patches_than_the_samples_ask_for_are_told(shared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    draw(shared, patches=2, num_images=2)
    told = "--patches 2: the 2 GPUs of an image compute several of the 4 samples in turn; fewer patches"
    assert told in capsys.readouterr().err
    draw(shared, patches=2)
    assert "--patches" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patches": 3, "height": 96}, "--patches 3 is for 3 GPUs, or a multiple of that, and there are 4"),
        ({"patches": 1}, "--patches 1"),
        ({"exact_steps": 2}, "--exact-steps"),
        ({"patches": 2, "exact_steps": 0}, "--exact-steps 0"),
        ({"patches": 2, "deep_cache": 2}, "--deep-cache takes from an earlier step what --patches takes from one"),
        ({"patches": 4, "height": 72}, "cuts images whose height is a multiple of 32 pixels, and 72 is not"),
    ],
)
def test_what_is_no_patch_is_refused(shared: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        draw(shared, **options)
    assert message in refused.value.message


def test_patches_need_their_devices(alone: Any, tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="--patches 2 is for 2 GPUs, or a multiple of that, and there is 1") as refused:
        draw(alone, patches=2)
    assert refused.value.hint == "Name them: --devices 0,1"
    with pytest.raises(UsageError, match="--patches 2 is for 2 GPUs"):
        sdort.run(folder, "a cat", **OPTIONS, provider="cpu", memory="low", patches=2, output=tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_a_compiling_provider_is_refused(shared: Any) -> None:
    from types import SimpleNamespace

    from sdort.generation.shared_devices import refuse_patches

    request: Any = SimpleNamespace(patches=2)
    with pytest.raises(UsageError, match="--patches is not for migraphx"):
        refuse_patches(request, MIGRAPHX, RuntimeOptions("migraphx", devices="0,1"))
    refuse_patches(request, CPU, RuntimeOptions("cpu", devices="0,1"))


def test_a_model_that_cannot_be_cut_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match="its graph cannot be cut into --patches: "):
        sdort.run(tiny.onnx, "a cat", **OPTIONS, provider="cpu", devices="0,1", patches=2, output=tmp_path / "a.png")


def test_both_graphs_have_the_weights_of_one_file(folder: Path) -> None:
    options = RuntimeOptions("cpu", custom_ops="off", patch_cut=2)
    unet = open_session(folder / "unet" / "model.onnx", "unet", CPU, options)
    assert unet.patch is not None
    assert unet.patch_points is not None
    taken = unet.patch_points.sources(0)
    assert unet.patch.inputs.keys() == unet.inputs.keys() | taken.keys()
    assert unet.patch.preparation is not None
    assert unet.preparation is not None
    assert unet.patch.preparation.prompt is unet.preparation.prompt
    stopped: list[Any] = []
    unet.patch.stop = lambda: stopped.append(1)  # type: ignore[method-assign]
    unet.stop()
    assert stopped == [1]


# --- on the real ROCm provider, over a stub of HIP ---

SCRIPT = """
import sys, pathlib, numpy
from sdort.runtime.step.bound_unet import Batch
from sdort.generation.denoising.device_loop import Loop
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.generation.schedules.recurrence import Recurrence
from sdort.runtime.step.step_conditions import StepConditions
from sdort.runtime.opener import create_session
from sdort.runtime.session import open_session
from sdort import console

console.set_verbosity(console.NORMAL)
devices = sys.argv[2]
options = RuntimeOptions("rocm", custom_ops="off", graph=True, devices=devices, pool=1, patch_cut=2, trials=False)
session = open_session(pathlib.Path(sys.argv[1]), "unet", ROCM, options)
assert session.ort.get_providers()[0] == "ROCMExecutionProvider"
steps, rng = 4, numpy.random.default_rng(0)
table = rng.normal(size=(steps + 1, steps + 1))
Loop(session).denoise(
    Recurrence(numpy.arange(steps), table[:-1], table[-1]), Batch(2, 1, (4, 8, 8)),
    StepConditions.fixed([{"encoder_hidden_states": rng.normal(size=(1, 5, 4)).astype("f")}] * 2, 99),
    rng.normal(size=(1, 1, 4, 8, 8)).astype("f"), [-1.0, 2.0], lambda _: None, exact=1,
)
"""
UNET = """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
  g (float[batch, 4, height, width] sample, float[1] timestep, float[batch, tokens, 4] encoder_hidden_states)
    => (float[batch, 4, height, width] out_sample)
    <float[4] gamma = {1, 1, 1, 1}, float[4] beta = {0, 0, 0, 0},
     int64[2] last = {1, 2},
     int64[4] column = {0, 1, 1, 1}> {
    told = ReduceMean <keepdims = 0> (encoder_hidden_states, last)
    shift = Reshape (told, column)
    timed = Add (sample, timestep)
    shifted = Add (timed, shift)
    pixels = Transpose <perm = [0, 2, 3, 1]> (shifted)
    normal = com.microsoft.GroupNorm <groups = 2, activation = 1, channels_last = 1> (pixels, gamma, beta)
    out_sample = Transpose <perm = [0, 3, 1, 2]> (normal)
  }"""


def run_on_rocm(folder: Path, devices: str, **settings: str) -> tuple[list[dict[str, Any]], str]:
    """What the stub of HIP saw of copies and graphs, and what was told."""
    onnx.save(onnx.parser.parse_model(UNET), folder / "unet.onnx")
    log = folder / "copies"
    log.unlink(missing_ok=True)
    root = Path(__file__).resolve().parents[2]
    done = rocm_stub.runtime().run(
        SCRIPT, str(folder / "unet.onnx"), devices, copies=str(log), devices="4", PYTHONPATH=str(root), **settings
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in log.read_text().splitlines()], done.stderr


def test_patches_are_copied_from_gpu_to_gpu(tmp_path: Path) -> None:
    """Each sample's block to the other device of the group, on the stream of the device that gives; nothing is taken or
    copied while a graph is recorded."""
    calls, told = run_on_rocm(tmp_path, "0,1")
    assert [call for call in calls if call["call"] == "wrong"] == []
    every = [call for call in calls if call["call"] == "peer"]
    peers = [call for call in every if call["from"] != call["to"]]
    # What a patch takes of itself; three steps, two samples.
    assert Counter(call["from"] for call in every if call not in peers) == {0: 6, 1: 6}
    assert Counter((call["from"], call["to"]) for call in peers) == {(0, 1): 6, (1, 0): 6}
    assert all(call["stream"] == call["from"] for call in peers)
    assert len({call["bytes"] for call in peers}) == 1
    # Two samples, whole and patch; four steps of two samples.
    for call, count in (("record", 4), ("replay", 8)):
        assert Counter(each["device"] for each in calls if each["call"] == call) == {0: count, 1: count}
    assert "host's memory" not in told


def test_groups_give_each_other_nothing(tmp_path: Path) -> None:
    """Halves of guidance; and another library may have let the devices reach each other."""
    calls, _ = run_on_rocm(tmp_path, "0,1,2,3", peers="2")
    assert [call for call in calls if call["call"] == "wrong"] == []
    pairs = Counter((call["from"], call["to"]) for call in calls if call["call"] == "peer")
    pairs = Counter({pair: count for pair, count in pairs.items() if len({*pair}) == 2})
    assert pairs == {(0, 1): 3, (1, 0): 3, (2, 3): 3, (3, 2): 3}


def test_gpus_that_do_not_reach_each_other_say_so(tmp_path: Path) -> None:
    calls, told = run_on_rocm(tmp_path, "0,1", peers="0")
    assert [call for call in calls if call["call"] == "peer"]
    assert "GPU 0 cannot reach the memory of GPU 1: what patches give each other passes through the host" in told
