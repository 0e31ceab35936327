"""Pieces of the denoising loop at their own functions: which part of which array goes where, in which dtype."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from support.noting import noting

from sdort.errors import UsageError
from sdort.families.unet import UNET
from sdort.generation.denoising import adapted_weights, device_loop, running_controls
from sdort.generation.denoising.device_loop import StepAccumulator
from sdort.generation.denoising.host_loop import embed_guidance
from sdort.generation.denoising.running_controls import _bound_sum, _BoundNet
from sdort.generation.latents.decode import Decoder
from sdort.generation.memory_need import _largest_attention
from sdort.generation.pictures.terminal_picture import _kitty, _png, _runs, _sixel
from sdort.generation.prompts.prompt_schedule import Clock
from sdort.generation.prompts.text_conditioning import _extended
from sdort.generation.requests import stages
from sdort.generation.requests.control_plan import _other_inputs, _other_outputs
from sdort.generation.requests.refiner import _latents
from sdort.generation.requests.schedule_cache import ScheduleCounts, _arrays, _pack, _unpack
from sdort.generation.requests.stages import Stage, _stage
from sdort.generation.schedules.diffusers_sampler import drawing_from
from sdort.generation.schedules.recurrence import Recurrence, _agrees, _unit, _unit_walk
from sdort.generation.schedules.schedule_part import WHOLE, Begin, Part
from sdort.generation.schedules.schedulers import _try_steps, _with_zero_snr
from sdort.graph.signature import TensorSpec
from sdort.runtime.step import bound_unet
from sdort.runtime.step.bound_unet import Batch, BoundBuffers
from sdort.runtime.step.device_buffer import Buffer
from sdort.runtime.step.step_caches import RowTables
from sdort.runtime.step.step_conditions import StepConditions

FP16, FP32 = np.dtype(np.float16), np.dtype(np.float32)


class Place:
    """Stands for a buffer: says which part of it is asked for."""

    def __init__(self, name: str, *shape: int, dtype: np.dtype[Any] = FP32) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.written: list[Any] = []

    def binding_arguments(self, *given: Any) -> tuple[Any, ...]:
        return (self.name, *given)

    def write(self, values: Any) -> None:
        self.written.append(values)

    def read(self) -> Any:
        return f"{self.name} after {len(self.written)}"


def unet(sample: Any, timestep: Any = (), kind: str = "int64", more: tuple[str, ...] = ()) -> Any:
    specs = {
        "sample": TensorSpec("sample", FP32, sample),
        "timestep": TensorSpec("timestep", np.dtype(kind), timestep),
        **{name: TensorSpec(name, FP32, (sample[0], 7)) for name in more},
    }
    return SimpleNamespace(
        inputs=specs, outputs=[TensorSpec("out", FP16, sample)], component="unet", shallow=None, patch=None
    )


# The UNet's inputs


def test_where_the_inputs_of_a_part_of_the_batch_are() -> None:
    held: Any = SimpleNamespace(roles=UNET.roles,
        row=Place("row", 9), sample=Place("sample", 6, 4, 8, 16), conditioning={"text": Place("text", 6, 77, 32)},
        latents=Place("latents", 6, 3, 8, 16), residuals={"mid": Place("mid", 6, 10, 2, 3)}, first=2, _lengths={},
    )  # fmt: skip
    for part, count in ((slice(0, 2), 2), (slice(2, 6), 4)):
        ask: Any = partial(BoundBuffers.arguments, held, part=part)
        assert ask("timestep") == ("row", "timestep")
        assert ask("sample") == ("sample", part.start, (count, 4, 8, 16))
        assert ask("text") == ("text", part.start, (count, 77, 32))
        assert ask("mid") == ("mid", part.start, (count, 10, 2, 3))
    net: Any = SimpleNamespace(_own={"controlnet_cond": Place("image", 2, 3, 64, 128)}, buffers=held, first=2)
    for part, count in ((slice(0, 3), 3), (slice(3, 4), 1)):
        ask = partial(_BoundNet._arguments, net, part=part)
        assert ask("controlnet_cond") == ("image",)
        assert ask("timestep") == ("row", "timestep")
        assert ask("sample") == ("latents", 2 + part.start, (count, 3, 8, 16))
        assert ask("text") == ("text", 2 + part.start, (count, 77, 32))


@pytest.mark.parametrize("dtype", [FP16, FP32, np.dtype(np.int64)], ids=str)
def test_the_address_of_a_part_of_a_buffer(dtype: np.dtype[Any]) -> None:
    session: Any = SimpleNamespace(
        upload=lambda host: SimpleNamespace(data_ptr=lambda: 1000), memory=("cuda", 3), guard=lambda call: call()
    )
    buffer = Buffer(session, np.zeros((5, 2, 3), dtype))
    assert buffer.binding_arguments() == ("cuda", 3, dtype, [5, 2, 3], 1000)
    assert buffer.binding_arguments(2, (3, 2, 3)) == ("cuda", 3, dtype, [3, 2, 3], 1000 + 2 * 6 * dtype.itemsize)


def test_new_conditioning_is_written_run_and_counted() -> None:
    run: list[int] = []
    texts = {name: Place(name, 2, 3) for name in ("text", "ids")}
    held: Any = SimpleNamespace(
        conditioning=texts, prompts=[SimpleNamespace(run=lambda index=index: run.append(index)) for index in (1, 2)],
        changes=5, share=slice(1, 3), _packed=lambda name, values: values, _written=None,
        session=SimpleNamespace(weights=SimpleNamespace(version=7)),
    )  # fmt: skip

    def write(ids: str, text: str) -> tuple[Any, ...]:
        values = {"ids": np.array(list(ids)), "text": np.array(list(text))}
        BoundBuffers.write_conditioning(held, values)
        return len(texts["text"].written), len(texts["ids"].written), len(run), held.changes

    assert write("hij", "stuv") == (1, 1, 2, 6)
    assert ("".join(texts["text"].written[0]), "".join(texts["ids"].written[0]), run) == ("tu", "ij", [1, 2])
    assert write("xij", "stuv") == (1, 1, 2, 6)  # the same of its share
    assert write("hik", "stuv") == (2, 2, 4, 7)
    held.session.weights.version = 8  # of other weights, other things are made
    assert write("hik", "stuv") == (3, 3, 6, 8)
    assert write("hik", "stuv") == (3, 3, 6, 8)
    held.prompts[1].run = lambda: 1 / 0
    for _ in range(2):  # what failed is made again
        with pytest.raises(ZeroDivisionError):
            write("abc", "stuv")


class Kept(dict[Any, Any]):
    """Rows of schedules, all of which are kept."""

    keep = dict.__setitem__


def test_tables_of_rows_are_kept_as_far_as_there_is_room() -> None:
    tables = RowTables(100)
    first, second, third, large = (np.zeros(size, np.uint8) for size in (40, 50, 60, 300))
    assert not tables.is_full
    tables.keep("first", first)
    assert not tables.is_full
    tables.keep("second", second)
    assert tables.is_full
    assert tables.get("first") is first
    assert tables.get("second") is second
    assert tables.get("other") is None
    tables.keep("third", third)
    assert [tables.get(key) is None for key in ("first", "second", "third")] == [True, True, False]
    tables.keep("large", large)  # the last one is kept whatever it has
    assert [tables.get(key) is None for key in ("third", "large")] == [True, False]


@pytest.mark.parametrize("kind", ["int64", "float32"])
@pytest.mark.parametrize("shape", [(), (1,), (3,)], ids=str)
@pytest.mark.parametrize("beside", [("a", "b"), (), None], ids=str)
def test_the_row_of_every_step(
    kind: str, shape: tuple[int, ...], beside: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step whose conditioning is that of the step before has its prepared arrays too."""
    first, second = [{"text": np.zeros((1, 2))}], [{"text": np.ones((1, 2))}]
    conditions = StepConditions([[first, first, second], [first, first, first]])
    made: list[Any] = []

    def prepared(session: Any, prompts: Any, written: Any) -> dict[str, Any]:
        assert (session, prompts) == (held.session, "prompts")
        return {name: np.array([int(written["text"].split()[-1]), len(made)]) for name in "ab"}

    monkeypatch.setattr(bound_unet, "prepared_beside", prepared)
    monkeypatch.setattr(bound_unet, "timed_rows", noting(made, "timed"))
    text = Place("text", 4, 2)
    held: Any = SimpleNamespace(roles=UNET.roles,
        row=SimpleNamespace(array=lambda name: (shape, np.dtype(kind)) if name == "timestep" else None,
                            packed=lambda rows: rows, widened=lambda rows: {"widened": rows}),
        changes=3, session=SimpleNamespace(weights=SimpleNamespace(version=7), preparation=beside if beside is None else
                                           SimpleNamespace(beside=beside, time=None)), rows=Kept(),
        batch=Batch(1, 2, (4, 8, 8)), conditioning={"text": text}, prompts="prompts",
    )  # fmt: skip
    held.write_conditioning = lambda samples: text.write(samples["text"])
    rows: Any = BoundBuffers.step_rows(held, np.array([9.6, 5.5, 0.4]), conditions)
    times = np.array([10, 6, 0] if kind == "int64" else [9.6, 5.5, 0.4], kind)
    np.testing.assert_array_equal(held.timesteps, times)
    assert held.timesteps.dtype == rows["timestep"].dtype == np.dtype(kind)
    assert held.changes == 4
    assert rows["widened"] == "timed"
    assert rows["timestep"].shape == (3, *shape)
    for number in range(3):
        assert (rows["timestep"][number] == times[number]).all()
    np.testing.assert_array_equal(made[0][1], times)
    if not beside:
        assert made[0][2] == {}
        assert text.written == []
        assert BoundBuffers.step_rows(held, np.array([9.6, 5.5, 0.4]), conditions) is rows  # the same timesteps
        held.session.weights.version = 8
        assert BoundBuffers.step_rows(held, np.array([9.6, 5.5, 0.4]), conditions) is not rows
        assert BoundBuffers.step_rows(held, np.array([9.6, 5.5, 1.4]), conditions)["timestep"][2].item(0) != times[2]
        assert len(made) == 3
        return
    assert [values.tolist() for values in text.written] == [[[0, 0]] * 2, [[1, 1], [0, 0]]]
    assert sorted(made[0][2]) == ["a", "b"]
    assert made[0][2]["b"].tolist() == [[1, 0], [1, 0], [2, 0]]
    BoundBuffers.step_rows(held, np.array([9.6, 5.5, 0.4]), conditions)
    assert len(made) == 2  # other prompts make other rows


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("images", [1, 3])
def test_what_stays_from_step_to_step(masked: bool, extra: bool, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_loop, "Buffer", lambda session, values: (session, values))
    batch = Batch(2, images, (4, 2, 5), extra=3)
    outside = np.arange(8.0).reshape(4, 2)
    held: Any = SimpleNamespace(
        buffers=SimpleNamespace(batch=batch, sample=SimpleNamespace(dtype=FP16)), session="session",
        recurrence=SimpleNamespace(outside=outside if masked else None),
    )  # fmt: skip
    numbers = np.random.default_rng(1)
    mask, more = numbers.random((1, 1, 2, 5)) < 0.5, numbers.normal(size=(images, 3, 2, 5))
    found: Any = StepAccumulator._fixed_inputs(held, mask, more if extra else None)
    assert sorted(found) == ["extra"] * extra + ["inside", "outside"] * masked
    assert StepAccumulator._fixed_inputs(held, None, None) == {}
    assert {session for session, _ in found.values()} <= {"session"}
    if masked:
        inside = found["inside"][1].reshape(images, 4, 2, 5)
        assert found["inside"][1].shape == (1, images * 40)
        assert (inside == mask).all()
        weights = found["outside"][1]
        assert (weights.shape, weights.dtype) == ((4, 2, 2), FP32)
        for step, copy in itertools.product(range(4), range(2)):
            assert weights[step, copy].tolist() == [outside[step, 1], outside[step, 0]]
    if extra:
        repeated = found["extra"][1]
        assert (repeated.shape, repeated.dtype) == ((2 * images, 3, 10), FP16)
        for copy in range(2):
            np.testing.assert_array_equal(
                repeated[copy * images : (copy + 1) * images], more.reshape(images, 3, 10).astype(np.float16)
            )


