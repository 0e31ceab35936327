"""``sdort warm``: every shape once, nothing twice, whatever ends it; and the bundles that a later run looks for."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support import tiny_pipeline
from support.moments import KILLED, Strikes
from support.tiny_pipeline import Tiny, with_encoder

from sdort import console
from sdort.checkpoints.configs import write_json
from sdort.cli import cli
from sdort.cli.warm import _run_command
from sdort.errors import OutputError, ProviderError, UsageError
from sdort.generation import keep_tuning
from sdort.generation.keep_tuning import keep_generated
from sdort.generation.latents import decode
from sdort.generation.pictures.input_image import read_image
from sdort.generation.pipeline import load_pipeline
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import plan_stages
from sdort.onnx_io.component_file import read_component
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import tuning_results
from sdort.runtime.session import Session, open_session
from sdort.tuning import session_hooks as hook
from sdort.tuning.bundle import check_files
from sdort.tuning.device import Machine
from sdort.tuning.key import make_key
from sdort.tuning.store import Store
from sdort.tuning.working_folder import OPS_TABLE, OPS_TUNE, working_folder
from sdort.warmup import command as warm
from sdort.warmup import items as plan
from sdort.warmup import warm_report
from sdort.warmup.warm_options import WarmupOptions
from sdort.workload.cases import generation_cases

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIZES = "16x16,16x24"
ITEMS = [("text_encoder", 1), ("unet", 2), ("vae_decoder", 1), ("unet", 4), ("vae_decoder", 2)]
"""Of the first size, with one and two images: a UNet runs with guidance."""


ITEM_NAMES = sorted({name for name, _ in ITEMS})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    working_folder.cache_clear()
    console.set_verbosity(console.NORMAL)


def invoke(pipeline: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["warm", str(pipeline), "--provider", "cpu", *args])


def items(result: Result) -> dict[tuple[str, int, int, int], str]:
    """(component, samples, height, width) -> what became of it."""
    told = json.loads(result.stdout[result.stdout.index("{") :])
    return {(e["component"], e["batch"], e["height"], e["width"]): e["status"] for e in told["items"]}


def whole() -> list[str]:
    """The names of all bundles, each compared with its hashes."""
    store = Store()
    for name in store.names():
        check_files(store.read(name))
    return store.names()


def test_every_shape_is_run_once_and_never_again(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def counted(path: Path, component: str, *args: Any) -> Session:
        opened.append(component)
        return open_session(path, component, *args)

    monkeypatch.setattr(warm, "open_session", counted)
    first = invoke(tiny.onnx, "--size", SIZES, "--batch-size", "1,2", "--json")
    assert first.exit_code == 0, first.output
    expected = [(*item, 16, 16) for item in ITEMS] + [(*item, 24, 16) for item in ITEMS[1:]]
    assert items(first) == dict.fromkeys(expected, "new")
    assert list(items(first)) == expected  # every component is seen early
    assert len(opened) == len(whole()) == 9
    assert "there is nothing to tune on cpu" in first.stderr
    again = invoke(tiny.onnx, "--size", f"{SIZES},24x24", "--batch-size", "2", "--json")
    assert set(items(again).values()) == {"kept", "new"}
    assert opened[9:] == ["unet", "vae_decoder"]
    assert [key for key, status in items(again).items() if status == "new"] == [
        ("unet", 4, 24, 24),
        ("vae_decoder", 2, 24, 24),
    ]


def test_a_damaged_bundle_is_made_again(tiny: Tiny) -> None:
    assert invoke(tiny.onnx, "--component", "vae_decoder").exit_code == 0
    (name,) = whole()
    (Store().folder / name / "stranger").touch()
    assert list(items(invoke(tiny.onnx, "--component", "vae_decoder", "--json")).values()) == ["new"]
    assert whole() == [name]


def test_the_verdict_says_what_is_ready_and_how_long_a_first_run_takes() -> None:
    def item(status: str, before: float | None, after: float | None) -> warm_report.Warmed:
        return warm_report.Warmed("unet", 2, 64, 64, status, "", [], before, after)

    tuned = [item("new", 4.0, 0.5), item("new", 2.0, 0.25), item("kept", 9.0, None), item("left", None, None)]
    assert warm_report.Warmup(tuned, 1).verdict == (
        "3 of 4 ready, 1 of them since an earlier time; first runs now take 0.8 s, before 6.0 s. "
        "The time was up with 1 left: the same command goes on with them."
    )
    assert warm_report.Warmup([item("new", 4.0, None)], 0).verdict == "1 of 1 ready; first runs took 4.0 s."


def test_the_next_command_runs_what_was_warmed(tmp_path: Path) -> None:
    write_json(tmp_path / "sdort.json", {"source": "demo"})
    options: Any = {"sizes": ((64, 96), (128, 128)), "batch_sizes": (4, 1), "vae_tiling": None}
    options |= {"provider": "cpu", "fallback": False, "provider_options": {"a": "b"}}
    words = shlex.split(_run_command(tmp_path, options))
    prompt = ["--prompt", "a red star on navy"]
    where = ["--provider", "cpu", "--no-fallback", "--provider-option", "a=b"]
    size = ["--size", "96x64", "--num-images", "4"]
    assert words == ["sdort", "run", str(tmp_path), *prompt, *where, *size]


def test_the_budget_ends_it_and_the_rest_comes_later(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke(tiny.onnx, "--size", "16x16", "--budget", "0s")
    assert result.exit_code == 0
    verdict = "0 of 3 ready. The time was up with 3 left: the same command goes on with them."
    assert result.stdout.splitlines()[-1] == verdict
    assert "Next:" not in result.stderr
    assert whole() == []
    # A clock that a run of the UNet moves by ten minutes.
    clock = [0.0]
    monkeypatch.setattr("sdort.warmup.command.time.monotonic", lambda: clock[0])

    def slow(path: Path, component: str, *args: Any) -> Session:
        clock[0] += 600 if component == "unet" else 1
        return open_session(path, component, *args)

    monkeypatch.setattr(warm, "open_session", slow)
    result = invoke(tiny.onnx, "--size", f"{SIZES},24x24", "--budget", "1100s", "--json")
    left = [key for key, status in items(result).items() if status == "left"]
    # The second UNet is not begun: the first took 600 s, and less is left.
    assert left == [("unet", 2, 24, 16), ("unet", 2, 24, 24)]
    assert len(whole()) == 5
    result = invoke(tiny.onnx, "--size", f"{SIZES},24x24", "--json")
    assert [key for key, status in items(result).items() if status == "new"] == left


def test_an_item_that_runs_over_the_budget_is_given_up(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped_at_once(path: Path, component: str, *args: Any) -> Session:
        session = open_session(path, component, *args)
        if component == "unet":
            session.stop()  # as the timer does
            monkeypatch.setattr(warm._Warmer, "left", lambda self: 1e-9 if calls.pop() else 0.0)
        return session

    calls = [0, 0, 0, 0, 1]  # the first question is whether to run at all
    monkeypatch.setattr(warm, "open_session", stopped_at_once)
    result = invoke(tiny.onnx, "--size", "16x16", "--budget", "1h", "--json")
    assert result.exit_code == 0, result.output
    assert list(items(result).values()) == ["new", "left", "left"]
    assert [name.split("-")[0] for name in whole()] == ["text_encoder"]


def test_an_item_that_fails_does_not_cost_the_others(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path, component: str, *args: Any) -> Session:
        if component == "unet":
            raise ProviderError("no memory left")
        return open_session(path, component, *args)

    monkeypatch.setattr(warm, "open_session", failing)
    result = invoke(tiny.onnx, "--size", "16x16")
    assert result.exit_code == ProviderError.exit_code
    assert "1 of 3 did not run. The first: unet, batch 2, 16x16: no memory left" in result.stderr
    assert [name.split("-")[0] for name in whole()] == ["text_encoder", "vae_decoder"]
    told = json.loads(invoke(tiny.onnx, "--size", "16x16", "--json").stdout)  # one document
    assert [each["status"] for each in told["items"]] == ["kept", "failed", "kept"]
    assert (told["exit_code"], told["type"], told["left"]) == (ProviderError.exit_code, "ProviderError", 0)
    assert told["error"].startswith("1 of 3 did not run. The first: unet, batch 2, 16x16: no memory left")


def test_what_cannot_be_asked_for(tiny: Tiny, cache: Path) -> None:
    assert invoke(tiny.onnx, "--size", "18x16").exit_code == UsageError.exit_code
    assert invoke(tiny.onnx, "--component", "unets").exit_code == UsageError.exit_code
    assert invoke(tiny.onnx, "--budget", "long").exit_code == UsageError.exit_code
    assert not cache.exists()
    cache.write_text("a file where the folder would be")
    result = invoke(tiny.onnx)
    assert result.exit_code == OutputError.exit_code
    assert "cannot keep tuning results in" in result.stderr


def test_the_time_to_go_is_known_once_every_component_was_seen(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    options = WarmupOptions(RuntimeOptions("cpu"), [(16, 16), (16, 24)], (1, 2))
    target = plan.WarmupTarget(open_folder(tiny.onnx, ()), CPU, options.runtime)
    todo = plan.plan(target, options)
    warmer = warm._Warmer(Store(), target, None)
    warmer.todo = todo[2:]  # one text encoder and one UNet are done
    warmer.durations = {"text_encoder": [1.0], "unet": [10.0]}
    assert warmer.remaining() is None
    warmer.todo = todo[3:]
    warmer.durations["vae_decoder"] = [4.0]
    assert warmer.remaining() == 3 * 10 + 3 * 4
    warmer.durations["unet"].append(20.0)
    assert warmer.remaining() == 3 * 15 + 3 * 4
    monkeypatch.setattr("sdort.warmup.command.time.monotonic", lambda: 100.0)
    warmer.deadline = 105.0
    assert warmer.remaining() == 5


# ---- kills and other processes ----


ROUNDS = int(os.environ.get("KILLS", "5"))
"""Kills, spread over all that the command does."""
STRUCK = """
import sys, time
import onnxruntime, sdort.cli.warm, sdort.runtime.session, sdort.warmup.command
from support.moments import strike
from sdort.cli import cli
from sdort.cli.warm import _run_command
strike(float(sys.argv[1]))
began = time.process_time()
try:
    cli.main(sys.argv[2:], prog_name="sdort")
