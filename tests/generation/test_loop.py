"""The denoising loop on the device, and the schedulers' numbers that it runs on."""

from __future__ import annotations

import inspect
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import parser
from support import rocm_stub, tiny_pipeline
from support.loop_models import UNET

from sdort.errors import CancelledError, ParityError, UsageError
from sdort.files.user_folders import schedules_folder
from sdort.generation.denoising import device_loop as loop_module
from sdort.generation.denoising.device_loop import Loop, open_sum
from sdort.generation.requests import schedule_cache
from sdort.generation.requests.request import Request, sampler_of
from sdort.generation.requests.schedule_cache import CachedSchedule
from sdort.generation.schedules.diffusers_sampler import DiffusersSampler
from sdort.generation.schedules.recurrence import Recurrence, find_recurrence
from sdort.generation.schedules.schedule_part import WHOLE, Begin, Part
from sdort.generation.schedules.schedulers import choose_scheduler
from sdort.pipelines.folder import PipelineFolder
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.provider import Provider
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.opener import create_session
from sdort.runtime.session import Session, open_session
from sdort.runtime.step import bound_unet
from sdort.runtime.step.bound_unet import Batch
from sdort.runtime.step.device_buffer import Buffer
from sdort.runtime.step.step_conditions import StepConditions
from sdort.samplers.scheduler_names import SAMPLERS, find_scheduler

Array = np.ndarray[Any, Any]

# --- recurrences ---


def scheduler(name: str, steps: int, **config: Any) -> Any:
    import diffusers

    class_name, additions = find_scheduler(name)
    made = getattr(diffusers, class_name).from_config({**tiny_pipeline.SCHEDULER, **additions, **config})
    made.set_timesteps(steps)
    return made


@pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # diffusers' arithmetic on numpy 2
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize(
    "name", sorted({*SAMPLERS, "dpm++-2m-karras", "euler-exponential", "dpm++-sde-karras"} - {"lms"})
)  # which needs scipy
def test_every_scheduler_is_a_recurrence(name: str, prediction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the scheduler itself, on outputs that depend on the input as a UNet's do."""
    import sys

    import torch

    found = find_recurrence(lambda: DiffusersSampler(scheduler(name, 6, prediction_type=prediction)))
    assert found is not None
    theirs = scheduler(name, 6, prediction_type=prediction)
    rng = np.random.default_rng(7)
    noises = [torch.from_numpy(rng.normal(size=(2, 4, 3, 5)).astype(np.float32)) for _ in range(1 + found.noises)]
    later = iter(noises[1:])
    module = sys.modules[type(theirs).__module__]
    monkeypatch.setattr(module, "randn_tensor", lambda *args, **kwargs: next(later), raising=False)
    latents = noises[0] * theirs.init_noise_sigma
    outputs: list[Array] = []
    for step, timestep in enumerate(theirs.timesteps):
        sample = theirs.scale_model_input(latents, timestep)
        rows = [noises[0].numpy(), *outputs, *[np.zeros(sample.shape)] * (found.steps - step)]
        rows += [noise.numpy() for noise in noises[1:]]
        np.testing.assert_allclose(np.tensordot(found.inputs[step], rows, 1), sample, rtol=0, atol=2e-5 * sample.std())
        outputs.append(np.tanh(sample.numpy()) + float(timestep) / 1000)
        latents = theirs.step(torch.from_numpy(outputs[-1]), timestep, latents, return_dict=False)[0]
    rows = [noises[0].numpy(), *outputs, *[noise.numpy() for noise in noises[1:]]]
    np.testing.assert_allclose(np.tensordot(found.result, rows, 1), latents, rtol=0, atol=2e-5 * latents.std())
    np.testing.assert_array_equal(found.timesteps, theirs.timesteps)
    assert next(later, None) is None


@pytest.fixture
def known(tmp_path: Path) -> CachedSchedule:
    """The schedule of a request with ancestral noise; the pipeline is no more than its scheduler, which has a setting
    that sdort does not know."""
    (tmp_path / "scheduler").mkdir()
    config = {"_class_name": "DDIMScheduler", **tiny_pipeline.SCHEDULER, "of_tomorrow": 1}
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    return CachedSchedule(PipelineFolder(tmp_path, {}), Request("", scheduler="euler-a", steps=5), 5)


def values(found: Recurrence | None) -> list[Any]:
    assert found
    return [None if value is None else np.asarray(value).tolist() for value in vars(found).values()]


@pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")
def test_a_schedule_is_computed_once(known: CachedSchedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """By diffusers; the next time from the cache: of the same config, request and part alone."""
    parts = [WHOLE, Part(2, begin=Begin.IMAGE, masked=True)]
    counts, first = known.counts(), [known.recurrence(part) for part in parts]
    assert (counts.calls, counts.order) == (5, 1)
    assert [values(each) for each in first] == [values(find_recurrence(known.sampler, part)) for part in parts]

    def ask(*args: object) -> Any:
        raise ConnectionError

    monkeypatch.setattr(schedule_cache, "sampler_of", ask)
    assert known.counts() == counts
    assert [values(known.recurrence(part)) for part in parts] == [values(each) for each in first]
    others = [replace(known, steps=6), replace(known, request=replace(known.request, timestep_spacing="trailing"))]
    path = known.folder.path / "scheduler" / "scheduler_config.json"
    for other in others:
        with pytest.raises(ConnectionError):
            other.counts()
    with pytest.raises(ConnectionError):
        known.recurrence(Part(1))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"beta_end": 0.013}))
    with pytest.raises(ConnectionError):
        replace(known, folder=PipelineFolder(known.folder.path, {})).counts()


