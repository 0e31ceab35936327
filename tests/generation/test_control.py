"""ControlNets and T2I-Adapters in a run, held against diffusers' own pipelines from the same noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image
from support import late_stream, tiny_pipeline, without
from support.adapter_files import make_lora
from support.alive_sessions import in_turn
from support.pipelines import trace_folder
from support.tiny_control import build_controlnet, build_t2i_adapter, export_part

import sdort
from sdort.console import quiet_libraries
from sdort.errors import BadModelError, MemoryShortageError, SdortError, UsageError
from sdort.generation import keep_tuning, memory_need
from sdort.generation import pipeline as pipeline_module
from sdort.generation.requests.control_choice import ControlChoice, parse_control_choice
from sdort.generation.requests.control_plan import plan_controls
from sdort.generation.requests.request import Request
from sdort.optimizer.command import optimize
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.runtime import placed_weights
from sdort.runtime import session as session_module
from sdort.runtime.step.control_inputs_removed import remove_control_inputs
from sdort.runtime.step.pieces import plan_pieces
from sdort.verification.metrics import psnr
from sdort.workload.steering_inputs import all_residuals, residual_shapes

LIKE = 60
"""Decibels: fp32 sums in another order; a wrong scale, step or half of a batch costs tens of them."""
PROMPT, NEGATIVE = "a red star", "dull"
STEPS = 5
HALF = 50
"""Decibels: residuals rounded to 11 bits, among fp32 features of the same size."""


@dataclass
class Made:
    """A pipeline, two ControlNets and a T2I-Adapter, in diffusers and exported, and an image for each."""

    folder: Path
    pipeline: Any
    nets: list[Any]
    adapter: Any

    def out(self, name: str) -> Path:
        return self.folder / f"{name} exported"

    @cached_property
    def fast(self) -> Path:
        """The pipeline, optimized."""
        optimize(self.out("pipeline"), self.folder / "fast", provider="cpu")
        return self.folder / "fast"

    def image(self, number: int) -> Path:
        return self.folder / f"image{number}.png"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Made:
    folder, traces = tmp_path_factory.mktemp("control"), trace_folder(request.config)
    pipeline = tiny_pipeline.build_diffusers(folder / "pipeline")
    made = Made(
        folder,
        pipeline,
        [build_controlnet(folder / f"net{number}", seed=number) for number in range(2)],
        build_t2i_adapter(folder / "adapter"),
    )
    for name in ("pipeline", "net0", "net1", "adapter"):
        export_part(folder / name, made.out(name), traces, **({"control": True} if name == "pipeline" else {}))
    generator = np.random.default_rng(0)
    for number in range(2):
        Image.fromarray(generator.integers(0, 256, (64, 64, 3), np.uint8)).save(made.image(number))
    return made


@pytest.fixture(scope="module")
def ours(made: Made) -> Any:
    return sdort.load(made.out("pipeline"), provider="cpu")


def _pictures(made: Made, numbers: list[int]) -> list[Image.Image]:
    return [Image.open(made.image(number)) for number in numbers]


def _theirs(made: Made, numbers: list[int], **options: Any) -> Any:
    """The image of diffusers' StableDiffusionControlNetPipeline, [height, width, 3] in 0 to 255."""
    import torch
    from diffusers import StableDiffusionControlNetPipeline

    parts = {name: getattr(made.pipeline, name) for name in ("vae", "text_encoder", "tokenizer", "unet", "scheduler")}
    nets = [made.nets[number] for number in numbers]
    pictures = _pictures(made, numbers)
    one = len(numbers) == 1
    with quiet_libraries():
        pipeline = StableDiffusionControlNetPipeline(
            **parts, controlnet=nets[0] if one else nets, safety_checker=None, feature_extractor=None,
            requires_safety_checker=False,
        )  # fmt: skip
        pipeline.set_progress_bar_config(disable=True)
        made_image = pipeline(
            PROMPT, pictures[0] if one else pictures, negative_prompt=NEGATIVE, num_inference_steps=STEPS,
            generator=torch.Generator().manual_seed(7), output_type="np", **options,
        )  # fmt: skip
    return made_image.images[0] * 255


