"""``sdort run --lora``: a weight that is merged at run time is the baked one, whatever the optimizer made of it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from PIL import Image
from safetensors.numpy import load_file, save_file
from support import rocm_packages, rocm_stub
from support.adapter_files import bake, make_lora, make_mixed
from support.alive_sessions import in_turn
from support.pipelines import export_family, locked, make_pipeline, trace_folder
from support.planned_shapes import planned_shapes
from support.relisted import relist

import sdort
from sdort.adapters.adapter_choice import AdapterChoice
from sdort.cli import cli
from sdort.errors import BadModelError, ParityError, UsageError
from sdort.exporter.command import export
from sdort.generation.denoising import device_loop
from sdort.generation.denoising.adapted_weights import _added_or_merged, _merged, plan_adapters
from sdort.generation.denoising.guard import Guard
from sdort.onnx_io.overridable import replaceable_weights, weights_of
from sdort.onnx_io.weight_origins import ORIGINS_KEY
from sdort.optimizer.command import optimize
from sdort.passes.widen import all_nodes, widen_file
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import session as sessions
from sdort.runtime.session import Session, find_replaceable

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

packages = rocm_packages.packages

SCALE = 0.75
OPTIONS: Any = {"steps": 2, "seed": 7, "guidance_scale": 4, "height": 64, "width": 64}
PROMPT = "a lighthouse"


@dataclass
class Adapted:
    """A pipeline, two adapters for it, and the pipeline with the first one in its weights."""

    checkpoint: Path
    plain: Path
    baked: Path
    a: Path
    b: Path

    def optimized(self, provider: str, fp16: bool, sdort_ops: bool = False) -> tuple[Path, Path]:
        """Both, optimized."""
        name = f"{provider} {fp16} {sdort_ops}"
        outs = [folder.with_name(f"{folder.name} {name}") for folder in (self.plain, self.baked)]
        for source, out in zip((self.plain, self.baked), outs, strict=True):
            if not out.exists():
                optimize(source, out, provider=provider, fp16=fp16, sdort_ops=sdort_ops)
        return outs[0], outs[1]


@pytest.fixture(scope="module")
def sd1(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """A checkpoint in fp16, and a LoRA that is put into it by the formula of its paper."""
    folder, traces = tmp_path_factory.mktemp("sd1"), trace_folder(request.config)
    checkpoint = folder / "checkpoint"
    make_pipeline("sd1", checkpoint)
    for path in checkpoint.glob("*/*.safetensors"):
        rounded = {name: v.astype(np.float16) if v.dtype == "f4" else v for name, v in load_file(path).items()}
        save_file(rounded, path, metadata={"format": "pt"})
    a = make_lora(checkpoint, folder / "a.safetensors", 1)
    b = make_lora(checkpoint, folder / "b.safetensors", 2, "attn")
    with locked(traces):
        export(checkpoint, folder / "plain", cache_dir=traces)
        export(bake(checkpoint, a, SCALE, folder / "with a"), folder / "baked", cache_dir=traces)
    return Adapted(checkpoint, folder / "plain", folder / "baked", a, b)


@pytest.fixture(scope="module")
def sdxl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """All kinds of adapters, put into the weights by the exporter."""
    folder, traces = tmp_path_factory.mktemp("sdxl"), trace_folder(request.config)
    plain = export_family("sdxl", folder, traces)
    a = make_mixed(plain.checkpoint, folder / "a.safetensors", 1)
    b = make_lora(plain.checkpoint, folder / "b.safetensors", 2, "attn")
    with locked(traces):
        export(plain.checkpoint, folder / "baked", cache_dir=traces, lora=[f"{a}:{SCALE}"])
    return Adapted(plain.checkpoint, plain.out, folder / "baked", a, b)


@pytest.fixture(scope="module")
def fast(sd1: Adapted) -> tuple[Path, Path]:
    """The plain and the baked pipeline, in fp32 for the CPU."""
    return sd1.optimized("cpu", False)


def pixels(pipeline: Any, *lora: str, **options: Any) -> Any:
    return pipeline.generate(PROMPT, lora=lora, **{**OPTIONS, **options}).images[0].pixels


@pytest.fixture(scope="module")
def images(sd1: Adapted, fast: tuple[Path, Path]) -> dict[str, Any]:
    """What fresh sessions draw: without an adapter, with ``b``, and on the pipeline that has ``a`` in its weights."""
    plain, baked = (sdort.load(folder, provider="cpu", adapters=True) for folder in fast)
    drawn = {"none": pixels(plain), "a": pixels(baked), "b": pixels(plain, str(sd1.b))}
    assert len({image.tobytes() for image in drawn.values()}) == 3
    return drawn


def test_sessions_of_several_sizes_have_the_same_weights(sd1: Adapted, fast: tuple[Path, Path]) -> None:
    lora, sizes = f"{sd1.a}:{SCALE}", (64, 128)
    wanted = {size: pixels(sdort.load(fast[1], provider="cpu", adapters=True), width=size) for size in sizes}
    plain = {size: pixels(sdort.load(fast[0], provider="cpu", adapters=True), width=size) for size in sizes}
    with planned_shapes() as opened:
        pipeline = sdort.load(fast[0], provider="cpu", adapters=True)
        before = len(opened)
        for _ in range(2):
            for size in sizes:
                np.testing.assert_array_equal(pixels(pipeline, lora, width=size), wanted[size])
                np.testing.assert_array_equal(pixels(pipeline, width=size), plain[size])
        assert len(opened) > before
    assert all(np.abs(wanted[size].astype(int) - plain[size]).max() > 2 for size in sizes)


def test_patches_have_the_weights_of_the_adapter(sd1: Adapted, fast: tuple[Path, Path]) -> None:
    options: Any = {"patches": 2, "exact_steps": 1, "steps": 3, "height": 128}
    plain, baked = (sdort.load(folder, provider="cpu", adapters=True, devices="0,1") for folder in fast)
    expected = pixels(baked, **options)
    np.testing.assert_array_equal(pixels(plain, f"{sd1.a}:{SCALE}", **options), expected)
    assert not np.array_equal(pixels(plain, **options), expected)


@pytest.mark.parametrize(
    ("family", "provider", "fp16", "kinds"),
    [
        ("sd1", "cpu", True, {"LoRA"}),
        ("sdxl", "rocm", False, {"LoRA", "LoHa", "LoKr", "DoRA"}),
        ("sdxl", "cuda", True, {"LoRA", "LoHa", "LoKr", "DoRA"}),
    ],
)
def test_a_merged_weight_is_the_baked_one(
    family: str, provider: str, fp16: bool, kinds: set[str], request: pytest.FixtureRequest
) -> None:
    of_family = request.getfixturevalue(family)
    plain, baked = of_family.optimized(provider, fp16)
    plan = plan_adapters(open_folder(plain), [AdapterChoice(of_family.a, SCALE)])
    assert [(set(adapter.kinds), adapter.unmatched) for adapter in plan.adapters] == [(kinds, ())]
    for component, weights in plan.weights.items():
        others = replaceable_weights(open_folder(baked).file(component))
        assert others.keys() == weights.keys()
        assert len(plan.changed(component)) >= 8
        for name in plan.changed(component):
            merged = _merged(component, name, weights[name], plan.changes[component])
            own, expected = weights[name].stored.load(), others[name].stored.load()
            assert np.abs(expected - own).max() > 0
            if family == "sdxl" and fp16:
                assert_rounded_twice(own, merged, expected)
            else:
                np.testing.assert_array_equal(merged, expected, err_msg=name, strict=True)


@pytest.mark.parametrize(
    ("family", "provider", "fp16", "sdort_ops"),
    [("sd1", "cuda", True, True), ("sd1", "rocm", False, False), ("sdxl", "cuda", True, False)],
)
def test_every_weight_takes_a_lora_as_two_matrices(
    family: str, provider: str, fp16: bool, sdort_ops: bool, request: pytest.FixtureRequest
) -> None:
    """Whatever the optimizer packed, turned or summed; their product is what the host computes."""
    of_family = request.getfixturevalue(family)
    plain, _ = of_family.optimized(provider, fp16, sdort_ops)
    path = of_family.a if family == "sd1" else of_family.b  # the other one is of many kinds
    plan = plan_adapters(open_folder(plain), [AdapterChoice(path, SCALE)])
    for component, weights in plan.weights.items():
        for name in plan.changed(component):
            weight, changes = weights[name], plan.changes[component]
            added = _added_or_merged(component, name, weight, changes)
            assert isinstance(added, tuple), name
            own = weight.stored.load().astype(np.float64)
            left, right = (factor.astype(np.float64) for factor in added)
            total = own + (left @ right).reshape(own.shape)
            merged = _merged(component, name, weight, changes)
            size = np.maximum(np.abs(own), (np.abs(left) @ np.abs(right)).reshape(own.shape))
            allowed = 8 * np.spacing(size.astype(np.float32)).astype(np.float64)
            if fp16:
                allowed += np.spacing(np.abs(total).astype(np.float16))
            if "combined" in json.dumps(weight.origin):  # the host reads the parameters back from rounded sums
                allowed += np.abs(own).max() * 2.0 ** (-9 if fp16 else -20)
            assert (np.abs(merged - total) <= allowed).all(), name


def assert_rounded_twice(own: Any, merged: Any, expected: Any) -> None:
    """The weight of an fp32 checkpoint was rounded already, by half a unit; the baked one is rounded once."""
    assert merged.dtype == expected.dtype == np.float16
    error = np.abs(merged.astype(np.float64) - expected)
    unit = np.spacing(np.abs(expected)).astype(np.float64)
    assert (error <= unit + np.abs(own.astype(np.float64)) * 2**-11 + 2**-25).all()


@pytest.mark.parametrize("fp16", [False, True])
def test_a_merged_sum_of_filters_is_the_baked_one(fp16: bool, sd1: Adapted) -> None:
    """Of an upsampler's convolution the model has sums: its parameters are read back from these, which were rounded."""
    plain, baked = sd1.optimized("cuda", fp16, sdort_ops=True)
    plan = plan_adapters(open_folder(plain), [AdapterChoice(sd1.a, SCALE)])
    others = replaceable_weights(open_folder(baked).file("unet"))
    weights = plan.weights["unet"]
    sums = [name for name in plan.changed("unet") if "combined" in json.dumps(weights[name].origin)]
    changed = {name: [*weights[name].parameters] for name in plan.changed("unet")}
    assert sums == [name for name, [parameter, *_] in changed.items() if "upsamplers" in parameter]
    assert sums
    for name in sums:
        merged = _merged("unet", name, weights[name], plan.changes["unet"])
        own, expected = (weight[name].stored.load() for weight in (weights, others))
        phases = (2, 2, own.shape[0] // 4, 2, 2, own.shape[3])
        half_units = np.spacing(np.abs(own)).astype(np.float64).reshape(phases) / 2
        # The nearest parameters' sums are no further from the rounded sums than the original's.
        lost = 2 * np.sqrt((half_units**2).sum((0, 1, 3, 4), keepdims=True))
        error = np.abs(merged.astype(np.float64) - expected).reshape(phases)
        assert (error <= lost + np.spacing(np.abs(expected)).astype(np.float64).reshape(phases)).all()
        assert np.abs(own.astype(np.float64) - expected).max() > 16 * lost.max()


@pytest.mark.parametrize("on_device", [True, False])
def test_switching_gives_the_images_of_fresh_sessions(
    on_device: bool, sd1: Adapted, fast: tuple[Path, Path], images: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_device:
        monkeypatch.setattr(device_loop.Loop, "fits", lambda *_: False)
    pipeline = sdort.load(fast[0], provider="cpu", adapters=True)
    opened = dict(pipeline._models.sessions)
    files = {"none": [], "a": [f"{sd1.a}:{SCALE}"], "b": [str(sd1.b)]}
    for name in ("none", "a", "b", "a", "none"):
        # The loop in host memory rounds each step's result to fp32 elsewhere.
        difference = np.abs(pixels(pipeline, *files[name]).astype(int) - images[name])
        assert difference.max() <= (0 if on_device else 1), name
    assert pipeline._models.sessions == opened


def test_an_adapter_changes_the_whole_unet_and_its_outer_part(sd1: Adapted, fast: tuple[Path, Path]) -> None:
    """With --deep-cache: on the way to an adapter and back, and on a UNet that is loaded again for it."""
    options = {"deep_cache": 2, "steps": 4}
    baked = pixels(sdort.load(fast[1], provider="cpu", adapters=True), **options)
    pipeline = sdort.load(fast[0], provider="cpu", adapters=True)
    plain = pixels(pipeline, **options)
    for lora, expected in (([f"{sd1.a}:{SCALE}"], baked), ([], plain), ([f"{sd1.a}:{SCALE}"], baked)):
        np.testing.assert_array_equal(pixels(pipeline, *lora, **options), expected)
    assert np.abs(baked.astype(int) - plain).max() > 8
    later = sdort.load(fast[0], provider="cpu")
    # Weights that none replaces ONNX Runtime packs, and on some processors sums in another order.
    assert np.abs(pixels(later, **options).astype(int) - plain).max() <= 1
    np.testing.assert_array_equal(pixels(later, f"{sd1.a}:{SCALE}", **options), baked)


def test_an_adapter_changes_the_unet_of_every_device(sd1: Adapted, fast: tuple[Path, Path]) -> None:
    """On the way to an adapter and back, and where the UNet is loaded again with the adapter."""
    alone, shared = (sdort.load(fast[0], provider="cpu", devices=devices) for devices in (None, "0,1"))
    drawn = []
    for lora in ([], [f"{sd1.a}:{SCALE}"], [str(sd1.b)]):
        drawn.append(pixels(alone, *lora))
        # With weights that change, some processors sum a sample otherwise than in a batch.
        assert np.abs(pixels(shared, *lora).astype(int) - drawn[-1]).max() <= 1
    plain, with_a, with_b = (image.astype(int) for image in drawn)
    assert min(np.abs(one - other).max() for one, other in ((plain, with_a), (plain, with_b), (with_a, with_b))) > 8
    cut = [pixels(pipeline, str(sd1.b), deep_cache=2).astype(int) for pipeline in (alone, shared)]
    assert np.abs(cut[0] - cut[1]).max() <= 1
    assert np.abs(cut[0] - with_b).max() > 1
    unet = shared._models.sessions["unet"]
    again = sessions.open_again(unet.place, unet.options)
    assert [each.session.weights for each in again.others] == [each.session.weights for each in unet.others]
    assert again.weights is unet.weights is not unet.others[0].session.weights


def test_a_recorded_graph_serves_every_adapter(sd1: Adapted, fast: tuple[Path, Path]) -> None:
    pipeline = sdort.load(fast[0], provider="cpu", adapters=True)
    bound = []
    for lora in ([str(sd1.b)], [], [f"{sd1.b}:0.5"], [str(sd1.a)]):
        pixels(pipeline, *lora)
        bound.append(dict(pipeline._models.loop._bound))
    assert [buffers.graphs for buffers in bound[0].values()] == [[1]]
    assert all(later == bound[0] for later in bound[1:])


def test_the_command_draws_what_the_baked_pipeline_draws(
    sd1: Adapted, fast: tuple[Path, Path], images: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    args = ["run", str(fast[0]), "--prompt", PROMPT, "--provider", "cpu", "-o", "a.png", "--json", *words]
    done = CliRunner().invoke(cli, [*args, "--lora", f"{sd1.a}:{SCALE}"])
    assert done.exit_code == 0, done.output
    with Image.open("a.png") as image:
        drawn = np.asarray(image).astype(int)
    np.testing.assert_array_equal(drawn, images["a"])
    content = sd1.a.read_bytes()
    whole, tensors = (
        hashlib.sha256(part).hexdigest() for part in (content, content[8 + int.from_bytes(content[:8], "little") :])
    )
    adapter = {"name": "a.safetensors", "scale": SCALE, "text_scale": None, "sha256": whole, "tensors_sha256": tensors}
    assert json.loads(done.stdout)["lora"] == [adapter]


PLANNERS = (
    "announce", "check_task", "choose_provider", "content_check", "find_components", "image_size", "open_folder",
    "plan_adapters", "plan_controls", "plan_request", "plan_stages", "read_adapter", "read_scheduler_config",
)  # fmt: skip


def test_a_run_is_planned_once(
    sd1: Adapted, fast: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each function that finds out what a run is to do is called once."""
    calls: Counter[str] = Counter()
    sdort.plan_run(fast[0], PROMPT, provider="cpu")  # imports what a run plans with

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*args, **options)

        return call

    for module in [module for name, module in sys.modules.items() if name.startswith("sdort.")]:
        for name in PLANNERS:
            if isinstance(found := vars(module).get(name), FunctionType):
                monkeypatch.setattr(module, name, counted(name, found))
    sdort.run(fast[0], PROMPT, provider="cpu", lora=[str(sd1.a)], output=tmp_path / "drawn.png", **OPTIONS)
    assert calls == dict.fromkeys(PLANNERS, 1)


def test_a_pipeline_that_was_not_opened_for_adapters_takes_one(
    sd1: Adapted, fast: tuple[Path, Path], images: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = sdort.load(fast[0], provider="cpu")
    with_a = pixels(pipeline, f"{sd1.a}:{SCALE}")
    assert "unet is loaded again" in capsys.readouterr().err
    np.testing.assert_array_equal(with_a, images["a"])


def test_models_that_are_loaded_in_turn_have_their_adapters_each_time(sd1: Adapted, fast: tuple[Path, Path]) -> None:
    loaded = {"text_encoder": 1, "unet": 1, "vae_decoder": 1}
    with (
        sdort.load(fast[0], provider="cpu", adapters=True) as normal,
        sdort.load(fast[0], provider="cpu", adapters=True, memory="low") as low,
    ):
        for lora in ([f"{sd1.a}:{SCALE}"], [f"{sd1.a}:{SCALE}"], [str(sd1.b)], []):
            assert in_turn(normal, low, PROMPT, lora=lora, **OPTIONS) == loaded, lora


def test_a_unet_that_was_closed_has_its_adapters_again(
    sd1: Adapted, fast: tuple[Path, Path], images: dict[str, Any]
) -> None:
    """As where a refiner took its place."""
    for adapters in (True, False):
        pipeline = sdort.load(fast[0], provider="cpu", adapters=adapters)
        for _ in range(2):
            np.testing.assert_array_equal(pixels(pipeline, f"{sd1.a}:{SCALE}"), images["a"])
            pipeline._models._close_unet()


def parts_of(session: Session) -> list[Any]:
    """ONNX Runtime's sessions of a step and of what runs before it; each has the weights that it reads."""
    assert session.preparation is not None
    return [session.ort, *(part.ort for part in session.preparation.parts)]


def test_a_provider_that_compiles_weights_gets_them_as_inputs(
    sd1: Adapted,
    fast: tuple[Path, Path],
    images: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sessions, "keeps_constants", lambda provider: True)
    pipeline = sdort.load(fast[0], provider="cpu", adapters=True)
    assert capsys.readouterr().err.count("go to the device in every step") == 1
    unet = pipeline._models.sessions["unet"]
    assert set(unet.weights.replaceable) <= {arg.name for ort in parts_of(unet) for arg in ort.get_inputs()}
    assert not {spec.name for ort in parts_of(unet) for spec in ort.get_overridable_initializers()}
    with_a, none = pixels(pipeline, f"{sd1.a}:{SCALE}"), pixels(pipeline)
    np.testing.assert_array_equal(with_a, images["a"])
    np.testing.assert_array_equal(none, images["none"])


def test_what_a_provider_takes_as_constants_alone_is_no_input_and_is_written_too(fast: tuple[Path, Path]) -> None:
    """As CUDA's NhwcConv takes it; that it reads it in place is checked on a GPU, by scripts/bench_adapters.py."""
    provider = replace(CPU, constant_weights=frozenset({"Conv"}))
    path = open_folder(fast[0]).models["unet"]
    unet = sessions.open_session(path, "unet", provider, RuntimeOptions("cpu", adapters=True, custom_ops="off"))
    convolutions = weights_of(onnx.load(path, load_external_data=False), {"Conv"}) & set(unet.weights.replaceable)
    inputs = {spec.name for ort in parts_of(unet) for spec in ort.get_overridable_initializers()}
    assert len(convolutions) > 3
    assert inputs == set(unet.weights.replaceable) - convolutions
    assert set(unet.weights.initializers) == set(unet.weights.replaceable)


ON_ROCM = """
import json, pathlib, sys
import numpy
from sdort.providers.rocm import PROVIDER
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.placement import parse_placement
from sdort.runtime.session import open_logged

placed = {}
for adapters in (False, True):
    options = RuntimeOptions("rocm", custom_ops="off", adapters=adapters, trials=False)  # the stub computes nothing
    session, log = open_logged(pathlib.Path(sys.argv[1]), "unet", PROVIDER, options)
    placed[adapters] = parse_placement(log)
name, value = next(iter(session.weights.initializers.items()))
address = value.data_ptr()
session.weights.write(name, numpy.full(value.shape(), 3, numpy.float32))
print(json.dumps({
    "same nodes": placed[True] == placed[False],
    "on the GPU": sum(placed[True]["ROCMExecutionProvider"].values()),
    "overridable": sorted({
        spec.name
        for ort in [session.ort, *(part.ort for part in session.preparation.parts)]
        for spec in ort.get_overridable_initializers()
    }),
    "written": bool((value.numpy() == 3).all()),
    "moved": value.data_ptr() != address,
}))
"""


def test_the_rocm_provider_reads_weights_where_they_are_written(sdxl: Adapted, packages: Path) -> None:
    """onnxruntime-rocm's real provider, on a stub of HIP."""
    path = open_folder(sdxl.optimized("rocm", False)[0]).models["unet"]
    done = rocm_stub.runtime().run(ON_ROCM, str(path), PYTHONPATH=str(packages))
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told.pop("on the GPU") > 100
    assert told.pop("overridable") == sorted(find_replaceable(path, "unet"))
    assert told == {"same nodes": True, "written": True, "moved": False}


def test_constants_that_are_computed_from_what_changes_are_told(
    sd1: Adapted, capsys: pytest.CaptureFixture[str]
) -> None:
    """A convolution in fp32 whose weight is the cast of one in fp16: CUDA has no kernel for it."""
    path = open_folder(sd1.optimized("cpu", True)[0]).models["unet"]
    proto = widen_file(path, all_nodes, "unet")
    assert proto is not None
    provider = replace(CPU, constant_weights=frozenset({"Conv"}))
    sessions.open_graph(proto, path, "unet", provider, RuntimeOptions("cpu", adapters=True, custom_ops="off"))
    assert " Conv run on the CPU, as cpu takes their weights as constants alone" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_stage_that_is_done_again_in_fp32_keeps_its_adapter(sd1: Adapted, images: dict[str, Any]) -> None:
    plain, baked = sd1.optimized("cpu", True)
    results = []
    for folder, lora in ((plain, [f"{sd1.a}:{SCALE}"]), (baked, [])):
        pipeline = sdort.load(folder, provider="cpu", adapters=True)
        models = pipeline._models
        models.use_adapters(plan_adapters(models.folder, [AdapterChoice(sd1.a, SCALE)] if lora else []))
        assert isinstance(models.guard, Guard)
        for component in ("unet", "text_encoder"):
            while models.guard.step(component, "a test"):
                pass
            assert models.guard.widened[component] == "all of it"
        results.append(pixels(pipeline, *lora).astype(int))
    # The weights themselves differ by the rounding that is tested above.
    assert np.abs(results[0] - results[1]).max() <= 1
    assert np.abs(results[0] - images["none"]).max() > 10


def test_keys_without_a_place_are_named(
    sd1: Adapted, fast: tuple[Path, Path], images: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(sd1.b) | {"lora_unet_elsewhere.lora_up.weight": np.ones((4, 2), np.float32)}
    save_file(tensors, tmp_path / "more.safetensors")
    pipeline = sdort.load(fast[0], provider="cpu", adapters=True)
    np.testing.assert_array_equal(pixels(pipeline, str(tmp_path / "more.safetensors")), images["b"])
    told = " ".join(capsys.readouterr().err.split())
    assert "more: 1 tensor has no place in this model: lora_unet_elsewhere.lora_up.weight (" in told


def refused_before_loading(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> str:
    monkeypatch.setattr("sdort.generation.command.load_folder", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(BadModelError) as error:
        run()
    return str(error.value)


def test_an_adapter_of_another_family_is_refused_before_anything_is_loaded(
    sd1: Adapted, sdxl: Adapted, fast: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refused_before_loading(
        monkeypatch, lambda: sdort.run(fast[0], PROMPT, provider="cpu", lora=[str(sdxl.b)], **OPTIONS)
    )
    assert "is for" in message
    assert "this model is" in message


@pytest.mark.parametrize("record", [None, "{", '{"conv_in.weight": {"parameter": "conv_in.weight"}}'])
def test_a_model_without_a_record_of_its_weights_is_refused(
    record: str | None, sd1: Adapted, fast: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    shutil.copytree(fast[0], tmp_path / "other")
    path = tmp_path / "other" / "unet" / "model.onnx"
    proto = onnx.load(path, load_external_data=False)
    kept = {entry.key: entry.value for entry in proto.metadata_props if entry.key != ORIGINS_KEY}
    onnx.helper.set_model_props(proto, kept | ({ORIGINS_KEY: record} if record else {}))
    path.write_bytes(proto.SerializeToString())
    relist(tmp_path / "other")
    message = refused_before_loading(
        monkeypatch, lambda: sdort.run(tmp_path / "other", PROMPT, provider="cpu", lora=[str(sd1.a)], **OPTIONS)
    )
    assert "made of" in message


def test_values_that_fp16_cannot_hold_are_refused_and_the_next_image_is_right(sd1: Adapted, tmp_path: Path) -> None:
    folder, _ = sd1.optimized("cpu", True)
    loud = make_lora(sd1.checkpoint, tmp_path / "loud.safetensors", 3, "to_q", strength=1e6)
    pipeline = sdort.load(folder, provider="cpu", adapters=True)
    before = pixels(pipeline, str(sd1.b))
    with pytest.raises(ParityError, match="cannot hold"):
        pixels(pipeline, str(loud))
    np.testing.assert_array_equal(pixels(pipeline, str(sd1.b)), before)


# Prompts that name adapters


def test_text_encoders_have_a_scale_of_their_own(sd1: Adapted) -> None:
    def scales(choice: AdapterChoice) -> dict[str, set[float]]:
        changes = plan_adapters(open_folder(sd1.plain), [choice]).changes
        return {component: {scale for all in of.values() for _, scale in all} for component, of in changes.items()}

    assert scales(AdapterChoice(sd1.a, 2.0, 0.5)) == {"unet": {2.0}, "text_encoder": {0.5}}
    assert scales(AdapterChoice(sd1.a, 2.0, 0.0)) == {"unet": {2.0}}
    assert scales(AdapterChoice(sd1.a, 0.0, 2.0)) == {"text_encoder": {2.0}}
    assert scales(AdapterChoice(sd1.a, 2.0)) == {"unet": {2.0}, "text_encoder": {2.0}}


def test_a_tag_draws_what_its_file_draws_and_is_drawn_again(
    fast: tuple[Path, Path], sd1: Adapted, images: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder: Any = {"lora_folder": sd1.a.parent}
    prompts = [f"{PROMPT}<lora:b:1>", PROMPT, f"{PROMPT}<lora:a:0.1:{SCALE}>", f"{PROMPT}<lora:a:{SCALE}>"]
    with sdort.load(fast[0], provider="cpu", adapters=True) as pipeline:
        found = pipeline.generate(prompts, output=tmp_path / "{index}.png", **folder, **OPTIONS).images
        for image, name in zip(found, ("b", "none", None, "a"), strict=True):
            assert np.array_equal(image.pixels, images["a" if name is None else name]) == (name is not None)
        assert "not applied" not in capsys.readouterr().err
        kept = [json.loads(Image.open(image.path).text["sdort"])["lora"] for image in found if image.path]  # type: ignore[attr-defined]
        assert [[(one["name"], one["scale"], one["text_scale"]) for one in each] for each in kept] == [
            [("b.safetensors", 1.0, None)], [], [("a.safetensors", SCALE, 0.1)], [("a.safetensors", SCALE, None)]
        ]  # fmt: skip
        with pytest.raises(UsageError, match=r"files that are not in it: a\.safetensors:0\.75") as refused:
            pipeline.generate(from_image=found[2].path)
        assert "--lora-folder DIR finds them" in (refused.value.hint or "")
        again = pipeline.generate(from_image=found[2].path, **folder).images[0].pixels
        np.testing.assert_array_equal(again, found[2].pixels)
        assert "differ" not in capsys.readouterr().err
        cases: list[tuple[Any, str]] = [
            ({"negative_prompt": "<lora:b>"}, "only --prompt asks for adapters"),
            ({"prompt_weighting": "comfyui"}, "with --prompt-weighting comfyui it is text"),
        ]
        for options, words in cases:
            pipeline.generate("<lora:b>" if "prompt_weighting" in options else "a", **options, **folder, **OPTIONS)
            assert f"<lora:b>, which is not applied: {words}" in " ".join(capsys.readouterr().err.split())