OTHER_VALUES = {"scheduler": "heun", "timestep_spacing": "trailing", "shift": 2.0, "eta": 0.3}
"""For each field of a request that a scheduler reads a value that is not its default."""


def test_every_option_that_a_scheduler_reads_is_in_the_key_of_its_schedule(known: CachedSchedule) -> None:
    """A scheduler is made of its own options alone, all of which are in the key."""
    read: set[str] = set()

    class Spy(Request):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    # Tokens are of a size, and move the schedules of sdort's own samplers alone, which are not kept.
    options = inspect.signature(choose_scheduler).parameters.keys() - {"folder", "tokens"}
    assert options == Request("").scheduler_options.keys()
    keys = [json.dumps(replace(known, request=Request("", **change))._key(WHOLE))  # type: ignore[arg-type]
            for change in ({}, *({name: value} for name, value in OTHER_VALUES.items()))]  # fmt: skip
    assert len(set(keys)) == len(keys) == len(options) + 1
    request = Spy("", scheduler="ddim", eta=0.5)
    read.clear()
    sampler_of(known.folder, request, 5)
    assert read == {"scheduler_options", *OTHER_VALUES}


def test_a_new_option_of_a_scheduler_has_its_own_schedule(
    known: CachedSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option that only the scheduler's construction knows of, in a subclass of the request."""

    @dataclass(frozen=True)
    class Extended(Request):
        beta_end: float | None = None

        @property
        def scheduler_options(self) -> Any:
            return {**super().scheduler_options, "beta_end": self.beta_end}

    def with_betas(folder: Any, request: Any, steps: int, size: Any) -> Any:
        return DiffusersSampler(
            scheduler("ddim", steps, **({"beta_end": request.beta_end} if request.beta_end else {}))
        )

    monkeypatch.setattr(schedule_cache, "sampler_of", with_betas)
    monkeypatch.setattr(schedule_cache, "choose_scheduler", lambda *_, **options: "any")
    monkeypatch.setattr(schedule_cache, "has_formulas", lambda choice: False)
    monkeypatch.setattr(schedule_cache, "check_installed", lambda choice: None)
    requests = [Extended("", steps=5, beta_end=end, seed=seed) for end, seed in ((None, 1), (0.03, 1), (None, 2))]
    plain, other, again = (values(replace(known, request=each).recurrence(WHOLE)) for each in requests)
    assert plain != other
    assert plain == again
    assert len(list(schedules_folder().glob("*.schedule"))) == 2


@pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")
@pytest.mark.parametrize("change", [lambda text: text[:-8], lambda text: text + bytes(8), lambda text: b"[1]\n",
                                    lambda text: text[:-8] + np.float64("nan").tobytes()])  # fmt: skip
def test_a_strangers_schedule_is_computed_anew(
    known: CachedSchedule, change: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, pack = values(known.recurrence(WHOLE)), schedule_cache._pack
    for path in schedules_folder().glob("*.schedule"):
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(schedule_cache, "_pack", lambda recurrence: change(pack(recurrence)))
        known.recurrence(WHOLE)
    computed: list[Part] = []

    def compute(make: Callable[[], Any], part: Part) -> Recurrence | None:
        computed.append(part)
        return find_recurrence(make, part)

    monkeypatch.setattr(schedule_cache, "find_recurrence", compute)
    assert values(known.recurrence(WHOLE)) == first
    assert computed == [WHOLE]


def test_every_part_of_a_schedule_has_a_key_of_its_own(known: CachedSchedule) -> None:
    parts = [Part(*fields) for fields in product((0, 4), (None, 4, 5), Begin, (False, True))]
    assert len({json.dumps(known._key(part)) for part in parts}) == len(parts)


PARTS = {
    "image": Part(4, begin=Begin.IMAGE),
    "masked": Part(2, begin=Begin.IMAGE, masked=True),
    "masked, all of it": Part(masked=True),
    "base": Part(last=4),
    "refiner": Part(4, begin=Begin.LATENTS),
}


@pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "part"),
    [  # dpm2 takes a second to set its timesteps
        *((name, PARTS["masked"]) for name in sorted(set(SAMPLERS) - {"lms", "dpm2"})),
        *((name, part) for name in ("ddim", "euler-a", "heun", "pndm", "dpm++-2m-sde") for part in PARTS.values()),
    ],
    ids=lambda each: each if isinstance(each, str) else next(label for label, part in PARTS.items() if part == each),
)
def test_every_part_of_a_schedule_is_a_recurrence(name: str, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the lines that diffusers' pipelines have: image to image, inpainting in latents, base and refiner."""
    import sys

    import torch

    found = find_recurrence(lambda: DiffusersSampler(scheduler(name, 7)), part)
    assert found is not None
    theirs = scheduler(name, 7)
    rng = np.random.default_rng(7)
    noise, image, *more = (
        torch.from_numpy(rng.normal(size=(2, 4, 3, 5)).astype(np.float32)) for _ in range(2 + found.noises)
    )
    later = iter(more)
    module = sys.modules[type(theirs).__module__]
    monkeypatch.setattr(module, "randn_tensor", lambda *args, **kwargs: next(later), raising=False)
    timesteps = theirs.timesteps[part.first : part.last]
    if part.begin is not Begin.NOISE and hasattr(theirs, "set_begin_index"):
        theirs.set_begin_index(part.first)
    begin = {Begin.NOISE: lambda: noise * theirs.init_noise_sigma, Begin.LATENTS: lambda: image}
    latents = begin.get(part.begin, lambda: theirs.add_noise(image, noise, timesteps[:1].repeat(2)))()
    mask = torch.from_numpy(rng.integers(0, 2, (2, 4, 3, 5)).astype(bool)) if part.masked else torch.tensor(True)
    outputs: list[Array] = []

    def ours(weights: Array, outside: int) -> Array:
        unknown = [np.zeros(noise.shape)] * (found.steps - len(outputs))
        rows = [noise, *outputs, *unknown, *more, *([image] if part.takes_image else [])]
        inside = np.tensordot(weights, np.stack([np.asarray(row) for row in rows]), 1)
        if found.outside is None:
            return np.asarray(inside)
        return np.where(mask, inside, np.tensordot(found.outside[outside], np.stack([noise, image]), 1))

    for step, timestep in enumerate(timesteps):
        sample = theirs.scale_model_input(latents, timestep)
        np.testing.assert_allclose(ours(found.inputs[step], step), sample, rtol=0, atol=2e-5 * sample.std())
        outputs.append(np.tanh(sample.numpy()) + float(timestep) / 1000)
        latents = theirs.step(torch.from_numpy(outputs[-1]), timestep, latents, return_dict=False)[0]
        if part.masked:
            last = step + 1 == len(timesteps)
            around = image if last else theirs.add_noise(image, noise, timesteps[step + 1 : step + 2])
            latents = torch.where(mask, latents, around)
    np.testing.assert_allclose(ours(found.result, -1), latents, rtol=0, atol=2e-5 * latents.std())
    np.testing.assert_array_equal(found.timesteps, timesteps)
    assert found.takes_image is part.takes_image
    assert (found.outside is not None) is part.masked


@pytest.mark.parametrize("config", [{"clip_sample": True}, {"thresholding": True}], ids=str)
def test_a_scheduler_that_clips_has_none(config: dict[str, bool]) -> None:
    assert find_recurrence(lambda: DiffusersSampler(scheduler("ddim", 6, **config))) is None


# --- the loop ---


def unet(folder: Path, clock: str = "int64", io: str = "float", n: str = "N", condition: bool = False) -> Session:
    more = f", {io}[{n}, 3] timestep_cond" if condition else ""
    last = "out = Identity (timed)"
    if condition:
        last = (
            "c = ReduceMean <axes = [1], keepdims = 0> (timestep_cond)\nd = Unsqueeze (c, axes)\nout = Mul (timed, d)"
        )
    to = {"float": 1, "float16": 10}[io]
    text = UNET.format(io=io, clock=clock, n=n, more=more, last=last, to=to)
    path = folder / "unet.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    return open_session(path, "unet", CPU, RuntimeOptions("cpu"))


STEPS = 3
TEXT = "encoder_hidden_states"
LATENT = (4, 2, 3)


def draw(copies: int, images: int, noises: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    width = 1 + STEPS + noises
    table = rng.normal(size=(STEPS + 1, width))
    for step in range(STEPS):
        table[step, 1 + step : 1 + STEPS] = 0  # an input knows the outputs before it only
    return {
        "recurrence": Recurrence(np.array([8, 5, 2]), table[:-1], table[-1]),
        "batch": Batch(copies, images, LATENT),
        "conditions": [{TEXT: rng.normal(size=(1, 5, 6)).astype(np.float32)} for _ in range(copies)],
        "noise": rng.normal(size=(1 + noises, images, *LATENT)).astype(np.float32),
        "guidance": [-1.5, 2.5] if copies == 2 else [1.0],
    }


def fixed(given: dict[str, Any]) -> dict[str, Any]:
    return given | {"conditions": StepConditions.fixed(given["conditions"], STEPS)}


def expected(recurrence: Recurrence, conditions: list[dict[str, Array]], noise: Array, guidance: list[float]) -> Array:
    outputs: list[Array] = []
    for step in range(STEPS):
        rows = [noise[0], *outputs, *[np.zeros(noise[0].shape)] * (STEPS - step), *noise[1:]]
        sample = np.tensordot(recurrence.inputs[step], rows, 1)
        each = [
            (sample + told[TEXT].mean() + recurrence.timesteps[step]) * told.get("timestep_cond", np.ones(1)).mean()
            for told in conditions
        ]
        outputs.append(sum(weight * output for weight, output in zip(guidance, each, strict=True)))
    return np.asarray(np.tensordot(recurrence.result, [noise[0], *outputs, *noise[1:]], 1))


@pytest.mark.parametrize(
    ("copies", "images", "noises", "model"),
    [
        (2, 1, 0, {}),
        (1, 3, 2, {"clock": "float[1]"}),
        (2, 2, 3, {"clock": "float[N]", "condition": True}),
        (2, 2, 0, {"n": "2"}),  # a static batch: two runs of the UNet a step
        (1, 2, 1, {"io": "float16"}),
    ],
)
def test_the_loop_is_its_formula(copies: int, images: int, noises: int, model: dict[str, Any], tmp_path: Path) -> None:
    session = unet(tmp_path, **model)
    given = draw(copies, images, noises)
    if model.get("condition"):
        for number, told in enumerate(given["conditions"], 1):
            told["timestep_cond"] = np.array([[number, 2, 0]], np.float32)
    loop = Loop(session)
    advanced: list[float] = []
    wanted = expected(given["recurrence"], given["conditions"], given["noise"], given["guidance"])
    tolerance = 2e-2 if model.get("io") else 1e-5
    for _ in range(2):  # the second time in the buffers of the first
        latents, seconds = loop.denoise(**fixed(given), on_step=advanced.append)
        assert latents.shape == (images, *LATENT)
        np.testing.assert_allclose(latents, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
        assert len(seconds) == STEPS
    assert advanced == [images] * 2 * STEPS


@pytest.mark.parametrize(("copies", "images", "io"), [(2, 2, "float"), (1, 3, "float16")])
def test_outside_of_a_mask_the_latents_are_the_image_under_noise(
    copies: int, images: int, io: str, tmp_path: Path
) -> None:
    given, rng = draw(copies, images, 2), np.random.default_rng(6)
    plain = given.pop("recurrence")
    column = rng.normal(size=(STEPS + 1, 1))
    table = np.concatenate([np.concatenate([plain.inputs, plain.result[None]]), column], axis=1)
    outside = rng.normal(size=(STEPS + 1, 2))
    recurrence = Recurrence(plain.timesteps, table[:-1], table[-1], True, outside)
    image = rng.normal(size=(images, *LATENT)).astype(np.float32)
    mask = rng.integers(0, 2, LATENT[1:]).astype(bool)
    noise = given["noise"]
    outputs: list[Array] = []
    for step in range(STEPS + 1):
        rows = [noise[0], *outputs, *[np.zeros(noise[0].shape)] * (STEPS - step), *noise[1:], image]
        around = np.tensordot(outside[step], [noise[0], image], 1)
        sample = np.where(mask, np.tensordot(table[step], rows, 1), around)
        if step < STEPS:
            each = [sample + told[TEXT].mean() + recurrence.timesteps[step] for told in given["conditions"]]
            outputs.append(sum(weight * one for weight, one in zip(given["guidance"], each, strict=True)))
    loop = Loop(unet(tmp_path, io=io))
    latents, _ = loop.denoise(recurrence, **fixed(given), on_step=lambda _: None, image=image, mask=mask)
    tolerance = 1e-5 if io == "float" else 2e-2
    np.testing.assert_allclose(latents, sample, rtol=0, atol=tolerance * np.abs(sample).max())


@pytest.mark.parametrize(("copies", "n"), [(2, "N"), (2, "2"), (1, "N")])
def test_channels_beside_the_latents_are_those_of_each_image(copies: int, n: str, tmp_path: Path) -> None:
    """As a mask and a masked image: here the UNet adds their mean to every latent."""
    text = UNET.format(io="float", clock="int64", n=n, more="", last="out = Identity (timed)", to=1)
    text = text.replace("4, H, W] sample", "6, H, W] sample").replace(
        "with_text = Add (sample, each)",
        """parts = Constant <value_ints = [4, 2]> ()
        latents, beside = Split <axis = 1> (sample, parts)
        mean = ReduceMean <axes = [1], keepdims = 1> (beside)
        told = Add (latents, mean)
        with_text = Add (told, each)""",
    )
    path = tmp_path / "unet.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    given = draw(copies, 2)
    recurrence, noise = given["recurrence"], given["noise"]
    outputs: list[Array] = []
    extra = np.random.default_rng(6).normal(size=(2, 2, *LATENT[1:])).astype(np.float32)
    for step in range(STEPS):
        rows = [noise[0], *outputs, *[np.zeros(noise[0].shape)] * (STEPS - step)]
        sample = np.tensordot(recurrence.inputs[step], rows, 1) + extra.mean(axis=1, keepdims=True)
        each = [sample + told[TEXT].mean() + recurrence.timesteps[step] for told in given["conditions"]]
        outputs.append(sum(weight * one for weight, one in zip(given["guidance"], each, strict=True)))
    wanted = np.tensordot(recurrence.result, [noise[0], *outputs], 1)
    given["batch"] = Batch(copies, 2, LATENT, 2)
    loop = Loop(open_session(path, "unet", CPU, RuntimeOptions("cpu")))
    latents, _ = loop.denoise(**fixed(given), on_step=lambda _: None, extra=extra)
    np.testing.assert_allclose(latents, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_the_last_step_ends_when_its_latents_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may take its call and return at once: what is waited for after the calls is of the steps too."""
    result = loop_module.StepAccumulator.result

    def slow(accumulator: loop_module.StepAccumulator) -> Array:
        clock.now += 7
        return result(accumulator)

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loop_module.StepAccumulator, "result", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    _, seconds = Loop(unet(tmp_path)).denoise(**fixed(draw(1, 1)), on_step=lambda _: None)
    assert seconds == [*[0.0] * (len(seconds) - 1), 7.0]


def test_a_static_batch_has_to_divide_the_samples(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exported for 2 samples at once, which does not divide 3"):
        Loop(unet(tmp_path, n="2")).denoise(**fixed(draw(1, 3)), on_step=lambda _: None)


def test_nan_is_found_at_its_step_and_does_not_stay(tmp_path: Path) -> None:
    loop = Loop(unet(tmp_path, clock="float"))
    given = draw(2, 1)
    bad = {
        **given,
        "recurrence": Recurrence(np.array([8, np.nan, 2]), given["recurrence"].inputs, given["recurrence"].result),
    }
    with pytest.raises(ParityError, match="NaN or infinite values at step 2 of 3") as caught:
        loop.denoise(**fixed(bad), on_step=lambda _: None)
    assert caught.value.component == "unet"
    assert np.isfinite(loop.denoise(**fixed(given), on_step=lambda _: None)[0]).all()


@pytest.mark.parametrize("ends", ["at the end", "in a step"])
def test_a_run_that_failed_leaves_nothing_to_the_next_one_of_its_kind(ends: str, tmp_path: Path) -> None:
    """Which takes its memory again where it ended well."""
    loop, given = Loop(unet(tmp_path)), draw(2, 1)
    wanted = Loop(unet(tmp_path)).denoise(**fixed(given), on_step=lambda _: None)[0]
    np.testing.assert_array_equal(loop.denoise(**fixed(given), on_step=lambda _: None)[0], wanted)

    def stop(_: float) -> None:
        if ends == "in a step":
            raise CancelledError("stop")

    bad = {**given, "noise": np.full_like(given["noise"], np.inf)}
    with pytest.raises(ParityError if ends == "at the end" else CancelledError):
        loop.denoise(**fixed(bad), on_step=stop)
    np.testing.assert_array_equal(loop.denoise(**fixed(given), on_step=lambda _: None)[0], wanted)


def test_a_later_run_writes_only_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the room for all outputs; nor are the rows of the same timesteps made again."""
    loop, given = Loop(unet(tmp_path)), draw(2, 1)
    loop.denoise(**fixed(given), on_step=lambda _: None)
    kept = loop._last
    assert kept
    sizes: list[int] = []
    for name in ("write", "write_from"):
        real = getattr(Buffer, name)

        def counted(buffer: Buffer, *args: Any, real: Any = real) -> None:
            sizes.extend([args[-1].nbytes] if buffer is kept._rows else [])
            real(buffer, *args)

        monkeypatch.setattr(Buffer, name, counted)
    monkeypatch.setattr(bound_unet, "timed_rows", None)
    other = {**given, "noise": given["noise"][:, ::-1] * np.float32(2)}
    found = loop.denoise(**fixed(other), on_step=lambda _: None)[0]
    assert sizes == [other["noise"].nbytes] < [kept.nbytes]
    monkeypatch.undo()
    np.testing.assert_array_equal(found, Loop(unet(tmp_path)).denoise(**fixed(other), on_step=lambda _: None)[0])


@pytest.mark.parametrize("asked", [{}, {"use_tf32": "1"}, {"arena_extend_strategy": "kSameAsRequested"}])
@pytest.mark.parametrize("provider", [CUDA, ROCM], ids=lambda each: each.name)
def test_sums_are_exact_on_every_gpu(
    provider: Provider, asked: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler's factors are large and cancel: CUDA's TF32 would round them to 11 bits, whatever the UNet takes.

    Its graph is its own: recorded with the UNet's it would replay one step's sum for all.
    """
    opened: list[tuple[Provider, RuntimeOptions]] = []

    def create(model: bytes, where: Provider, options: RuntimeOptions) -> Any:
        opened.append((where, options))
        return create_session(model, CPU, RuntimeOptions("cpu"))

    session = unet(tmp_path)
    session.provider = provider
    session.options = RuntimeOptions(provider.name, graph=True, device_id=1, custom_ops="on", provider_options=asked)
    monkeypatch.setattr(loop_module, "create_session", create)
    made = open_sum(session)
    ((where, options),) = opened
    exact = {"use_tf32": "0"} if provider is CUDA else {}
    assert where is made.provider is provider
    assert options.provider_options == {**asked, **exact}
    assert (options.graph, options.device_id, options.custom_ops) == (False, 1, "off")
    assert session.options.provider_options == asked


def test_too_many_rows_do_not_fit(tmp_path: Path) -> None:
    loop, given = Loop(unet(tmp_path)), draw(2, 1)
    assert loop.fits(given["recurrence"], given["batch"])
    assert not loop.fits(given["recurrence"], Batch(2, 64, (4, 512, 512)))


# --- on the real ROCm provider, over a stub of HIP ---

SCRIPT = """
import sys, pathlib, numpy
from sdort.runtime.step.bound_unet import Batch
from sdort.runtime.step.device_buffer import Buffer
from sdort.generation.denoising.device_loop import Loop
from sdort.runtime.opener import create_session
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.generation.schedules.recurrence import Recurrence
from sdort.runtime.step.step_conditions import StepConditions
from sdort.runtime.session import Session, open_session

path, how = pathlib.Path(sys.argv[1]), sys.argv[3]
devices = "0,1" if how == "devices" else None
options = RuntimeOptions("rocm", custom_ops="off", graph=how != "plain", devices=devices, pool=int(how == "devices"))
if devices:
    session = open_session(path, "unet", ROCM, options)
else:
    session = Session(create_session(str(path), ROCM, options), path, "unet", ROCM, options)
assert session.ort.get_providers()[0] == "ROCMExecutionProvider"
steps, rng = 4, numpy.random.default_rng(0)
table = rng.normal(size=(steps + 1, steps + 1))
recurrence = Recurrence(numpy.arange(steps), table[:-1], table[-1])

def mark(_):
    with open(sys.argv[2], "a") as log:
        log.write('{"call": "step"}\\n')

loop = Loop(session)
for side in map(int, sys.argv[4:]):
    loop.denoise(
        recurrence, Batch(2, 1, (4, side, side)),
        StepConditions.fixed([{"encoder_hidden_states": rng.normal(size=(1, 5, 6)).astype("f")}] * 2, 99),
        rng.normal(size=(1, 1, 4, side, side)).astype("f"), [-1.0, 2.0], mark,
    )
"""


def run_on_rocm(folder: Path, how: str, *sides: int) -> list[dict[str, Any]]:
    """What the stub of HIP saw of copies and graphs, and where each step ended."""
    unet(folder)
    log = folder / "copies"
    root = Path(__file__).resolve().parents[2]
    arguments = [str(folder / "unet.onnx"), str(log), how, *map(str, sides)]
    done = rocm_stub.runtime().run(SCRIPT, *arguments, copies=str(log), devices="2", PYTHONPATH=str(root))
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in log.read_text().splitlines()]


def kinds(calls: list[dict[str, Any]]) -> set[str]:
    return {call["kind"] for call in calls if call["call"] == "copy"}


@pytest.mark.parametrize("how", ["plain", "graph"])
def test_between_two_steps_nothing_comes_to_the_host(how: str, tmp_path: Path) -> None:
    calls = run_on_rocm(tmp_path, how, 8)
    marks = [index for index, call in enumerate(calls) if call["call"] == "step"]
    assert len(marks) == 4
    # Before the loop the inputs go up, after it the latents come down: the log does see copies.
    assert "host to device" in kinds(calls[: marks[0]])
    assert "device to host" in kinds(calls[marks[-1] :])
    assert kinds(calls[marks[0] : marks[-1]]) <= {"device to device"}
    count = Counter(call["call"] for call in calls)
    # Recording does not run anything, so that the first step is a replay too.
    assert (count["record"], count["replay"]) == ((1, 4) if how == "graph" else (0, 0))


def test_each_device_replays_its_own_graph(tmp_path: Path) -> None:
    """In a thread that has the device as its own; what records is alone."""
    calls = run_on_rocm(tmp_path, "devices", 8, 16)
    assert [call for call in calls if call["call"] == "wrong"] == []
    for call, count in (("record", 2), ("replay", 8)):
        assert Counter(each["device"] for each in calls if each["call"] == call) == {0: count, 1: count}


def test_a_graph_is_recorded_once_for_every_shape(tmp_path: Path) -> None:
    calls = run_on_rocm(tmp_path, "graph", 8, 16, 8, 16)
    records = [index for index, call in enumerate(calls) if call["call"] == "record"]
    marks = [index for index, call in enumerate(calls) if call["call"] == "step"]
    assert len(marks) == 4 * 4
    assert len(records) == 2
    assert records[0] < marks[0] < marks[3] < records[1] < marks[4]  # the first step of each shape
    assert Counter(call["call"] for call in calls)["replay"] == 4 * 4