def _adapted(made: Made, **options: Any) -> Any:
    """The image of diffusers' StableDiffusionAdapterPipeline."""
    import torch
    from diffusers import StableDiffusionAdapterPipeline

    parts = {name: getattr(made.pipeline, name) for name in ("vae", "text_encoder", "tokenizer", "unet", "scheduler")}
    with quiet_libraries():
        pipeline = StableDiffusionAdapterPipeline(
            **parts, adapter=made.adapter, safety_checker=None, feature_extractor=None, requires_safety_checker=False
        )
        pipeline.set_progress_bar_config(disable=True)
        result = pipeline(
            PROMPT, _pictures(made, [0])[0], negative_prompt=NEGATIVE, num_inference_steps=STEPS, height=64, width=64,
            generator=torch.Generator().manual_seed(7), output_type="np", **options,
        )  # fmt: skip
    return result.images[0] * 255


def _generate(pipeline: Any, control: list[Any], **options: Any) -> Any:
    settings = {"negative_prompt": NEGATIVE, "steps": STEPS, "seed": 7, "control": control, **options}
    return pipeline.generate(PROMPT, **settings).images[0].pixels


def _decibels(ours: Any, theirs: Any) -> float:
    return psnr(np.asarray(ours), np.round(theirs))


CASES: dict[str, tuple[list[int], Callable[[Made], list[Any]], dict[str, Any], dict[str, Any]]] = {
    "one": ([0], lambda m: [f"{m.out('net0')}:{m.image(0)}:0.8"], {"controlnet_conditioning_scale": 0.8}, {}),
    "a share of the steps": (
        [0],
        lambda m: [f"{m.out('net0')}:{m.image(0)}:1:0.3:0.8"],
        {"control_guidance_start": 0.3, "control_guidance_end": 0.8},
        {},
    ),
    "two": (
        [0, 1],
        lambda m: [f"{m.out('net0')}:{m.image(0)}:0.7:0:0.6", ControlChoice(m.out("net1"), m.image(1), 0.5)],
        {"controlnet_conditioning_scale": [0.7, 0.5], "control_guidance_end": [0.6, 1.0]},
        {},
    ),
    "guess mode": ([0], lambda m: [f"{m.out('net0')}:{m.image(0)}"], {"guess_mode": True}, {"guess_mode": True}),
    "without guidance": (
        [0],
        lambda m: [f"{m.out('net0')}:{m.image(0)}"],
        {"guidance_scale": 1.0},
        {"guidance_scale": 1.0},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_images_are_those_of_diffusers(made: Made, ours: Any, case: str) -> None:
    numbers, control, theirs, options = CASES[case]
    expected = _theirs(made, numbers, **{"controlnet_conditioning_scale": 1.0, **theirs})
    assert _decibels(_generate(ours, control(made), **options), expected) > LIKE
    assert _decibels(_generate(ours, []), expected) < 40


@pytest.mark.parametrize("case", ["a share of the steps", "two"])
def test_images_are_the_same_where_steps_return_before_they_are_done(
    made: Made, ours: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = CASES[case][1](made)
    stream = late_stream.install(monkeypatch)
    found = _generate(sdort.load(made.out("pipeline"), provider="cpu"), control)
    assert stream.most > 1
    assert stream.asked == []
    monkeypatch.undo()
    np.testing.assert_array_equal(found, _generate(ours, control))


def test_models_that_steer_are_loaded_with_the_unet(made: Made, ours: Any) -> None:
    options: Any = {"steps": 3, "seed": 7, "num_images": 2, "images_at_once": 1, "negative_prompt": NEGATIVE}
    once = {"text_encoder": 1, "unet": 1, "vae_decoder": 1}
    with sdort.load(made.out("pipeline"), provider="cpu", memory="low") as low:
        two = [*CASES["two"][1](made), f"{made.out('adapter')}:{made.image(0)}"]
        assert in_turn(ours, low, PROMPT, control=two, **options) == {**once, "controlnet": 2, "t2i_adapter": 1}
        assert in_turn(sdort.load(made.out("pipeline"), provider="cpu"), low, PROMPT, **options) == once


def test_a_steered_unet_may_be_in_pieces(made: Made, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ControlNet's residuals go to the piece that adds each; what ONNX Runtime would fuse across a cut may round."""
    control = CASES["two"][1](made)
    expected = _generate(ours, control)
    monkeypatch.setattr(placed_weights, "LEAST", 1 << 8)
    monkeypatch.setattr(
        session_module, "plan_pieces", lambda graph, sizes, *_: plan_pieces(graph, sizes, 0, counts=[4])
    )
    with sdort.load(made.out("pipeline"), provider="cpu", offload=True) as pipeline:
        found = _generate(pipeline, control)
        assert pipeline._models.offloaded is not None
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1


def test_steps_through_the_host_are_the_same(made: Made, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    control = CASES["two"][1](made)
    expected = _generate(ours, control)
    monkeypatch.setattr(type(ours._models.loop), "fits", lambda *args: False)
    assert _decibels(_generate(ours, control), expected) > LIKE


def test_controls_steer_steps_without_the_deep_part(made: Made, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are fed to the skip connections in every step; the loop through the host does the same."""
    control = CASES["a share of the steps"][1](made)
    whole, steered, free = (
        _generate(ours, control),
        _generate(ours, control, deep_cache=2),
        _generate(ours, [], deep_cache=2),
    )
    assert 10 < _decibels(steered, whole) < LIKE
    assert _decibels(steered, whole) > _decibels(free, whole)
    monkeypatch.setattr(type(ours._models.loop), "fits", lambda *args: False)
    assert _decibels(_generate(ours, control, deep_cache=2), steered) > LIKE


def test_controls_steer_without_torch(made: Made, ours: Any, tmp_path: Path) -> None:
    options: Any = {"steps": 2, "seed": 7, "control": [f"{made.out('net0')}:{made.image(0)}:0.8"]}
    [drawn] = without.draw(made.out("pipeline"), tmp_path, PROMPT, options)
    np.testing.assert_array_equal(drawn, ours.generate(PROMPT, **options).images[0].pixels)


def test_an_init_image_is_steered_as_in_diffusers(made: Made, ours: Any) -> None:
    import torch
    from diffusers import StableDiffusionControlNetImg2ImgPipeline

    parts = {name: getattr(made.pipeline, name) for name in ("vae", "text_encoder", "tokenizer", "unet", "scheduler")}
    with quiet_libraries():
        pipeline = StableDiffusionControlNetImg2ImgPipeline(
            **parts, controlnet=made.nets[0], safety_checker=None, feature_extractor=None, requires_safety_checker=False
        )
        pipeline.set_progress_bar_config(disable=True)
        control, init = _pictures(made, [0, 1])
        expected = pipeline(
            PROMPT, init, control, negative_prompt=NEGATIVE, num_inference_steps=STEPS, strength=0.6,
            controlnet_conditioning_scale=1.0, control_guidance_end=0.7,
            generator=torch.Generator().manual_seed(7), output_type="np",
        ).images[0] * 255  # fmt: skip
    got = _generate(ours, [f"{made.out('net0')}:{made.image(0)}:1:0:0.7"], init_image=made.image(1), strength=0.6)
    assert _decibels(got, expected) > LIKE


@pytest.mark.parametrize("name", ["pipeline", "net0", "adapter"])
def test_verify_feeds_all_inputs(made: Made, tmp_path: Path, name: str) -> None:
    optimize(made.out(name), tmp_path / "fast", provider="cpu", components=["unet"] if name == "pipeline" else ())
    checked = sdort.verify(tmp_path / "fast", provider="cpu", inputs="random", images=False, torch=False)
    assert checked.passed


def test_a_t2i_adapter_steers_as_in_diffusers(made: Made, ours: Any) -> None:
    choice = ControlChoice(made.out("adapter"), made.image(0), 0.9)
    expected = _adapted(made, adapter_conditioning_scale=0.9)
    assert _decibels(_generate(ours, [choice]), expected) > LIKE
    assert _decibels(_generate(ours, []), expected) < 40


def test_optimized_models_steer_alike(made: Made, ours: Any, tmp_path: Path) -> None:
    optimize(made.out("net0"), tmp_path / "net0", provider="cpu")
    fast = sdort.load(made.fast, provider="cpu")
    got = _generate(fast, [f"{tmp_path / 'net0'}:{made.image(0)}"], num_images=2)
    assert _decibels(got, _generate(ours, [f"{made.out('net0')}:{made.image(0)}"])) > LIKE


def test_a_run_without_controls_is_not_changed_by_an_earlier_one(made: Made, ours: Any) -> None:
    before = _generate(ours, [])
    _generate(ours, [f"{made.out('net0')}:{made.image(0)}", f"{made.out('adapter')}:{made.image(1)}"])
    np.testing.assert_array_equal(_generate(ours, []), before)


def test_each_kind_of_request_has_its_unet(made: Made) -> None:
    pipeline = sdort.load(made.fast, provider="cpu")
    models = pipeline._models
    control = [f"{made.out('net0')}:{made.image(0)}"]
    without = models.sessions["unet"]
    assert not all_residuals(without.inputs)
    steered = _generate(pipeline, control)
    having = models.sessions["unet"]
    assert having.inputs.keys() == models.folder.file("unet").signature.inputs.keys()
    _generate(pipeline, [])
    assert models.sessions["unet"] is without
    np.testing.assert_array_equal(_generate(pipeline, control), steered)
    assert models.sessions["unet"] is having


def test_without_room_for_two_unets_one_has_zeros(made: Made, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "has_room", lambda *args: False)
    pipeline = sdort.load(made.out("pipeline"), provider="cpu")
    _generate(pipeline, [f"{made.out('net0')}:{made.image(0)}"])
    assert _decibels(_generate(pipeline, []), _generate(ours, [])) > LIKE
    assert all_residuals(pipeline._models.sessions["unet"].inputs)


@pytest.mark.parametrize("provider", ["cuda", "migraphx"])
def test_a_graph_without_control_inputs_is_that_of_a_plain_unet(
    made: Made, tmp_path: Path, provider: str, request: pytest.FixtureRequest
) -> None:
    plain = export_part(made.folder / "pipeline", tmp_path / "plain", trace_folder(request.config), components=["unet"])
    graphs = []
    for name, source in (("plain", plain), ("control", made.out("pipeline"))):
        optimize(source, tmp_path / provider / name, provider=provider, fp16=True, components=["unet"])
        graphs.append(onnx.load(next((tmp_path / provider / name).rglob("model.onnx"))))
    assert {spec.type.tensor_type.elem_type for spec in graphs[1].graph.input[3:]} == {onnx.TensorProto.FLOAT16}
    assert _computed(graphs[1]) != _computed(graphs[0])
    remove_control_inputs(graphs[1], "unet")
    assert _computed(graphs[1]) == _computed(graphs[0])


def _computed(model: onnx.ModelProto) -> tuple[list[bytes], int]:
    """What the outputs are computed from, names aside, and the number of nodes."""
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    known = {
        name: hashlib.sha256(repr((v.shape, v.dtype)).encode() + v.tobytes()).digest() for name, v in values.items()
    }
    known |= {spec.name: spec.name.encode() for spec in model.graph.input} | {"": b""}
    for node in model.graph.node:
        attributes = sorted(attribute.SerializeToString() for attribute in node.attribute)
        said = repr((node.domain, node.op_type, attributes, [known[name] for name in node.input])).encode()
        known |= {
            name: hashlib.sha256(said + bytes([index])).digest() for index, name in enumerate(node.output) if name
        }
    return [known[spec.name] for spec in model.graph.output], len(model.graph.node)


def test_a_controlnet_in_fp16_steers_a_unet_in_fp32(made: Made, ours: Any, tmp_path: Path) -> None:
    optimize(made.out("net0"), tmp_path / "half", provider="cpu", fp16=True)
    control = [f"{folder}:{made.image(0)}" for folder in (tmp_path / "half", made.out("net0"))]
    [half, exact] = [_generate(ours, [one]) for one in control]
    assert _decibels(half, exact) > HALF
    assert _decibels(_generate(ours, []), exact) < 40


def test_what_steers_is_in_fp32_before_the_unet(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    optimize(made.out("net0"), tmp_path / "half", provider="cpu", fp16=True)
    control = [f"{tmp_path / 'half'}:{made.image(0)}"]
    pipeline = sdort.load(made.out("pipeline"), provider="cpu")
    guard, problems = pipeline._models.guard, iter([None, "it gave NaN"])
    assert guard is not None
    run = guard.run

    def fails_once(component: str, work: Any, problem_of: Any) -> Any:
        return run(component, work, lambda result: next(problems, None) if component == "unet" else problem_of(result))

    monkeypatch.setattr(guard, "run", fails_once)
    half = _generate(pipeline, control)
    [before] = pipeline._models.controls.sessions
    safer = _generate(pipeline, control)
    [after] = pipeline._models.controls.sessions
    told = " ".join(capsys.readouterr().err.split())
    assert "unet: it gave NaN. It is done again with all of controlnet in fp32" in told
    assert guard.widened == {"controlnet": "all of it"}
    exact = _generate(pipeline, [f"{made.out('net0')}:{made.image(0)}"])
    assert not np.array_equal(safer, half)
    assert min(_decibels(safer, exact), _decibels(half, exact)) > HALF
    assert _share_rounded_once(after, made) > 0.95  # sums in another order round a few to the next number
    assert _share_rounded_once(before, made) < 0.8
    assert not guard.step("unet", "a test")  # nothing of both is in fp16 any more


def _share_rounded_once(session: Any, made: Made) -> float:
    """The share of a session's residuals that are those of the first ControlNet, with its weights in fp16, in fp32
    arithmetic and rounded to fp16 at the end."""
    model = onnx.load(made.out("net0") / "controlnet" / "model.onnx")
    for weight in model.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(weight).astype(np.float16).astype(np.float32)
            weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    shapes: dict[str, tuple[int, ...]] = {
        "sample": (2, 4, 8, 8), "timestep": (), "encoder_hidden_states": (2, 77, 32), "controlnet_cond": (2, 3, 32, 32),
        "conditioning_scale": (5,),
    }  # fmt: skip
    generator = np.random.default_rng(3)
    feeds = {name: generator.uniform(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    found = session.run(feeds)
    equal = [found[name] == values.astype(np.float16) for name, values in zip(found, wanted, strict=True)]
    return float(np.mean(np.concatenate([each.ravel() for each in equal])))


def test_adapters_stay_while_controls_come_and_go(made: Made, tmp_path: Path) -> None:
    lora = make_lora(made.folder / "pipeline", tmp_path / "a.safetensors", 1)
    with_lora: Any = {"lora": [f"{lora}:0.8"], "steps": 2}
    control = [f"{made.out('net0')}:{made.image(0)}"]
    pipeline, other = (sdort.load(made.fast, provider="cpu", adapters=True) for _ in range(2))
    alone = _generate(pipeline, [], **with_lora)
    steered = _generate(pipeline, control, **with_lora)
    np.testing.assert_array_equal(steered, _generate(other, control, **with_lora))
    np.testing.assert_array_equal(_generate(pipeline, [], **with_lora), alone)
    np.testing.assert_array_equal(_generate(pipeline, control, steps=2), _generate(other, control, steps=2))
    assert _decibels(_generate(pipeline, control, steps=2), steered) < 40


def test_memory_counts_what_controls_take(made: Made, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, free = open_folder(made.out("pipeline")), 8 << 30
    monkeypatch.setattr(memory_need, "free_memory", lambda *_: free)
    nets = [ControlChoice(made.out(f"net{number}"), made.image(0)).read() for number in range(2)]
    requests = [Request("", height=256, width=256, control=tuple(nets[:count])) for count in range(3)]
    plain, one, two = [memory_need.generation_bytes(folder, request, 1, CPU, free) for request in requests]
    tensors = residual_shapes(folder.file("unet").signature.inputs, (2, 4, 64, 64)).values()
    between = 4 * sum(math.prod(shape) for shape in tensors)
    net = two - one - 2 * between  # two ControlNets have buffers of their own beside the UNet's
    assert one - plain == net + between
    assert net > between
    free = needed = memory_need.refuse_generation(folder, requests[1], 1, CPU, 0)
    weights = made.out("net0").joinpath("controlnet", "model.onnx.data").stat().st_size
    monkeypatch.setattr(memory_need, "MARGIN", 1.0)
    opened = {next(made.out("net0").rglob("*.onnx")).resolve()}
    free = needed + weights - 1
    with pytest.raises(MemoryShortageError):
        memory_need.refuse_generation(folder, requests[1], 1, CPU, 0, held=0)
    memory_need.refuse_generation(folder, requests[1], 1, CPU, 0, held=0, controls_open=opened)


def test_what_was_tuned_for_controls_is_kept(made: Made, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[str, int]] = []
    monkeypatch.setattr(
        keep_tuning, "keep_case", lambda session, case, *sizes: kept.append((case.component, case.batch))
    )
    monkeypatch.setattr(keep_tuning, "keep_shapes", lambda session, shapes: kept.append((session.component, 1)))
    _generate(ours, [f"{made.out('net0')}:{made.image(0)}", f"{made.out('adapter')}:{made.image(1)}"], steps=1)
    assert {("unet", 2), ("controlnet", 2), ("t2i_adapter", 1)} <= set(kept)


def test_the_record_says_what_steered(made: Made, ours: Any) -> None:
    choice = f"{made.out('net0')}:{made.image(0)}:0.5:0.2:0.9"
    [control] = ours.generate(PROMPT, steps=1, seed=1, control=[choice]).control
    assert (control.name, control.image) == ("net0 exported", "image0.png")
    assert (control.scale, control.start, control.end) == (0.5, 0.2, 0.9)


REFUSED: dict[str, tuple[Callable[[Made], Any], type[SdortError], str]] = {
    "no image": (lambda m: f"{m.out('net0')}:{m.folder / 'net0' / 'config.json'}", UsageError, "no image"),
    "not there": (lambda m: f"{m.folder / 'nowhere'}:{m.image(0)}", UsageError, "there is no folder"),
    "not exported": (lambda m: f"{m.folder / 'net0'}:{m.image(0)}", BadModelError, "holds no ONNX model yet"),
    "a pipeline": (lambda m: f"{m.out('pipeline')}:{m.image(0)}", BadModelError, "neither a ControlNet nor"),
    "form": (lambda m: "canny", UsageError, "expected DIR:IMAGE"),
    "scale": (lambda m: f"{m.out('net0')}:{m.image(0)}:11", UsageError, "control 11"),
    "share": (lambda m: f"{m.out('net0')}:{m.image(0)}:1:0.5:0.5", UsageError, "begins at 0.5 of the steps"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_steer_is_refused(made: Made, ours: Any, case: str) -> None:
    control, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        _generate(ours, [control(made)])


def _set_width(graph: onnx.GraphProto) -> None:
    next(spec for spec in graph.input if spec.name == "encoder_hidden_states").type.tensor_type.shape.dim[
        2
    ].dim_value = 9


def _set_type(graph: onnx.GraphProto) -> None:
    graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16


def _widen_output(graph: onnx.GraphProto) -> None:
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = 320


FOREIGN: dict[str, tuple[Callable[[onnx.GraphProto], object], str]] = {
    "text of another width": (_set_width, "its encoder_hidden_states have 9 numbers"),
    "another precision": (_set_type, "sample is float16, and the UNet's float32 .optimize both alike"),
    "other channels": (_widen_output, "its output 0 is 320x"),
    "fewer levels": (lambda graph: graph.output.pop(), r"it has \d+ outputs, and the UNet takes \d+"),
    "SDXL's inputs": (
        lambda graph: graph.input.append(onnx.helper.make_tensor_value_info("time_ids", 1, ["batch_size", 6])),
        "it takes time_ids, which the UNet does not",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_controlnet_of_another_family_is_refused(made: Made, tmp_path: Path, case: str) -> None:
    change, message = FOREIGN[case]
    model = onnx.load(next(made.out("net0").rglob("*.onnx")), load_external_data=False)
    change(model.graph)
    (tmp_path / "controlnet").mkdir()
    onnx.save(model, tmp_path / "controlnet" / "model.onnx")
    control = ControlChoice(tmp_path, made.image(0)).read()
    with pytest.raises(BadModelError, match=message):
        plan_controls(open_folder(made.out("pipeline")), [control], (64, 64))


def test_a_pipeline_without_inputs_for_controls_is_refused(made: Made, tiny: tiny_pipeline.Tiny) -> None:
    control = ControlChoice(made.out("net0"), made.image(0)).read()
    with pytest.raises(BadModelError, match="has no inputs for a control image") as refusal:
        plan_controls(open_folder(tiny.onnx), [control], (64, 64))
    assert refusal.value.hint
    assert "sdort export MODEL OUT --control" in refusal.value.hint


@pytest.mark.parametrize(
    ("text", "path", "image", "numbers"),
    [
        ("canny:edges.png", "canny", "edges.png", (1, 0, 1)),
        ("canny:edges.png:0.8", "canny", "edges.png", (0.8, 0, 1)),
        ("canny:edges.png:.8:0:0.5", "canny", "edges.png", (0.8, 0, 0.5)),
        (r"C:\models\canny:D:\edges.png:1", r"C:\models\canny", r"D:\edges.png", (1, 0, 1)),
        ("c:/models/canny:edges.png", "c:/models/canny", "edges.png", (1, 0, 1)),
    ],
)
def test_choices_are_read(text: str, path: str, image: str, numbers: tuple[float, float, float]) -> None:
    choice = parse_control_choice(text)
    assert (str(choice.path), str(choice.image)) == (str(Path(path)), str(Path(image)))
    assert (choice.scale, choice.start, choice.end) == numbers


def test_colons_in_names_that_exist_part_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my:net").mkdir()
    (tmp_path / "edges:2").write_bytes(b"")
    choice = parse_control_choice("my:net:edges:2")
    assert (str(choice.path), str(choice.image), choice.scale) == ("my:net", "edges:2", 1)