def test_residuals_of_several_controls_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the dtype of each total, whatever that of its parts; each part is bound to the input of its name."""
    bound: dict[str, Any] = {}
    binding = SimpleNamespace(
        bind_input=lambda name, *given: bound.update({name: given}),
        bind_output=lambda name, *given: bound.update({name: given}),
    )
    made: list[Any] = []

    @dataclass
    class Options:
        graph: bool = True
        custom_ops: str = "on"
        adapters: bool = True
        device_id: int = 3

    monkeypatch.setattr(running_controls, "create_session", noting(made, "ort"))
    monkeypatch.setattr(
        running_controls, "Session", lambda *given: SimpleNamespace(io_binding=lambda: binding, given=given)
    )
    totals: Any = [Place("first", 2, 3), Place("second", 2, 4, 1, dtype=FP16)]
    parts: Any = [
        [Place(f"{name}.{index}", *total.shape, dtype=dtype) for index, total in enumerate(totals)]
        for name, dtype in (("a", FP16), ("b", FP32), ("c", FP32))
    ]
    guarded: list[Any] = []

    def guard(call: Any) -> Any:
        guarded.append(call)
        return call()

    session_of: Any = SimpleNamespace(options=Options(), provider="p", guard=guard)
    session, _ = _bound_sum(session_of, parts, totals)
    content, provider, options = made[0]
    assert (provider, options) == ("p", Options(False, "off", False, 3))
    assert session.given[0] == "ort"  # type: ignore[attr-defined]
    assert guarded
    assert bound == {
        **{f"part.{index}.{number}": (f"{name}.{index}",) for index in range(2) for number, name in enumerate("abc")},
        "total.0": ("first",), "total.1": ("second",),
    }  # fmt: skip
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    numbers = np.random.default_rng(0)
    feeds = {
        f"part.{index}.{number}": numbers.normal(size=total.shape).astype(parts[number][index].dtype)
        for index, total in enumerate(totals) for number in range(3)
    }  # fmt: skip
    for index, found in enumerate(ReferenceEvaluator(model).run(None, feeds)):
        expected = sum(feeds[f"part.{index}.{number}"].astype(np.float64) for number in range(3))
        assert found.dtype == totals[index].dtype
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_images_are_decoded_in_parts_of_the_decoders_batch() -> None:
    tiles: list[Any] = []
    session: Any = SimpleNamespace(inputs={"latent": TensorSpec("latent", FP32, (2, 4, "h", "w"))}, component="vae")
    held: Any = SimpleNamespace(
        session=session, _name="latent", factor=2, on_tile=lambda *given: tiles.append(given),
        _run_all=partial(map, lambda latents: np.repeat(np.repeat(latents[:, :3], 2, axis=2), 2, axis=3)), devices=1,
    )  # fmt: skip
    latents = np.random.default_rng(0).normal(size=(4, 4, 8, 12)).astype(np.float32)
    expected = np.repeat(np.repeat(latents[:, :3], 2, axis=2), 2, axis=3)
    np.testing.assert_array_equal(Decoder._at_once(held, latents, None), expected)
    assert tiles == [(1, 1)] * 2
    tiles.clear()
    np.testing.assert_allclose(Decoder._at_once(held, latents, 8), expected, rtol=1e-6)
    assert tiles == [(1, 2), (2, 2)] * 2


def test_conditioning_is_repeated_or_padded_along_its_tokens() -> None:
    value = np.arange(12.0).reshape(1, 6, 2)
    padding = -np.ones((1, 3, 2))
    assert _extended(value, None, 6) is value
    np.testing.assert_array_equal(_extended(value, None, 12), np.concatenate([value, value], axis=1))
    np.testing.assert_array_equal(_extended(value, padding, 12), np.concatenate([value, padding, padding], axis=1))
    np.testing.assert_array_equal(_extended(value, padding, 6), value)


# Controls


def specs(**shapes: Any) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(name, *shape) if isinstance(shape[0], np.dtype) else TensorSpec(name, FP32, shape)
        for name, shape in shapes.items()
    }


WIDE = {"sample": (1, 4), "encoder_hidden_states": ("b", 77, 768), "text_embeds": ("b", 1280), "time_ids": ("b", 6)}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"controlnet_cond": (1, 3), "conditioning_scale": (13,)}, None),
        ({"other": (1,), "another": (1,)}, "it takes another, other, which the UNet does not"),
        ({"encoder_hidden_states": ("b", 77, 1024)}, "its encoder_hidden_states have 1024 numbers, and the UNet's 768"),
        ({"text_embeds": ("b", 7)}, "its text_embeds have 7 numbers, and the UNet's 1280"),
        ({"time_ids": ("b", 5)}, "its time_ids have 5 numbers, and the UNet's 6"),
        ({"time_ids": ("b", "n")}, None),
        ({"encoder_hidden_states": ("c", 154, 768)}, None),
        ({"sample": (FP16, (1, 4))}, "its sample is float16, and the UNet's float32 (optimize both alike)"),
        ({"time_ids": (FP16, ("b", 6))}, "its time_ids is float16, and the UNet's float32 (optimize both alike)"),
        ({"controlnet_cond": (FP16, (1, 3))}, None),
    ],
)  # fmt: skip
def test_inputs_of_a_control_are_the_unets(changes: dict[str, Any], problem: str | None) -> None:
    assert _other_inputs(specs(**WIDE), specs(**{**WIDE, **changes})) == problem
    if not changes:
        assert _other_inputs(specs(**WIDE), specs(sample=(1, 4))) is None


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ([(4, 8, 16), (8, 4, 8)], None),
        ([(4, None, 16), (8, 4, None)], None),
        ([(4, 8, 16)], "outputs"),
        ([(4, 8, 16)] * 3, "more"),
        ([(4, 8, 16), (9, 4, None)], "its output 1 is 9x4x?, and the UNet takes 8x4x8"),
        ([(4, 8, 16), (8, 8, 4)], "its output 1 is 8x8x4, and the UNet takes 8x4x8"),
        ([(4, 16, 8), (8, 4, 8)], "its output 0 is 4x16x8, and the UNet takes 4x8x16"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
@pytest.mark.parametrize("component", ["controlnet", "t2i_adapter"])
def test_outputs_of_a_control_are_the_unets(component: str, outputs: list[Any], problem: str | None) -> None:
    expected = {
        "outputs": "it has 1 outputs, and the UNet takes 2" if component == "controlnet" else None,
        "more": f"it has 3 {'outputs' if component == 'controlnet' else 'features'}, and the UNet takes 2",
    }
    found = _other_outputs(component, outputs, [(4, 8, 16), (8, 4, 8)])
    assert found == expected.get(problem or "", problem)
    unknown = _other_outputs(component, [(4, 8, 16), (8, 4, 8)], [(4, None, 16), (None, 4, 8)])
    assert unknown is None


# Schedules


@pytest.mark.parametrize(
    ("schedule", "share", "order", "steps"),
    [(10, None, 1, 10), (10, 1.0, 1, 10), (10, 0.35, 1, 3), (10, 0.1, 1, 1), (10, 0.99, 2, 9), (7, 0.5, 2, 3),
     (1, 1.0, 1, 1), (10, 0.09, 1, 0), (1, 0.5, 1, 0), (30, 0.01, 2, 0)],
)  # fmt: skip
def test_a_strength_leaves_the_last_steps(
    schedule: int, share: float | None, order: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = schedule * order - (order - 1)
    asked: list[Any] = []

    def cached_counts(*given: Any) -> ScheduleCounts:
        asked.append(given)
        return ScheduleCounts(calls, order)

    monkeypatch.setattr(stages, "cached_counts", cached_counts)
    strength = None if share is None else ("hires_strength", share)
    folder = SimpleNamespace(scheduler={})
    arguments: Any = (folder, "request", (64, 96), schedule, strength, Begin.IMAGE, True)
    if not steps:
        with pytest.raises(UsageError, match=f"--hires-strength {share} of {schedule} steps leaves none to take"):
            _stage(*arguments)
        return
    first = (schedule - steps) * order
    part = WHOLE if share is None else Part(first, begin=Begin.IMAGE, masked=True)
    assert _stage(*arguments) == Stage((64, 96), schedule, steps, calls - first, Clock(schedule * order), part)
    assert asked == [(folder, "request", schedule)]
    if share is not None:
        plain = Part(first, begin=Begin.NOISE, masked=False)
        assert _stage(*arguments[:5]).part == plain


def test_the_strength_that_an_error_advises_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "cached_counts", lambda *given: ScheduleCounts(1, 1))
    folder: Any = SimpleNamespace(scheduler={})
    for schedule in range(1, 1001):
        with pytest.raises(UsageError) as error:
            _stage(folder, "request", (64, 96), schedule, ("strength", 0.0))  # type: ignore[arg-type]
        advised = float(str(error.value.hint).split("--strength ")[1].split()[0])
        assert schedule * advised >= 1
        assert advised <= 1


def recurrence(times: str, takes_image: bool, masked: bool) -> Recurrence:
    numbers = np.random.default_rng(3)
    return Recurrence(
        np.array([9, 5, 1], times), numbers.normal(size=(3, 5)), numbers.normal(size=5), takes_image,
        numbers.normal(size=(4, 2)) if masked else None,
    )  # fmt: skip


@pytest.mark.parametrize("times", ["int64", "int32", "float64", "float32"])
@pytest.mark.parametrize("takes_image", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_schedule_is_kept_as_it_is(times: str, takes_image: bool, masked: bool) -> None:
    kept = recurrence(times, takes_image, masked)
    content = _pack(kept)
    found = _unpack(content)
    assert found is not None
    assert found.takes_image is takes_image
    assert found.timesteps.dtype == np.dtype(times)
    assert (found.outside is not None) is masked
    for name in ("timesteps", "inputs", "result", *["outside"] * masked):
        np.testing.assert_array_equal(getattr(found, name), getattr(kept, name))
    line, _, values = content.partition(b"\n")
    for changed in (
        content + b"\0", content + bytes(8), content[:-1], content[:-8], b"\n" + values, values,
        line.replace(b"true" if takes_image else b"false", b"1") + b"\n" + values,
        line.replace(times.encode(), b"int16") + b"\n" + values,
        line.replace(b"[3, 5]", b"[5, 3]") + b"\n" + values, line.replace(b"[3]", b"[1, 3]") + b"\n" + values,
        content[:-8] + np.float64("nan").tobytes(), content[:-8] + np.float64("inf").tobytes(),
    ):  # fmt: skip
        assert _unpack(changed) is None


@pytest.mark.parametrize(
    ("header", "size"),
    [("5", 80), ("null", 80), ('[true, "int64", 5]', 80), ('[true, "int64", [["a"]]]', 80), ("[true, 7, [[3]]]", 24),
     ("[", 80), ('[true, "int64", [[3]]]', 24), ('[true, "int64", []]', 0), ('[true, "int64", [[3], [3, 5]]]', 144),
     (f'[true, "int64", [[{10**30}]]]', 80), ('[true, "int64", [[-1]]]', 80)],
    ids=["number", "null", "no shapes", "text", "times", "no JSON", "one", "none", "two", "huge", "negative"],
)  # fmt: skip
def test_a_header_of_a_stranger_is_none(header: str, size: int) -> None:
    assert _unpack(header.encode() + b"\n" + bytes(size)) is None


@pytest.mark.parametrize(("steps", "rows", "kept"), [(1, 2, True), (3, 3, False), (3, 2, False), (0, 2, False)])
def test_a_schedule_has_steps_and_more_rows_than_these(steps: int, rows: int, kept: bool) -> None:
    content = _pack(Recurrence(np.zeros(steps), np.ones((steps, rows)), np.ones(rows)))
    assert (_unpack(content) is not None) is kept


def test_arrays_follow_one_another() -> None:
    first, second = np.array([3, 1], np.int32), np.arange(6.0).reshape(2, 3)
    found = list(_arrays(first.tobytes() + second.tobytes(), "int32", [[2], [2, 3]]))
    for array, expected in zip(found, (first, second), strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype
    for values, times in ((bytes(57), "int32"), (bytes(56), "int16"), (bytes(55), "int32")):
        with pytest.raises(ValueError, match=r"bytes are left|not in tuple|buffer is smaller"):
            list(_arrays(values, times, [[2], [2, 3]]))


class Sampler:
    """A linear sampler of two steps that draws noise between them, with the image around a mask."""

    def __init__(self, masked: bool = True) -> None:
        self.timesteps = np.array([9, 5])
        self.part = SimpleNamespace(masked=masked)

    def begin(self, noise: Any, image: Any) -> Any:
        return 2 * noise + 0.5 * image

    def sample(self, number: int, latents: Any) -> Any:
        return (3, 0.25)[number] * latents

    def step(self, number: int, output: Any, latents: Any, draw: Any) -> Any:
        return (0.5, 1.5)[number] * latents - (1, 2)[number] * output + 0.75 * draw()

    def outside(self, number: int, noise: Any, image: Any) -> Any:
        return (0.4, 0.0)[number] * noise + (0.9, 1.0)[number] * image


def randn_tensor(shape: Any, **named: Any) -> Any:
    raise AssertionError("the scheduler draws its own noise")


def expected_recurrence(masked: bool) -> Recurrence:
    """Of :class:`Sampler` by hand: rows are the noise, two outputs, two draws and the image."""
    begun = np.array([2, 0, 0, 0, 0, 0.5])
    after = 0.5 * begun + [0, -1, 0, 0.75, 0, 0]
    last = 1.5 * after + [0, 0, -2, 0, 0.75, 0]
    around = np.array([[3 * 2, 3 * 0.5], [0.25 * 0.4, 0.25 * 0.9], [0, 1]])
    return Recurrence(np.array([9, 5]), np.stack([3 * begun, 0.25 * after]), last, True, around if masked else None)


@pytest.mark.parametrize("masked", [True, False])
def test_a_scheduler_agrees_with_its_own_numbers_alone(masked: bool) -> None:
    right = expected_recurrence(masked)
    assert _agrees(right, Sampler(masked))  # type: ignore[arg-type]
    places = [("inputs", place) for place in np.ndindex(2, 6)] + [("result", (place,)) for place in range(6)]
    for name, place in places + [("outside", (1, column)) for column in range(2)] * masked:
        values = {each: np.array(getattr(right, each)) for each in ("inputs", "result")}
        outside = None if right.outside is None else right.outside.copy()
        (outside if name == "outside" else values[name])[place] += 0.1  # type: ignore[index]
        wrong = Recurrence(right.timesteps, values["inputs"], values["result"], True, outside)
        assert not _agrees(wrong, Sampler(masked)), (name, place)  # type: ignore[arg-type]


@pytest.mark.parametrize("masked", [True, False])
def test_a_walk_of_units_gives_the_weights_of_every_row(masked: bool) -> None:
    inside, outside, used = _unit_walk(Sampler(masked))  # type: ignore[arg-type]
    right = expected_recurrence(masked)
    assert used == 5
    assert inside.shape == (3, 7)  # the image stands behind all noise that could be drawn
    np.testing.assert_allclose(inside[:, [0, 1, 2, 3, 4, 6]], [*right.inputs, right.result], rtol=1e-6)
    assert not inside[:, 5].any()
    if right.outside is not None:
        np.testing.assert_allclose(outside[:, [0, -1]], right.outside, rtol=1e-6)
    unit = _unit(4, 2)
    assert (unit.shape, unit.dtype.name, unit.flatten().tolist()) == ((4, 1, 1, 1), "float64", [0, 0, 1, 0])


def test_a_schedulers_own_noise_comes_back_after_an_error() -> None:
    own = randn_tensor

    def fail() -> None:
        with drawing_from(len, Sampler()):
            assert randn_tensor is len
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert randn_tensor is own
    without = type("Without", (), {"__module__": ModuleType.__module__})()
    with drawing_from(len, without):
        pass
    import builtins

    assert not hasattr(builtins, "randn_tensor")


class Rescaled:
    def __init__(self, betas: Any, rescale_betas_zero_snr: bool = False) -> None:
        self.betas = betas


class Plain:
    def __init__(self, betas: Any) -> None:
        self.betas = betas

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        return config


def test_noise_begins_without_a_signal() -> None:
    """Algorithm 1 of https://arxiv.org/abs/2305.08891: the roots are shifted to end at 0 and scaled to begin alike."""
    import torch

    betas = torch.linspace(0.001, 0.4, 12, dtype=torch.float32)
    own = Rescaled(betas)
    assert _with_zero_snr(own, {}) is own
    config = _with_zero_snr(Plain(betas), {"beta_start": 1, "trained_betas": None})
    assert config["beta_start"] == 1
    roots = np.sqrt(np.cumprod(1 - betas.double().numpy()))
    shifted = (roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])
    found = np.cumprod(1 - np.array(config["trained_betas"]))
    np.testing.assert_allclose(found[:-1], shifted[:-1] ** 2, rtol=1e-9)
    assert found[-1] == pytest.approx(2.0**-24)
    assert found[0] == pytest.approx(1 - float(betas[0]))