finally:
    print("seconds:", time.process_time() - began)
"""


def start(pipeline: Path, *args: str, moment: float = 0) -> subprocess.Popen[str]:
    """``sdort warm``, which ends at a moment of its work, if one is given; else it prints how much that was."""
    command = [sys.executable, "-c", STRUCK, str(moment), "warm", str(pipeline), "--provider", "cpu", *args]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def test_kills_at_any_moment_never_spoil_the_cache(tiny: Tiny) -> None:
    said, _ = start(tiny.onnx, "--size", sizes(0)).communicate()
    seconds = float(said.split("seconds:")[1])
    added = []
    for number, moment in enumerate(strikes := Strikes(seconds, ROUNDS, seed=3), 1):
        before = whole()
        process = start(tiny.onnx, "--size", sizes(number), moment=moment)
        process.communicate()
        strikes.struck = process.returncode == KILLED
        assert strikes.struck or process.returncode == 0
        assert set(before) <= set(whole())
        added.append(len(whole()) - len(before))
    assert max(added) > 1
    kept = whole()
    result = invoke(tiny.onnx, "--size", sizes(number), "--json")
    assert result.exit_code == 0
    # And the text encoder's, which is the same for all sizes.
    assert list(items(result).values()).count("kept") == added[-1] + 1
    assert set(kept) <= set(whole())
    assert [path.name for path in Store().folder.glob(".new-*")] == []


def sizes(number: int) -> str:
    """Some that no other number has, so that there is always something to do."""
    return ",".join(f"{16 + 8 * number}x{16 + 8 * other}" for other in range(4))


def test_two_at_once_do_no_harm(tiny: Tiny) -> None:
    processes = [start(tiny.onnx, "--size", SIZES, "--batch-size", "1,2") for _ in range(2)]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0]
    assert len(whole()) == 9
    assert [path.name for path in Store().folder.glob(".new-*")] == []


# ---- what drawing feeds is what was warmed up ----


class Spy:
    """An ``InferenceSession`` that notes the dimensions of all inputs of every run."""

    def __init__(self, ort: Any) -> None:
        self.ort = ort
        self.seen: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ort, name)

    def note(self, shapes: dict[str, Any]) -> None:
        self.seen.add(tuple(sorted((name, tuple(int(size) for size in shape)) for name, shape in shapes.items())))

    def run(self, outputs: Any, feeds: dict[str, Any], *args: Any) -> Any:
        self.note({name: np.shape(value) for name, value in feeds.items()})
        return self.ort.run(outputs, feeds, *args)

    def io_binding(self) -> Any:
        return SpiedBinding(self.ort.io_binding())

    def run_with_iobinding(self, binding: Any, *args: Any) -> Any:
        self.note(binding.shapes)
        return self.ort.run_with_iobinding(binding.real, *args)


class SpiedBinding:
    def __init__(self, real: Any) -> None:
        self.real = real
        self.shapes: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def bind_input(self, name: str, device: str, index: int, dtype: Any, shape: Any, address: int) -> None:
        self.shapes[name] = shape
        self.real.bind_input(name, device, index, dtype, shape, address)

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.shapes[name] = value.shape()
        self.real.bind_ortvalue_input(name, value)

    def bind_cpu_input(self, name: str, value: Any) -> None:
        self.shapes[name] = np.shape(value)
        self.real.bind_cpu_input(name, value)


@pytest.mark.parametrize(("images", "guidance"), [(1, 7.5), (3, 7.5), (5, 7.5), (2, 1.0)])
def test_drawing_feeds_the_shapes_that_are_planned(
    images: int, guidance: float, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_graph = RuntimeOptions("cpu", split=False)  # parts are tuned by the shapes of the whole model's inputs
    drawer = load_pipeline(tiny.onnx, one_graph)
    spies = {}
    for name, session in drawer.sessions.items():
        session.ort = spies[name] = Spy(session.ort)
    request = Request("a", steps=2, num_images=images, height=16, width=24, guidance_scale=guidance)
    list(drawer.generate(request))
    told: dict[str, set[Any]] = {name: set() for name in spies}
    for module in (keep_tuning, tuning_results):
        monkeypatch.setattr(
            module, "keep_shapes", lambda session, shapes: told[session.component].add(tuple(sorted(shapes.items())))
        )
    monkeypatch.setattr(tuning_results, "is_tuned", lambda session: True)
    keep_generated(drawer, [request], plan_stages(drawer.folder, request))
    assert told == {name: spy.seen for name, spy in spies.items()}
    if guidance > 1:
        options = WarmupOptions(one_graph, [(16, 24)], (images,))
        planned = plan.plan(plan.WarmupTarget(drawer.folder, CPU, options.runtime), options)
        assert sorted(item.key.shapes for item in planned) == sorted(
            shapes for spy in spies.values() for shapes in spy.seen
        )


def test_encoding_feeds_the_shapes_that_are_planned(tiny: Tiny, tmp_path: Path) -> None:
    """Whatever the number of images, their init image is encoded alone."""
    pipeline = load_pipeline(with_encoder(tiny, tmp_path / "model"), RuntimeOptions("cpu", check=False))
    size = 16, 48 * tiny_pipeline.VAE_FACTOR
    photo = np.arange(16 * size[1] * 3, dtype=np.uint8).reshape(*size, 3)
    given = read_image(photo, "init_image")
    request = Request("a", steps=4, strength=0.25, num_images=2, height=16, width=size[1], init_image=given)
    list(pipeline.generate(request))
    options = WarmupOptions(RuntimeOptions("cpu"), [size], (2,))
    planned = plan.plan(plan.WarmupTarget(pipeline.folder, CPU, options.runtime), options)
    encoded = [item for item in planned if item.case.component == "vae_encoder"]
    assert {item.key.shapes for item in encoded} == pipeline.sessions["vae_encoder"].ran_on
    assert [str(item) for item in encoded] == ["vae_encoder, batch 1, 192x16 (1 of 192x16 all at once)"]


WHOLE, ONE, TILES = "all at once", "image by image", "in tiles of 64 x 64 latents"
AMPLE, TIGHT, NOTHING = 1 + 1e-5, 1 - 1e-5, 0.0
"""Free memory as a share of what decoding all at once takes."""


@pytest.mark.parametrize(
    ("tiling", "slicing", "free", "form"),
    [
        (None, None, None, WHOLE),
        (None, None, AMPLE, WHOLE),
        (None, None, TIGHT, ONE),
        (None, None, NOTHING, f"{ONE}, in tiles of 32 x 32 latents"),
        (True, None, 9.0, TILES),
        (True, True, None, f"{ONE}, {TILES}"),
        (False, False, NOTHING, WHOLE),
    ],
)
def test_the_decoder_is_warmed_up_as_it_will_decode(
    tiling: bool | None,
    slicing: bool | None,
    free: float | None,
    form: str,
    tiny: Tiny,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = open_folder(tiny.onnx, ())
    session = open_session(folder.models["vae_decoder"], "vae_decoder", CPU, RuntimeOptions("cpu"))
    graph_memory = decode.planner_of(folder, CPU).graph_memory
    decoder, shape = decode.Decoder(session, folder.vae, folder.vae_factor, graph_memory=graph_memory), (2, 72, 96)
    left = None if free is None else int(decoder.bytes_for(shape, decode.Plan()) * free / decode.SHARE)
    monkeypatch.setattr(decode, "free_memory", lambda *_: left)
    weights = sum(file.stat().st_size for name in ITEM_NAMES for file in (tiny.onnx / name).iterdir())
    monkeypatch.setattr(plan, "free_memory", lambda *_: None if left is None else left + weights)
    size = 72 * folder.vae_factor, 96 * folder.vae_factor
    options = WarmupOptions(
        RuntimeOptions("cpu"), [size], (2,), ["vae_decoder"], vae_tiling=tiling, vae_slicing=slicing
    )
    (item,) = plan.plan(plan.WarmupTarget(folder, CPU, options.runtime), options)
    latents = np.zeros((2, 4, 72, 96), np.float32)
    list(decoder.decode(latents, decode.choose(decoder, decoder.session, shape, tiling, slicing)))
    assert session.ran_on == {item.key.shapes}
    assert [str(each) for each in item.decodes] == [f"2 of {size[1]}x{size[0]} {form}"]


@pytest.mark.parametrize("component", ["vae_decoder", "vae_encoder"])
def test_warm_says_which_form_was_warmed_up(component: str, tiny: Tiny, tmp_path: Path) -> None:
    """Tiles of one shape serve every larger image."""
    folder = with_encoder(tiny, tmp_path / "model")
    asked = (folder, "--no-check", "--component", component, "--size", "256x256,256x288,288x288", "--vae-tiling")
    forms = [f"1 of {size} {how}" for size, how in (("256x256", WHOLE), ("256x288", TILES), ("288x288", TILES))]
    result = invoke(*asked, "--json")
    (told,) = json.loads(result.stdout)["items"]
    assert (told["batch"], told["height"], told["width"], told["decodes"]) == (1, 256, 256, forms)
    assert f"{component}, batch 1, 256x256 ({'; '.join(forms)}): first run" in result.stderr
    shown = invoke(*asked)
    assert [form for form in forms if form not in shown.stdout] == []
    result = invoke(*asked[:-1], "--no-vae-tiling", "--json")
    assert [each["status"] for each in json.loads(result.stdout)["items"]] == ["kept", "new", "new"]


class Small(Spy):
    """Of a decoder whose memory does not suffice for more than so many latents at once."""

    def __init__(self, ort: Any, most: int) -> None:
        super().__init__(ort)
        self.most = most

    def note(self, shapes: dict[str, Any]) -> None:
        ((images, _, height, width),) = shapes.values()
        if images * height * width > self.most:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 9")


def with_little_memory(most: int, monkeypatch: pytest.MonkeyPatch, part: str = "vae_decoder") -> None:
    def small(path: Path, component: str, *args: Any) -> Session:
        session = open_session(path, component, *args)
        session.ort = Small(session.ort, most) if component == part else session.ort
        return session

    monkeypatch.setattr(warm, "open_session", small)


def test_a_decoder_that_is_too_large_goes_on_as_run_does(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    factor = open_folder(tiny.onnx, ()).vae_factor
    size = f"{40 * factor}x{72 * factor}"
    asked = (tiny.onnx, "--size", size, "--batch-size", "1,2", "--component", "vae_decoder")
    with_little_memory(64 * 40, monkeypatch)
    result = invoke(*asked, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["items"]
    found = [(each["batch"], each["height"] // factor, each["status"], each["decodes"]) for each in told]
    assert found == [
        (1, 72, "too large", [f"1 of {size} {WHOLE}"]),
        (2, 72, "too large", [f"2 of {size} {WHOLE}"]),
        (1, 64, "new", [f"1 of {size} {ONE}, {TILES}"]),  # what two images come to too
    ]
    assert whole() == [told[2]["bundle"]]
    assert f"the decoder ran out of memory; it goes on {ONE}\n" in result.stderr
    again = json.loads(invoke(*asked, "--json").stdout)["items"]
    assert [each["status"] for each in again] == ["too large", "too large", "kept"]


@pytest.mark.parametrize(("part", "scale"), [("vae_decoder", 1), ("vae_encoder", tiny_pipeline.VAE_FACTOR)])
def test_a_part_of_the_vae_that_is_too_large_in_every_form_has_failed(
    part: str, scale: int, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = 64 * tiny_pipeline.VAE_FACTOR
    with_little_memory((31 * scale) * (32 * scale), monkeypatch, part)
    folder = with_encoder(tiny, tmp_path / "model")
    result = invoke(folder, "--no-check", "--size", f"{side}x{side}", "--component", part, "--json")
    assert result.exit_code == ProviderError.exit_code
    told = json.loads(result.stdout)
    assert [(each["height"], each["status"]) for each in told["items"]] == [(side, "too large"), (side // 2, "failed")]
    assert f"the {part.removeprefix('vae_')} ran out of memory; it goes on" in result.stderr
    assert "1 of 2 did not run" in told["error"]


@pytest.mark.parametrize("component", ["text_encoder", "unet", "vae_decoder"])
def test_a_model_declares_its_inputs_as_its_session_does(component: str, tiny: Tiny) -> None:
    path = tiny.onnx / component / "model.onnx"
    assert (
        read_component(path, component).signature.inputs
        == open_session(path, component, CPU, RuntimeOptions("cpu")).inputs
    )


def test_static_models_run_at_the_batch_they_have(tiny: Tiny, tmp_path: Path) -> None:
    for component in ("unet", "vae_decoder"):
        tiny_pipeline.export_onnx(tiny.pipeline, tmp_path / "static", batch=2, only=component)
    for component, batch in (("unet", 2), ("vae_decoder", 1)):
        inputs = read_component(tmp_path / "static" / component / "model.onnx", component).signature.inputs
        cases = generation_cases(component, inputs, 4, (64, 64), copies=2)
        assert [case.batch for case in cases] == [batch]


# ---- GPU providers, as far as their options ----


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets keys be made for a GPU that is not here."""

    def set_up(ep: str) -> None:
        machine = Machine("gfx942", 304, "HIP 7.0.0", ep, "1.27.1", "onnxruntime-migraphx 1.27.1")
        monkeypatch.setattr("sdort.tuning.key.this_machine", lambda *_: machine)

    return set_up


