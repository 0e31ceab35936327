"""Control images and those of IP-Adapters: who steers which step, how strongly, and what has to fit the UNet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import parser
from PIL import Image

from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import CONTROLNET, IMAGE_ENCODER, T2I_ADAPTER
from sdort.generation.denoising import running_controls
from sdort.generation.denoising.ip_adapter_tokens import IpAdapterTokens, check_ip_adapter_images
from sdort.generation.denoising.running_controls import (
    ActiveControl,
    Controls,
    RunningControls,
    _BoundNet,
    record_control,
)
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.requests import control_plan
from sdort.generation.requests.control_choice import Control, ControlChoice
from sdort.generation.requests.control_plan import ControlModel, find_control, plan_controls
from sdort.generation.requests.ip_adapter_choice import IpAdapterImage
from sdort.graph.signature import TensorSpec
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session
from sdort.runtime.step.bound_unet import Batch, BoundBuffers
from sdort.runtime.step.step_conditions import StepConditions

FLOAT = np.dtype(np.float32)


def picture(height: int = 8, width: int = 24, name: str = "edges.png", mode: str = "RGB", level: int = 7) -> InputImage:
    return InputImage(name, Image.new("RGB", (width, height), (level, 2 * level, 3 * level)).convert(mode))


def control(name: str = "net", **values: Any) -> Control:
    usual: dict[str, Any] = {"path": Path(name), "image": picture(), "scale": 1.0, "start": 0.0, "end": 1.0}
    return Control(**{**usual, **values})


def specs(**shapes: tuple[Any, ...]) -> dict[str, TensorSpec]:
    return {name.replace("__", "."): TensorSpec(name, FLOAT, shape) for name, shape in shapes.items()}


def active(kind: str = CONTROLNET, *, pooled: bool = False, guess: bool = False, outputs: int = 3, run: Any = None,
           session: Any = None, **values: Any) -> ActiveControl:  # fmt: skip
    model: Any = SimpleNamespace(component=kind, pooled=pooled, control=control(**values))
    names = [SimpleNamespace(name=f"o{number}", dtype=FLOAT) for number in range(outputs)]
    session = session or SimpleNamespace(outputs=names, inputs=specs(x=("N", 3, "H", "W")), run=run)
    return ActiveControl(model, session, np.full((1, 3, 8, 24), 0.5, np.float32), guess)


# Which steps, how strongly


@pytest.mark.parametrize(
    ("start", "end", "steps"),
    [(0.0, 1.0, [0, 1, 2, 3]), (0.25, 1.0, [1, 2, 3]), (0.26, 1.0, [2, 3]), (0.0, 0.5, [0, 1]), (0.0, 0.49, [0]),
     (0.25, 0.75, [1, 2]), (0.3, 0.4, [])],
)  # fmt: skip
def test_a_whole_step_lies_in_the_share(start: float, end: float, steps: list[int]) -> None:
    made = control(start=start, end=end)
    assert [step for step in range(4) if made.is_active(step, 4)] == steps
    assert [step for step in range(4) if active(start=start, end=end).is_active(step, 4)] == steps


@pytest.mark.parametrize("values", [{"start": 0.5, "end": 0.5}, {"start": 0.6, "end": 0.5}, {"scale": 10.5},
                                    {"start": -0.1}, {"end": 1.1}])  # fmt: skip
def test_a_choice_has_its_bounds(values: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--control"):
        ControlChoice(Path("net"), "a.png", **values)


def test_a_choice_is_read_with_all_of_its_numbers(tmp_path: Path) -> None:
    picture().picture.save(tmp_path / "edges.png")
    read = ControlChoice(Path("net"), tmp_path / "edges.png", 0.5, 0.1, 0.9).read()
    assert (read.path, read.image.digest, read.scale, read.start, read.end) == (
        Path("net"), picture().digest, 0.5, 0.1, 0.9,
    )  # fmt: skip


@pytest.mark.parametrize("guess", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
def test_scales_rise_in_guess_mode(guess: bool, pooled: bool) -> None:
    made = active(guess=guess, pooled=pooled, scale=0.5)
    rising = guess and not pooled
    np.testing.assert_allclose(made.scales, [0.05, 0.5 * 10**-0.5, 0.5] if rising else [0.5] * 3, rtol=1e-6)
    assert (made.scales.dtype, made.conditional_only) == (FLOAT, guess or pooled)


def test_adapters_features_are_summed_where_each_is_active() -> None:
    runs: list[str] = []

    def run(name: str, value: float) -> Any:
        def call(feeds: dict[str, Any]) -> dict[str, Any]:
            runs.append(name)
            assert feeds["x"].shape == (1, 3, 8, 24)
            return {f"o{number}": np.full((1, 2), value + number, np.float32) for number in range(2)}

        return call

    first = active(T2I_ADAPTER, outputs=2, run=run("first", 1.0), scale=2.0, end=0.5)
    second = active(T2I_ADAPTER, outputs=2, run=run("second", 10.0), scale=0.5, start=0.25, end=0.75)
    controls = Controls([first, active(), second])
    assert [len(controls.nets), len(controls.adapters)] == [1, 2]
    found = [[float(each[0, 0]) for each in controls.features(step, 4)] for step in range(4)]
    assert found == [[2.0, 4.0], [7.0, 9.5], [5.0, 5.5], []]
    assert runs == ["first", "second"]  # once for an image
    assert [controls._changes(step, 4) for step in range(4)] == [True, True, True, True]
    assert Controls([second])._changes(0, 4)
    assert [Controls([first])._changes(step, 4) for step in range(4)] == [True, False, True, False]


def test_features_go_to_their_buffers_and_the_rest_is_zero() -> None:
    filled: dict[str, Any] = {}
    names = [f"down_intrablock_additional_residuals.{number}" for number in range(3)]
    buffers: Any = SimpleNamespace(
        session=SimpleNamespace(inputs=dict.fromkeys(["sample", *names])),
        residuals={name: SimpleNamespace(fill=lambda value, name=name: filled.update({name: value})) for name in names},
    )

    def run(feeds: Any) -> dict[str, Any]:
        return {f"o{number}": np.full(1, 1.0 + number) for number in range(2)}

    controls = Controls([active(T2I_ADAPTER, outputs=2, run=run, end=0.5)])
    controls.prepare(0, 4, buffers)
    assert [float(np.max(filled[name])) for name in names] == [1.0, 2.0, 0.0]
    filled.clear()
    controls.prepare(1, 4, buffers)
    assert filled == {}
    controls.prepare(2, 4, buffers)
    assert [float(np.max(filled[name])) for name in names] == [0.0] * 3


@pytest.mark.parametrize("share", [(0.0, 1.0), (0.25, 1.0), (0.5, 0.75), (0.0, 0.5), (0.3, 0.4)])
def test_a_bound_net_is_zero_wherever_it_does_not_steer_in_every_run(share: tuple[float, float]) -> None:
    """Of the runs before nothing is left, however these ended; residuals are said to be others where they are."""

    class Held:
        value = 7.0  # of whoever had the memory before

        def fill(self, value: float) -> None:
            self.value = value

    target = Held()
    session = SimpleNamespace(run_bound=lambda *_: target.fill(5.0))
    bound: Any = SimpleNamespace(net=active(start=share[0], end=share[1], session=session), targets=[target],
                                 _bindings=[0], _graphs=[1], _copies=None, _make=lambda: None)  # fmt: skip
    for steps in (4, 10, 1, 4):
        for step in range(steps):
            before = target.value
            changed = _BoundNet.prepare(bound, step, steps)
            assert target.value == (5.0 if bound.net.is_active(step, steps) else 0.0)
            assert changed or target.value == before == 0.0


DENOISER = """<ir_version: 8, opset_import: ["": 17]>
unet (float[N, C, 1, 3] sample, float timestep, float[N, T, 6] encoder_hidden_states,
      float[N, 1, 1, 3] down_block_additional_residuals__0, float[N, 1, 1, 3] mid_block_additional_residual,
      float[N, 2, 1, 3] down_intrablock_additional_residuals__0) => (float[N, 4, 1, 3] out)
  <int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4}>
{
  latents = Slice (sample, zero, four, one)
  text = ReduceMean <axes = [1, 2]> (encoder_hidden_states)
  column = Unsqueeze (text, one)
  features = ReduceMean <axes = [1]> (down_intrablock_additional_residuals__0)
  a = Add (latents, column)
  b = Add (a, timestep)
  c = Add (b, down_block_additional_residuals__0)
  d = Add (c, mid_block_additional_residual)
  out = Add (d, features)
}"""
"""Its sums are of no account: what is read are its inputs."""
NET = """<ir_version: 8, opset_import: ["": 17]>
net (float[BATCH, 4, 1, 3] sample, float timestep, float[BATCH, T, 6] encoder_hidden_states,
     float[BATCH, 3, 8, 24] controlnet_cond, float[2] conditioning_scale)
  => (float[BATCH, 1, 1, 3] a, float[BATCH, 1, 1, 3] b)
  <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] axis = {1},
   float ten = {10}, float hundred = {100}, float half = {0.5}, float factor = {FACTOR}>
{
  text = ReduceMean <axes = [1, 2]> (encoder_hidden_states)
  texts = Unsqueeze (text, axis)
  tens = Mul (texts, ten)
  mean = ReduceMean <axes = [1]> (sample)
  hundreds = Mul (mean, hundred)
  sum = Add (tens, hundreds)
  timed = Add (sum, timestep)
  total = Mul (timed, factor)
  image = ReduceMean <axes = [1, 2, 3]> (controlnet_cond)
  seen = Add (total, image)
  first = Slice (conditioning_scale, zero, one)
  a = Mul (seen, first)
  b = Add (seen, half)
}"""
"""Sums of what it gets, one for each sample, its image and its timestep, times a factor."""
IMAGES, PROMPTS, TIME = 2, 2, 5.0


def open_text(text: str, component: str, folder: Path) -> Session:
    path = folder / f"{len(list(folder.iterdir()))}.onnx"
    model = parser.parse_model(text)
    for value in model.graph.input:  # the parser reads no names with points
        value.name = value.name.replace("__", ".")
    for node in model.graph.node:
        node.input[:] = [name.replace("__", ".") for name in node.input]
    path.write_bytes(model.SerializeToString())
    return open_session(path, component, CPU, RuntimeOptions("cpu", custom_ops="off", control_inputs=True))


@pytest.mark.parametrize("extra", [0, 5])
def test_nets_are_added_up_and_some_steer_the_prompt_alone(extra: int, tmp_path: Path) -> None:
    """Two images, without and with the prompt; what a UNet takes beside the latents is not for a ControlNet."""

    def net(batch: Any, factor: float, **choices: Any) -> ActiveControl:
        text = NET.replace("BATCH", str(batch)).replace("FACTOR", str(factor))
        return active(session=open_text(text, CONTROLNET, tmp_path), **choices)

    nets = [net("N", 1.0, scale=2.0), net(2, 1000.0, pooled=True), net("N", 1e6, start=0.5)]
    features = active(T2I_ADAPTER, outputs=1, run=lambda _: {"o0": np.full((1, 2, 1, 3), 7.0, np.float32)}, end=0.5)
    unet = open_text(DENOISER.replace("C,", f"{4 + extra},"), "unet", tmp_path)
    buffers = BoundBuffers(unet, Batch(PROMPTS, IMAGES, (4, 1, 3), extra), {"encoder_hidden_states": (7, 6)}, 1)
    texts = np.broadcast_to(np.array([1.0, 1.0, 2.0, 2.0])[:, None, None], (4, 7, 6))
    conditions = StepConditions.fixed([{"encoder_hidden_states": texts[:2]}, {"encoder_hidden_states": texts[2:]}], 4)
    rows = buffers.step_rows(np.full(4, TIME), conditions)
    buffers.write_conditioning({"encoder_hidden_states": texts})
    latents = np.broadcast_to(np.array([1.0, 3.0])[:, None, None, None], (2, 4, 1, 3))
    buffers.write_sample(latents, np.full((2, extra, 1, 3), 1e9) if extra else None)
    buffers.row.words.write(rows[0])
    controls = Controls([*nets, features])
    total = np.array([1, 1, 2, 2]) * 10 + np.array([1, 3, 1, 3]) * 100 + TIME
    prompted = np.array([0, 0, 1, 1])
    for step, late in ((0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0)):
        controls.prepare(step, 4, buffers)
        found = {name: buffer.read() for name, buffer in buffers.residuals.items()}
        one, thousand, million = total + 0.5, total * 1000 + 0.5, total * 1e6 + 0.5
        first = one * 2 + thousand * prompted + million * late
        last = one + 0.5 + (thousand + 0.5) * prompted + (million + 0.5) * late
        np.testing.assert_allclose(found["down_block_additional_residuals.0"][:, 0, 0, 0], first, rtol=1e-6)
        np.testing.assert_allclose(found["mid_block_additional_residual"][:, 0, 0, 0], last, rtol=1e-6)
        assert (found["down_intrablock_additional_residuals.0"] == (0.0 if late else 7.0)).all()
    fed = buffers.feeds()
    assert [set(part) for part in fed] == [set(unet.inputs)]
    assert float(fed[0]["timestep"]) == TIME
    assert fed[0]["sample"].shape == (4, 4 + extra, 1, 3)


def test_without_guidance_all_samples_are_the_prompts(tmp_path: Path) -> None:
    text = NET.replace("BATCH", "N").replace("FACTOR", "1.0")
    controls = Controls([active(session=open_text(text, CONTROLNET, tmp_path), pooled=True)])
    unet = open_text(DENOISER.replace("C,", "4,"), "unet", tmp_path)
    buffers = BoundBuffers(unet, Batch(1, 2, (4, 1, 3)), {"encoder_hidden_states": (7, 6)}, 1)
    controls.prepare(0, 4, buffers)
    assert (buffers.residuals["mid_block_additional_residual"].read() > 0).all()


# Open models


@pytest.fixture
def open_models(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    opened: list[Any] = []

    def open_or_fall_back(path: Path, component: str, provider: Any, options: Any) -> tuple[Any, None]:
        opened.append((path.name, component, options))
        return SimpleNamespace(path=path, component=component), None

    class Content:
        def __enter__(self) -> Any:
            return SimpleNamespace(reads=lambda paths: None)

        def __exit__(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(running_controls, "open_or_fall_back", open_or_fall_back)
    monkeypatch.setattr(running_controls, "checked", lambda path, check: Content())
    return opened


def model(name: str, kind: str = CONTROLNET, **values: Any) -> Any:
    file = SimpleNamespace(path=Path(name), component=kind)
    return SimpleNamespace(
        control=control(name, **values), file=file, component=kind, image_shape=lambda size: (3, *size)
    )


UNET: Any = SimpleNamespace(provider=CPU, options=RuntimeOptions("cpu", graph=True, adapters=True, split=False))


def test_models_stay_open_and_controls_are_those_of_the_request(open_models: list[Any]) -> None:
    running = RunningControls()
    assert running.use([], (8, 24), UNET, guess=False) is None
    assert (list(running.sessions), list(running.open_models)) == ([], [])
    models = [model("net"), model("adapter", T2I_ADAPTER)]
    first = running.use(models, (8, 24), UNET, guess=False)
    assert running.use(models, (8, 24), UNET, guess=False) is first
    plain = replace(UNET.options, adapters=False)
    assert open_models == [("net", CONTROLNET, plain), ("adapter", T2I_ADAPTER, replace(plain, graph=False))]
    assert [each.component for each in running.sessions] == [CONTROLNET, T2I_ADAPTER]
    kept = {id(first)}
    others: list[Any] = [
        (models, (8, 24), True),
        (models, (24, 8), True),
        (models, (8, 24), False),
        (models[::-1], (8, 24), False),
        (models[:1], (8, 24), False),
        ([models[0], model("other", T2I_ADAPTER)], (8, 24), False),
        *(([model("net", **{name: value}), models[1]], (8, 24), False)  # type: ignore[arg-type]
          for name, value in {"scale": 0.5, "start": 0.1, "end": 0.9, "image": picture(level=9)}.items()),
    ]  # fmt: skip
    alive = [first]
    for listed, size, guess in others:
        found = running.use(listed, size, UNET, guess=guess)
        assert found is not None
        assert id(found) not in kept
        assert {each.guess for each in found.active} == {guess}
        assert found.active[0].pixels.shape == (1, 3, *size)
        kept.add(id(found))
        alive.append(found)
    assert [name for name, *_ in open_models] == ["net", "adapter", "other"]
    assert {path.name for path in running.open_models} == {"net", "adapter", "other"}


def test_each_model_of_the_last_request_is_exchanged_once(open_models: list[Any]) -> None:
    running = RunningControls()
    models = [model("net"), model("adapter", T2I_ADAPTER)]
    running.use([model("earlier")], (8, 24), UNET, guess=False)
    first = running.use(models, (8, 24), UNET, guess=False)
    asked: list[str] = []

    def safer(session: Any) -> Any:
        asked.append(session.component)
        return SimpleNamespace(path=session.path, component="safer") if session.component == CONTROLNET else None

    assert [each.component for each in running.exchange(safer)] == ["safer"]
    assert asked == [CONTROLNET, T2I_ADAPTER]
    second = running.use(models, (8, 24), UNET, guess=False)
    assert second is not first
    assert [each.component for each in running.sessions] == ["safer", T2I_ADAPTER]
    assert running.exchange(safer) == []
    assert asked == [CONTROLNET, T2I_ADAPTER]
    assert running.use(models, (8, 24), UNET, guess=False) is second  # nothing was exchanged


@pytest.mark.parametrize(("size", "told"), [((8, 24), None), ((16, 48), ""), ((16, 24), ", which are other"),
                                            ((8, 25), ""), ((8, 26), ", which are other")])  # fmt: skip
def test_a_control_image_gets_the_size_of_the_image(
    size: tuple[int, int], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    for channels in (1, 3):
        made = model("net")
        made.image_shape = lambda size, channels=channels: (channels, *size)
        pixels = running_controls._pixels(made, size)
        assert (pixels.shape, pixels.dtype) == ((1, channels, *size), FLOAT)
        wanted = [round(7 * 0.299 + 14 * 0.587 + 21 * 0.114)] if channels == 1 else [7, 14, 21]
        np.testing.assert_allclose(pixels[0, :, 0, 0], np.array(wanted) / 255, atol=1e-6)
    halves = np.zeros((8, 24, 3), np.uint8)
    halves[:, 12:] = 255
    turned = model("net", image=InputImage("halves.png", Image.fromarray(halves)))
    found = running_controls._pixels(turned, size)[0, 0]
    assert (found[:, 0].max(), found[:, -1].min()) == (0.0, 1.0)
    said = " ".join(capsys.readouterr().err.split())
    if told is None:
        assert said == ""
    else:
        assert f"--control edges.png is resized from 24x8 to {size[1]}x{size[0]} pixels{told}" in said
        assert (", which are other proportions" in said) is bool(told)


def test_the_record_of_a_control_has_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_controls, "find_control", lambda path: SimpleNamespace(path=path / "m.onnx"))
    monkeypatch.setattr(running_controls, "hash_model", lambda path: f"hash of {path}")
    made = record_control(control("x/net", scale=0.5, start=0.1, end=0.9))
    image = ("edges.png", picture().digest)
    assert tuple(vars(made).values()) == ("net", "hash of x/net/m.onnx", *image, 0.5, 0.1, 0.9)


# What fits a UNet

UNET_INPUTS = specs(
    sample=("N", 4, "H", "W"), timestep=(), encoder_hidden_states=("N", "T", 768),
    down_block_additional_residuals__0=("N", 320, "H", "W"), mid_block_additional_residual=("N", 1280, "H/2", "W/2"),
    down_intrablock_additional_residuals__0=("N", 320, "H", "W"),
    down_intrablock_additional_residuals__1=("N", 640, "H/2", "W/2"),
)  # fmt: skip
NET_INPUTS = specs(sample=("N", 4, "H", "W"), timestep=(), encoder_hidden_states=("N", "T", 768),
                   controlnet_cond=("N", 3, "8*H", "8*W"), conditioning_scale=(2,))  # fmt: skip
NET_OUTPUTS = specs(a=("N", 320, "H", "W"), b=("N", 1280, "H/2", "W/2"))
FOLDER: Any = SimpleNamespace(
    denoiser="unet",
    path=Path("pipe"),
    given="pipe",
    vae_factor=8,
    file=lambda _: SimpleNamespace(signature=SimpleNamespace(inputs=UNET_INPUTS)),
)


def plan(kind: str, inputs: Any, outputs: Any, monkeypatch: pytest.MonkeyPatch, folder: Any = FOLDER) -> None:
    signature = SimpleNamespace(inputs=inputs, outputs=outputs)
    file = SimpleNamespace(component=kind, signature=signature, path=Path("net/model.onnx"))
    monkeypatch.setattr(control_plan, "find_control", lambda _: file)
    [found] = plan_controls(folder, [control()], (64, 128))
    assert found.component == kind


def but(known: dict[str, TensorSpec], **shapes: Any) -> dict[str, TensorSpec]:
    return {**known, **specs(**shapes)}


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (NET_INPUTS, NET_OUTPUTS, None),
        (but(NET_INPUTS, encoder_hidden_states=("N", "T", "D")), NET_OUTPUTS, None),
        (NET_INPUTS, but(NET_OUTPUTS, b=("N", None, None, "W/2")), None),
        (but(NET_INPUTS, text_embeds=("N", 9)), NET_OUTPUTS, "it takes text_embeds, which the UNet does not"),
        (
            but(NET_INPUTS, encoder_hidden_states=("N", "T", 1024)),
            NET_OUTPUTS,
            "its encoder_hidden_states have 1024 numbers, and the UNet's 768",
        ),
        (
            {**NET_INPUTS, "sample": TensorSpec("sample", np.dtype(np.float16), ("N", 4, "H", "W"))},
            NET_OUTPUTS,
            "its sample is float16, and the UNet's float32",
        ),
        (NET_INPUTS, specs(a=("N", 320, "H", "W")), "it has 1 outputs, and the UNet takes 2"),
        (NET_INPUTS, but(NET_OUTPUTS, c=("N", 1, 1, 1)), "it has 3 outputs, and the UNet takes 2"),
        (NET_INPUTS, but(NET_OUTPUTS, b=("N", 640, "H/2", "W/2")), "output 1 is 640x4x8, and the UNet takes 1280x4x8"),
        (NET_INPUTS, but(NET_OUTPUTS, a=("N", 320, "W", "H")), "its output 0 is 320x16x8, and the UNet takes 320x8x16"),
        (NET_INPUTS, but(NET_OUTPUTS, a=("N", 321, None, "W")), r"its output 0 is 321x\?x16"),
    ],
)  # fmt: skip
def test_a_controlnet_fits_by_inputs_and_outputs(
    inputs: Any, outputs: Any, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words is None:
        plan(CONTROLNET, inputs, outputs, monkeypatch)
        return
    with pytest.raises(BadModelError, match=words) as refused:
        plan(CONTROLNET, inputs, outputs, monkeypatch)
    assert refused.value.component == CONTROLNET


def test_an_adapter_may_have_fewer_features_and_fits_by_their_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = specs(x=("N", 3, "A", "B"))
    plan(T2I_ADAPTER, inputs, specs(a=("N", 320, "A/8", "B/8")), monkeypatch)
    plan(T2I_ADAPTER, inputs, specs(a=("N", 320, "A/8", "B/8"), b=("N", 640, "A/16", "B/16")), monkeypatch)
    with pytest.raises(BadModelError, match="its output 0 is 320x16x8, and the UNet takes 320x8x16"):
        plan(T2I_ADAPTER, inputs, specs(a=("N", 320, "B/8", "A/8")), monkeypatch)
    three = specs(a=("N", 320, "A/8", "B/8"), b=("N", 640, "A/16", "B/16"), c=("N", 1))
    with pytest.raises(BadModelError, match="it has 3 features, and the UNet takes 2"):
        plan(T2I_ADAPTER, inputs, three, monkeypatch)


@pytest.mark.parametrize(("kind", "left"), [(CONTROLNET, "intrablock"), (T2I_ADAPTER, "mid_block")])
def test_a_unet_has_inputs_for_each_kind(kind: str, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: value for name, value in UNET_INPUTS.items() if "residual" not in name or left in name}
    folder: Any = SimpleNamespace(
        denoiser="unet",
        path=Path("pipe"),
        given="pipe",
        vae_factor=8,
        file=lambda _: SimpleNamespace(signature=SimpleNamespace(inputs=some)),
    )
    with pytest.raises(BadModelError, match="the UNet of pipe has no inputs for a control image"):
        plan(kind, NET_INPUTS, NET_OUTPUTS, monkeypatch, folder)


def test_the_image_has_the_channels_that_the_model_takes() -> None:
    for kind, name in ((CONTROLNET, "controlnet_cond"), (T2I_ADAPTER, "x")):
        for channels, wanted in ((1, 1), (3, 3), ("C", 3)):
            inputs = specs(**({"sample": ("N", 4, "H", "W")} if kind == CONTROLNET else {}), **{name: ("N", channels)})
            file: Any = SimpleNamespace(component=kind, signature=SimpleNamespace(inputs=inputs))
            assert ControlModel(control(), file).image_shape((8, 24)) == (wanted, 8, 24)


def test_a_folder_without_a_model_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--control: there is no folder"):
        find_control(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadModelError, match="holds no ONNX model yet"):
        find_control(tmp_path)


# IP-Adapters

TOKENS = specs(
    sample=("N", 4, "H", "W"), image_tokens__0=("N", 4, 768), image_scale__0=("N", 1), image_tokens__1=("N", 16, 768),
    image_scale__1=("N", 1),
)  # fmt: skip


@pytest.mark.parametrize("guided", [False, True])
def test_without_images_their_inputs_are_zeros(guided: bool) -> None:
    found = IpAdapterTokens().conditions(TOKENS, [], lambda _: {}, 8, guided)
    assert len(found) == 1 + guided
    for each in found:
        shapes = {name: value.shape for name, value in each.items()}
        assert shapes == {
            "image_tokens.0": (1, 4, 768), "image_scale.0": (1, 1), "image_tokens.1": (1, 16, 768),
            "image_scale.1": (1, 1),
        }  # fmt: skip
        assert not any(value.any() for value in each.values())
    open_size = specs(image_tokens__0=("N", "T", 768))
    with pytest.raises(BadModelError, match="nothing says how large its input 'image_tokens__0' is"):
        IpAdapterTokens().conditions(open_size, [], lambda _: {}, 8, guided)


@pytest.mark.parametrize("own_negative", [False, True])
def test_each_image_has_its_tokens_and_its_scale(own_negative: bool) -> None:
    encoded: list[float] = []

    def encode(pixels: Any) -> dict[str, Any]:
        assert pixels.shape == (1, 3, 8, 8)
        mean = float(pixels.mean())
        encoded.append(round(mean, 3))
        made = {f"image_tokens.{number}": np.full((1, 2), mean + number) for number in range(2)}
        negative = {f"negative_image_tokens.{number}": np.full((1, 2), -10.0 - number) for number in range(2)}
        return made | (negative if own_negative else {})

    first, second = picture(level=10), picture(level=60)
    images = [IpAdapterImage(first, 0.5), IpAdapterImage(second, 0.0)]
    tokens = IpAdapterTokens()
    negative, prompt = tokens.conditions(TOKENS, images, encode, 8, True)
    means = encoded[:1] + encoded[-1:] if own_negative else [encoded[0], encoded[2]]
    assert len(encoded) == (2 if own_negative else 3)
    for number, (mean, scale) in enumerate(zip(means, (0.5, 0.0), strict=True)):
        np.testing.assert_allclose(prompt[f"image_tokens.{number}"], mean + number, atol=1e-3)
        assert prompt[f"image_scale.{number}"].tolist() == negative[f"image_scale.{number}"].tolist() == [[scale]]
        wanted = -10.0 - number if own_negative else number  # else the tokens of an image of zeros
        np.testing.assert_allclose(negative[f"image_tokens.{number}"], wanted, atol=1e-6)
    before = len(encoded)
    [alone] = tokens.conditions(TOKENS, images[:1], encode, 8, False)
    assert alone.keys() == {"image_tokens.0", "image_scale.0"}
    tokens.conditions(TOKENS, images[:1], encode, 8, False)
    assert len(encoded) == before  # known of the request before
    tokens.conditions(TOKENS, images[1:], encode, 8, False)
    assert len(encoded) == before + 1  # the request before had the other one alone


def adapted(taken: int) -> Any:
    """A pipeline whose UNet takes so many images."""
    file = SimpleNamespace(signature=SimpleNamespace(inputs={f"image_tokens.{number}": 0 for number in range(taken)}))
    return SimpleNamespace(
        denoiser="unet", path=Path("pipe"), given="pipe", models=[IMAGE_ENCODER], file=lambda _: file
    )


@pytest.mark.parametrize(
    ("taken", "given", "words"),
    [
        (1, 1, None),
        (2, 2, None),
        (0, 0, None),
        (0, 1, "takes no images by an IP-Adapter"),
        (2, 1, "gives 1 image, and the pipeline has 2 IP-Adapters"),
        (1, 2, "gives 2 images, and the pipeline has 1 IP-Adapter"),
    ],
)
def test_there_is_an_image_for_each_adapter(taken: int, given: int, words: str | None) -> None:
    folder = adapted(taken)
    images = [IpAdapterImage(picture(), 1.0)] * given
    if words is None:
        check_ip_adapter_images(folder, images)
        folder.models = []
        if given:
            with pytest.raises(BadModelError, match="pipe has no image_encoder"):
                check_ip_adapter_images(folder, images)
        return
    with pytest.raises((BadModelError, UsageError), match=words):
        check_ip_adapter_images(folder, images)


@pytest.mark.parametrize(("height", "width", "fine"), [(1, 256, True), (1, 257, False), (257, 1, False)])
def test_an_image_may_be_long_and_thin_to_a_bound(height: int, width: int, fine: bool) -> None:
    folder = adapted(1)
    images = [IpAdapterImage(picture(height, width), 1.0)]
    if fine:
        check_ip_adapter_images(folder, images)
        return
    with pytest.raises(UsageError, match=f"has {width}x{height} pixels, which is too long and thin"):
        check_ip_adapter_images(folder, images)