class Steps:
    """A scheduler whose step divides by what is left."""

    def __init__(self, timesteps: list[float], bad: float | None = None) -> None:
        import torch

        self.timesteps, self.bad, self.taken = torch.tensor(timesteps), bad, 0

    def scale_model_input(self, sample: Any, time: Any) -> Any:
        return sample

    def step(self, output: Any, time: Any, sample: Any) -> Any:
        self.taken += 1
        return SimpleNamespace(prev_sample=sample / 0 if self.bad == time else sample)


class Seeded(Steps):
    def step(self, output: Any, time: Any, sample: Any, generator: Any = None) -> Any:
        assert generator is not None
        return super().step(output, time, sample)


@pytest.mark.parametrize("kind", [Steps, Seeded])
@pytest.mark.parametrize(
    ("times", "bad", "steps", "message"),
    [
        ([9.0, 5.0, 0.0], None, 3, None),
        ([10.0, 5.0, 0.0], None, 3, "would ask for timestep 10, and the model was trained on 0 to 9"),
        ([9.5, 5.0, 0.0], None, 3, "would ask for timestep 9.5"),
        ([9.0, 5.0, -1.0], None, 3, "would ask for timestep -1"),
        ([9.0, 5.0, 0.0], 5.0, 5, None),
        ([9.0, 5.0, 0.0], 5.0, 6, "so short that it divides by zero"),
        ([9.0, 5.0, 0.0], 0.0, 9, "so short that it divides by zero"),
        ([9.0, 5.0, 0.0], None, 9, None),
    ],
)
def test_many_steps_are_tried_first(
    kind: type[Steps], times: list[float], bad: float | None, steps: int, message: str | None
) -> None:
    scheduler = kind(times, bad)
    if message is None:
        _try_steps(scheduler, steps, 10)
    else:
        with pytest.raises(ValueError, match=message):
            _try_steps(scheduler, steps, 10)
    assert scheduler.taken == 0  # a copy is tried


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_what_a_refiner_has_in_common_with_its_base(side: str) -> None:
    def folder(number: int, **scheduler: str) -> Any:
        vae = {"scaling_factor": number + 1, "latents_mean": number + 2, "latents_std": number + 3}
        return SimpleNamespace(latent_channels=number + 4, vae_factor=number + 5, vae=vae, scheduler=scheduler)

    found = _latents(folder(10, prediction_type="v_prediction"), folder(20))
    index = 1 if side == "ours" else 2
    number = 10 if side == "ours" else 20
    assert {row[0]: row[index] for row in found} == {
        "number of latent channels": number + 4, "size of a latent in pixels": number + 5,
        "scaling factor": number + 1, "mean of latents": number + 2, "deviation of latents": number + 3,
        "prediction type": "v_prediction" if side == "ours" else "epsilon",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, (0, 1)),
        ({"down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "attention_head_dim": [5, 10]}, (1, 10)),
        ({"down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "attention_head_dim": [5, 10]}, (0, 5)),
        ({"down_block_types": ["D", "D", "CrossAttnDownBlock2D"], "attention_head_dim": [5, 10]}, (2, 10)),
        ({"down_block_types": ["D", "AttnDownBlock2D"], "attention_head_dim": 8}, (1, 8)),
        ({"down_block_types": ["D"], "num_attention_heads": 4, "attention_head_dim": 8}, (0, 4)),
        ({"down_block_types": "AttnD", "num_attention_heads": None, "attention_head_dim": 8}, (0, 8)),
        ({"attention_head_dim": []}, (0, 1)),
        ({"attention_head_dim": "8"}, (0, 1)),
    ],
)
def test_the_first_level_with_attention(config: dict[str, Any], found: tuple[int, int]) -> None:
    assert _largest_attention(config) == found


# Adapters


@pytest.mark.parametrize("adds", [False, True], ids=["merged", "added"])
@pytest.mark.parametrize("most", [1 << 30, 100, 0], ids=str)
def test_merged_weights_come_in_their_order_few_at_a_time(
    most: int, adds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    given: list[Any] = []

    def merged(component: str, name: str, weight: Any, changes: Any) -> str:
        given.append((component, name, weight, changes))
        if name == "bad":
            raise ValueError(name)
        return f"merged {name}"

    monkeypatch.setattr(adapted_weights, "_added_or_merged" if adds else "_merged", merged)
    monkeypatch.setattr(adapted_weights, "IN_FLIGHT", most)
    monkeypatch.setattr(adapted_weights, "WORKERS", 2)
    names = [f"n{index}" for index in range(9)]
    known = {name: SimpleNamespace(stored=SimpleNamespace(nbytes=40)) for name in [*names, "bad", "other"]}
    weights: Any = SimpleNamespace(replaceable=known, adds=adds)

    def changed() -> Any:
        for name in names:
            running.append(name)
            yield name

    done = 0
    merge: Any = adapted_weights._all_merged
    for name, values in merge("unet", weights, changed(), "changes"):
        assert (name, values) == (names[done], f"merged {names[done]}")
        done += 1
        assert len(running) - done <= {1 << 30: 4, 100: 2, 0: 0}[most]
    assert done == 9
    assert sorted(given, key=str) == [("unet", name, known[name], "changes") for name in names]
    with pytest.raises(ValueError, match="bad"):
        list(merge("unet", weights, ["n1", "bad", "n2"], "changes"))


# Terminals


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 8192, 9000])
def test_kittys_pictures_come_in_parts(length: int) -> None:
    content = "".join(chr(65 + index % 26) for index in range(length))
    commands = _kitty(content, 30, 12).split("\x1b\\")
    assert commands.pop() == ""
    assert len(commands) == -(-length // 4096)
    found = ""
    for number, command in enumerate(commands):
        controls, data = command.removeprefix("\x1b_G").split(";")
        keys = dict(pair.split("=") for pair in controls.split(","))
        first = {"a": "T", "f": "100", "i": "7361", "p": "1", "q": "2", "C": "1", "c": "30", "r": "12"}
        assert keys == (first if number == 0 else {}) | {"m": "0" if number == len(commands) - 1 else "1"}
        assert len(data) <= 4096
        found += data
    assert found == content


def sixels(sequence: str) -> Any:
    """The picture of a sixel sequence, in percent [height, width, 3]: https://vt100.net/docs/vt3xx-gp/chapter14.html"""
    import re

    head = re.match(r'\x1bP0;1q"1;1;(\d+);(\d+)', sequence)
    assert head is not None
    assert sequence.endswith("\x1b\\")
    picture = np.full((int(head[2]), int(head[1]), 3), np.nan)
    colours: dict[int, Any] = {}
    top = left = 0
    pen: Any = None
    for found in re.finditer(
        r"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)([?-~])|([?-~])|([$-])", sequence[head.end() : -2]
    ):
        if found[1]:
            if found[2]:
                colours[int(found[1])] = [int(found[index]) for index in (2, 3, 4)]
            pen = colours[int(found[1])]
        elif found[8]:
            left, top = 0, top + 6 * (found[8] == "-")
        else:
            count, bits = int(found[5] or 1), ord(found[6] or found[7]) - 63
            for bit in range(6):
                if bits >> bit & 1:
                    picture[top + bit, left : left + count] = pen
            left += count
    return picture


@pytest.mark.parametrize(("height", "width"), [(1, 1), (6, 9), (7, 5), (13, 40), (24, 3)])
def test_sixels_are_the_picture(height: int, width: int) -> None:
    colours = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 51], [20, 102, 255], [255, 255, 255]], np.uint8)
    pixels = colours[np.random.default_rng(height).integers(0, 5, (height, width))]
    pixels[:, : width // 2] = colours[1]
    np.testing.assert_allclose(sixels(_sixel(pixels, (width, height))), pixels / 2.55, atol=1.01)
    assert sixels(_sixel(pixels, (2 * width, 3 * height))).shape == (3 * height, 2 * width, 3)


@pytest.mark.parametrize(
    ("columns", "runs"),
    [
        ([1], "@"),
        ([0, 0, 0], "???"),
        ([0, 0, 0, 0], "!4?"),
        ([1, 2, 2, 63, 63, 63, 63, 63], "@AA!5~"),
        ([5, 0, 5], "D?D"),
    ],
)
def test_sixels_that_repeat_are_counted(columns: list[int], runs: str) -> None:
    assert _runs(np.array(columns)) == runs


def test_a_png_is_the_picture() -> None:
    import io

    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 9, 3), np.uint8)
    with Image.open(io.BytesIO(_png(pixels))) as picture:
        assert picture.format == "PNG"
        np.testing.assert_array_equal(np.asarray(picture), pixels)


@pytest.mark.parametrize("width", [4, 5, 6, 7, 256, 257])
def test_an_embedded_guidance_is_as_wide_as_the_model_asks(width: int) -> None:
    """Sines, cosines, and a 0 where they are even and the width is not."""
    half = width // 2
    angles = 6.5 * 1000 * np.exp(-np.log(10000.0) / (half - 1) * np.arange(half))
    found = embed_guidance(7.5, width)
    assert found.shape == (1, width)
    wanted = [*np.sin(angles), *np.cos(angles), *[0.0] * (width % 2)]
    np.testing.assert_allclose(found[0], wanted, atol=2e-3)  # angles of thousands, in fp32