def test_migraphx_finds_its_compiled_programs(a_gpu: Callable[[str], None], tiny: Tiny, cache: Path) -> None:
    a_gpu(MIGRAPHX.ep)
    path, name = tiny.onnx / "unet" / "model.onnx", "migraphx_model_cache_dir"
    asked = hook.prepare_tuning(path, "unet", MIGRAPHX, RuntimeOptions("migraphx", tuning=True))
    place = Path(asked.options.provider_options[name])
    assert place.is_dir()
    (place / "abc.mxr").write_bytes(b"compiled")
    key = make_key(path, "unet", MIGRAPHX, asked.options, {"sample": (2, 4, 8, 8)})
    with Store().filling(key) as made:
        working_folder().copy_to(key.programs, made.folder)
    assert list(Store().read(key.name).files) == ["programs/abc.mxr"]
    working_folder.cache_clear()  # another process
    later = hook.prepare_tuning(path, "unet", MIGRAPHX, RuntimeOptions("migraphx"))
    found = Path(later.options.provider_options[name])
    assert found != place
    assert {file.name: file.read_bytes() for file in found.iterdir()} == {"abc.mxr": b"compiled"}
    other = tiny.onnx / "vae_decoder" / "model.onnx"
    # Programs may be compiled for it later, in a folder of its own.
    empty = hook.prepare_tuning(other, "unet", MIGRAPHX, RuntimeOptions("migraphx")).options.provider_options[name]
    assert Path(empty) != found
    assert not list(Path(empty).iterdir())
    own = RuntimeOptions("migraphx", tuning=True, provider_options={name: "/own"})
    assert hook.prepare_tuning(path, "unet", MIGRAPHX, own).options.provider_options[name] == "/own"


