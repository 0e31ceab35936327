"""The loop on the device and the loop through the host, held to one simulation in float64.

A drawn product of what a run can have: prompts with weights of any sign, several images with prompts of their own,
prompts that change, noise on the way, a mask, channels beside the latents, residuals, clocks of each kind, batches that
a model is fixed to, calls that take the deep part from an earlier one. The UNet has parts that are prepared: of texts,
of timesteps, and of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper, parser

from sdort.generation.denoising import host_loop
from sdort.generation.denoising.device_loop import Loop
from sdort.generation.latents.start_latents import BatchStart
from sdort.generation.schedules.recurrence import Recurrence
from sdort.graph.signature import Array
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session
from sdort.runtime.step.bound_unet import Batch
from sdort.runtime.step.step_conditions import StepConditions

STEPS, LATENT, RESIDUAL = 3, (4, 2, 3), "mid_block_additional_residual"
KEY = np.array([[1, 2, 0, 1], [0, -1, 1, 2], [2, 0, 1, -1]]) / 4
FREQUENCIES = np.array([[0.25, 0.125]])
LINEAR = np.array([[1, -2, 3, -4], [5, -6, 7, -8]]) / 8
ADDED = np.array([[1, 0, -1, 2], [0, 3, 1, -1]]) / 4
OUTER = np.array([1, -2, 3, 1]).reshape(1, 4, 1, 1) / 4
DEEP = np.array([2, 1, -1, 3]).reshape(1, 4, 1, 1) / 4


def numbers(array: Array) -> str:
    return ", ".join(str(float(each)) for each in array.reshape(-1))


UNET = f"""<ir_version: 8, opset_import: ["": 17]>
unet ({{io}}[{{n}}, {{channels}}, H, W] sample, {{clock}} timestep, {{io}}[{{n}}, T, 3] encoder_hidden_states,
      {{io}}[{{n}}, 2] text_embeds, {{io}}[{{n}}, 4, H, W] {RESIDUAL}) => ({{io}}[{{n}}, 4, H, W] out)
  <float[3, 4] key = {{{{{numbers(KEY)}}}}}, float[1, 2] frequencies = {{{{{numbers(FREQUENCIES)}}}}},
   float[2, 4] linear = {{{{{numbers(LINEAR)}}}}}, float[2, 4] adds = {{{{{numbers(ADDED)}}}}},
   int64[1] one = {{{{1}}}}, int64[1] zero = {{{{0}}}}, int64[2] two_three = {{{{2, 3}}}},
   float[1, 4, 1, 1] outer = {{{{{numbers(OUTER)}}}}}, float[1, 4, 1, 1] deep = {{{{{numbers(DEEP)}}}}},
   int64[2] column = {{{{-1, 1}}}}, int64[1] four = {{{{4}}}}, int64[1] many = {{{{9}}}}>
{{{{
  keys = MatMul (encoder_hidden_states, key)
  pooled = ReduceMean <axes = [1], keepdims = 0> (keys)
  cast = Cast <to = {{to}}> (timestep)
  {{rows}}
  rows = Reshape (times, column)
  angles = Mul (rows, frequencies)
  embedded = MatMul (angles, linear)
  added = MatMul (text_embeds, adds)
  shifted = Add (embedded, added)
  shift = Unsqueeze (shifted, two_three)
  factor = Unsqueeze (pooled, two_three)
  latents = Slice (sample, zero, four, one)
  {{beside}}
  scaled = Mul (told, factor)
  shifted_more = Add (scaled, shift)
  skip = Mul (shifted_more, outer)
  deeper = Mul (skip, deep)
  hidden = Add (deeper, {RESIDUAL})
  joined = Concat <axis = 1> (hidden, skip)
  left, right = Split <axis = 1> (joined)
  out = Add (left, right)
}}}}"""
ALL_SAMPLES = """shape = Shape (sample)
  batch = Slice (shape, zero, one)
  single = Reshape (cast, one)
  times = Expand (single, batch)"""
MEAN = """rest = Slice (sample, four, many, one)
  mean = ReduceMean <axes = [1], keepdims = 1> (rest)
  told = Add (latents, mean)"""


@dataclass
class Case:
    """What a run has."""

    copies: int
    images: int
    noisy: bool
    masked: bool
    extra: int
    steered: bool
    changing: bool
    own_prompts: bool
    clock: str
    n: str
    io: str
    every: int
    """After how many calls the whole UNet runs; 0 for one that is not cut."""
    devices: int = 1
    """Sessions that share the samples."""

    def open(self, folder: Path) -> Session:
        rows = "times = Identity (cast)" if self.clock == "float[N]" and self.n == "N" else ALL_SAMPLES
        text = UNET.format(
            io=self.io,
            n=self.n,
            clock=self.clock.replace("N", self.n),
            channels=4 + self.extra,
            to={"float": 1, "float16": 10}[self.io],
            rows=rows if self.clock != "float[N]" else "times = Identity (cast)",
            beside=MEAN if self.extra else "told = Identity (latents)",
        )
        path = folder / "unet.onnx"
        model = parser.parse_model(text)
        for tensor in model.graph.initializer:  # the parser reads no constants in float16
            if self.io == "float16" and tensor.data_type == TensorProto.FLOAT:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
        path.write_bytes(model.SerializeToString())
        options = RuntimeOptions("cpu", custom_ops="off", control_inputs=True, deep_cut=min(1, self.every))
        return open_session(path, "unet", CPU, replace(options, devices=range(self.devices)))


def drawn(seed: int) -> Case:
    random = np.random.default_rng(seed)
    copies, images = int(random.integers(1, 5)), int(random.integers(1, 4))
    fixed = [n for n in (1, 2, 3) if copies * images % n == 0]
    yes = iter(random.integers(0, 2, 6).astype(bool).tolist())
    case = Case(
        copies, images, noisy=next(yes), masked=next(yes), extra=3 if next(yes) else 0, steered=next(yes),
        changing=next(yes), own_prompts=next(yes),
        clock=str(random.choice(["int64", "float[1]", "float[N]", "float"])),
        n=str(random.choice(["N", *map(str, fixed)])), io="float16" if seed % 5 == 4 else "float",
        every=int(random.integers(0, STEPS + 1)),
    )  # fmt: skip
    # What steers is written to the first device's UNet.
    return replace(case, devices=1 if case.steered else int(random.integers(1, 4)))


class Schedule:
    """A linear scheduler of drawn numbers: for the host in steps, for the device as a recurrence."""

    def __init__(self, case: Case, random: np.random.Generator) -> None:
        self.masked, self.noisy = case.masked, case.noisy
        self.times = np.array([8.0, 5.4, 1.6])
        self.scale, self.keep, self.add = random.uniform(0.5, 1, (3, STEPS))
        self.noise = random.uniform(0.2, 0.5, STEPS) * case.noisy
        self.start = np.array([0.7, 0.6 if case.masked else 0])
        """Weights of the noise and the image."""
        self.around = np.concatenate([random.uniform(0.2, 0.8, (STEPS - 1, 2)), [[0, 1]]])
        """Of the latents outside of a mask after each step."""

    def recurrence(self) -> Recurrence:
        size = 1 + STEPS + STEPS * self.noisy + self.masked
        unit = np.eye(size)
        latents = self.start[0] * unit[0] + (self.start[1] * unit[-1] if self.masked else 0)
        inputs = []
        for step in range(STEPS):
            inputs.append(self.scale[step] * latents)
            latents = self.keep[step] * latents + self.add[step] * unit[1 + step]
            latents = latents + (self.noise[step] * unit[1 + STEPS + step] if self.noisy else 0)
        weights = np.concatenate([[self.start], self.around]) * [*self.scale[:, None], [1]]
        outside = weights if self.masked else None
        return Recurrence(self.times, np.array(inputs), latents, self.masked, outside)

    def steps(self) -> Any:
        """As :class:`sdort.generation.schedules.schedule_part.PartSteps`."""

        def step(number: int, output: Any, latents: Any, draw: Any) -> Any:
            made = float(self.keep[number]) * latents + float(self.add[number]) * output
            return made + float(self.noise[number]) * draw() if self.noisy else made

        def blend(weights: Array) -> Callable[[Any, Any], Any]:
            around = weights.tolist()
            return lambda noise, image: around[0] * noise + (around[1] * image if self.masked else 0)

        return SimpleNamespace(
            sampler=SimpleNamespace(name="Sampler"),
            timesteps=self.times.astype(np.float32),
            begin=blend(self.start),
            sample=lambda number, latents: float(self.scale[number]) * latents,
            step=step,
            outside=lambda number, noise, image: blend(self.around[number])(noise, image),
        )


class Steering:
    """Another residual in each step, none in the second.

    In the place of :class:`sdort.generation.denoising.running_controls.Controls`.
    """

    values = (0.5, 0.0, -1.25)

    def prepare(self, step: int, steps: int, buffers: Any) -> None:
        assert steps == STEPS
        # What a ControlNet reads at this point, also where the UNet takes more than the latents.
        assert np.array_equal(buffers.latents.read(), buffers.sample.read()[:, : LATENT[0]])
        buffers.residuals[RESIDUAL].fill(self.values[step])


@dataclass
class Run:
    """The arrays of a run."""

    case: Case
    schedule: Schedule
    noise: Array
    image: Array | None
    mask: Array | None
    extra: Array | None
    texts: list[list[list[dict[str, Array]]]]
    """Of each image, each call, each copy; calls in a row without a change have the same objects."""
    guidance: list[float]

    @property
    def conditions(self) -> StepConditions:
        return StepConditions(self.texts)

    def on_device(self, loop: Loop, controls: Any) -> Array:
        case = self.case
        return loop.denoise(
            self.schedule.recurrence(), Batch(case.copies, case.images, LATENT, case.extra), self.conditions,
            self.noise, self.guidance, lambda _: None, self.image, self.mask, self.extra, controls=controls,
            every=max(1, self.case.every),
        )[0]  # fmt: skip

    def through_host(self, loop: Loop, controls: Any) -> Array:
        later = iter(self.noise[1:])

        def draw(shape: Sequence[int]) -> Array:
            assert tuple(shape) == LATENT
            return next(later)

        given = BatchStart(self.noise[0], self.image, self.mask, self.extra)
        batch = Batch(self.case.copies, self.case.images, LATENT, self.case.extra)
        buffers = loop.buffers(batch, self.conditions, steered=bool(controls))
        return host_loop.denoise(
            buffers, self.schedule.steps(), self.conditions, given, draw, self.guidance, lambda _: None,
            controls=controls, every=max(1, self.case.every),
        )[0]  # fmt: skip

    def simulated(self, controls: Any) -> Array:
        """In float64, sample by sample."""
        results = []
        for image in range(self.case.images):
            noise, own = self.noise[:, image].astype(np.float64), None if self.image is None else self.image[image]
            texts = self.texts[image if self.case.own_prompts else 0]
            results.append(self._one(noise, own, None if self.extra is None else self.extra[image], texts, controls))
        return np.stack(results)

    def _one(
        self, noise: Array, own: Array | None, extra: Array | None, texts: list[list[dict[str, Array]]], controls: Any
    ) -> Array:
        given, schedule = np.stack([noise[0], noise[0] if own is None else own]), self.schedule
        latents = np.tensordot(schedule.start, given, 1)
        whole, hidden = self._whole(), [np.zeros(0)] * len(self.guidance)
        for step in range(STEPS):
            sample = schedule.scale[step] * latents
            residual = Steering.values[step] if controls else 0
            time = np.round(schedule.times[step]) if self.case.clock == "int64" else schedule.times[step]
            skips = [self._skip(sample, time, text, extra) for text in texts[step]]
            if step in whole:
                hidden = [skip * DEEP[0] + residual for skip in skips]
            output = sum(
                weight * (deep + skip) for weight, deep, skip in zip(self.guidance, hidden, skips, strict=True)
            )
            latents = schedule.keep[step] * latents + schedule.add[step] * output
            if self.case.noisy:
                latents = latents + schedule.noise[step] * noise[1 + step]
            if self.mask is not None:
                latents = np.where(self.mask, latents, np.tensordot(schedule.around[step], given, 1))
        return np.asarray(latents)

    def _whole(self) -> list[int]:
        """The steps whose hidden state is their own."""
        found = [0]
        for step in range(1, STEPS):
            changed = any(calls[step] is not calls[step - 1] for calls in self.texts)
            found += [step] if changed or step - found[-1] >= self.case.every else []
        return found

    @staticmethod
    def _skip(sample: Array, time: float, text: dict[str, Array], extra: Array | None) -> Array:
        factor = (text["encoder_hidden_states"][0].astype(np.float64) @ KEY).mean(0)
        shift = (time * FREQUENCIES @ LINEAR + text["text_embeds"].astype(np.float64) @ ADDED)[0]
        told = sample + (0 if extra is None else extra.mean(0))
        return np.asarray((told * factor[:, None, None] + shift[:, None, None]) * OUTER[0])


def make_run(case: Case, seed: int) -> Run:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return random.normal(size=shape).astype(np.float32)

    def text() -> list[dict[str, Array]]:
        return [{"encoder_hidden_states": normal(1, 5, 3), "text_embeds": normal(1, 2)} for _ in range(case.copies)]

    texts = []
    for image in range(case.images if case.own_prompts else 1):
        first, last = text(), text()
        change = 1 + image % 2 if case.changing else STEPS  # images change at steps of their own
        texts.append([first if step < change else last for step in range(STEPS)])
    guidance = random.uniform(-2, 2, case.copies - 1)  # of AND too, whose weights may be negative
    return Run(
        case, Schedule(case, random), normal(1 + STEPS * case.noisy, case.images, *LATENT),
        normal(case.images, *LATENT) if case.masked else None,
        random.integers(0, 2, LATENT[1:]).astype(bool) if case.masked else None,
        normal(case.images, case.extra, *LATENT[1:]) if case.extra else None,
        texts, [float(1 - guidance.sum()), *map(float, guidance)],
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_both_loops_are_the_simulation(seed: int, tmp_path: Path) -> None:
    case = drawn(seed)
    unet = case.open(tmp_path)
    loop = Loop(unet)
    tolerance = 5e-6 if case.io == "float" else 1e-2
    first = None
    for number in (1, 2, 1):  # the second in the buffers of the first, with other numbers and the other steering
        steered = case.devices == 1 and case.steered == (number == 1)
        run, controls = make_run(case, number), Steering() if steered else None
        expected = run.simulated(controls)
        latents = run.on_device(loop, controls)
        limit = tolerance * max(1, np.abs(expected).max())
        assert np.abs(latents - expected).max() <= limit, (case, number)
        assert np.abs(run.through_host(loop, controls) - expected).max() <= limit, (case, number)
        if number == 1:
            assert first is None or np.array_equal(first, latents)
            first = latents


def test_the_cases_differ_in_all_that_a_run_can_have() -> None:
    cases = [drawn(seed) for seed in range(40)]
    for name in Case.__dataclass_fields__:
        assert len({getattr(case, name) for case in cases}) >= 2, name
    assert {case.copies for case in cases} == {1, 2, 3, 4}
    assert {case.clock for case in cases} == {"int64", "float", "float[1]", "float[N]"}


def test_batches_of_equal_numbers_of_samples_have_buffers_of_their_own(tmp_path: Path) -> None:
    """Two prompts for three images are six samples, as three prompts for two images are."""
    base = Case(2, 3, False, True, 3, False, True, True, "int64", "N", "float", 2)
    loop = Loop(base.open(tmp_path))
    for copies, images in ((2, 3), (3, 2), (1, 6), (2, 3)):
        run = make_run(replace(base, copies=copies, images=images), copies)
        expected = run.simulated(None)
        assert np.abs(run.on_device(loop, None) - expected).max() <= 5e-6 * max(1, np.abs(expected).max())


def test_timesteps_and_what_texts_add_to_them_are_prepared(tmp_path: Path) -> None:
    """Otherwise the runs above would not see what is prepared."""
    for clock in ("int64", "float", "float[1]", "float[N]"):
        for io in ("float", "float16"):
            unet = Case(2, 1, False, False, 0, False, False, False, clock, "N", io, 0).open(tmp_path)
            assert unet.preparation is not None
            assert unet.preparation.prompt is not None
            assert unet.preparation.beside
            assert unet.preparation.each_sample