def test_sdorts_own_kernels_get_a_table_of_all_that_is_kept(
    a_gpu: Callable[[str], None], tiny: Tiny, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    a_gpu(CUDA.ep)
    library = cache / "library.so"
    cache.mkdir()
    library.write_bytes(b"a library")
    for module in ("sdort.tuning.session_hooks", "sdort.tuning.key"):
        monkeypatch.setattr(f"{module}.resolve", lambda setting: library)
    path = tiny.onnx / "unet" / "model.onnx"

    def table() -> str:
        return Path(os.environ[OPS_TABLE]).read_text()

    hook.prepare_tuning(path, "unet", CUDA, RuntimeOptions("cuda", tuning=True))
    assert os.environ[OPS_TUNE] == "1"
    assert table() == "# architecture\tkey\tvariant\tmicroseconds\n"
    with open(os.environ[OPS_TABLE], "a") as file:  # as the library does
        file.write("sm_90\tgroup_norm\twide\t3.5\n")
    key = make_key(path, "unet", CUDA, RuntimeOptions("cuda"), {})
    with Store().filling(key) as made:
        working_folder().copy_to(key.programs, made.folder)
    # The next session of this process, of a model that nothing is kept of, must not lose it.
    hook.prepare_tuning(
        tiny.onnx / "vae_decoder" / "model.onnx", "vae_decoder", CUDA, RuntimeOptions("cuda", tuning=True)
    )
    assert "sm_90\tgroup_norm\twide\t3.5\n" in table()
    # Another process, without --tuning.
    working_folder.cache_clear()
    monkeypatch.delenv(OPS_TABLE)
    monkeypatch.delenv(OPS_TUNE)
    hook.prepare_tuning(path, "unet", CUDA, RuntimeOptions("cuda"))
    assert "sm_90\tgroup_norm\twide\t3.5\n" in table()
    assert OPS_TUNE not in os.environ
