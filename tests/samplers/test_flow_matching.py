"""Samplers of flow matching, held to the steps of diffusers' classes; how a folder's config chooses among them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_pipeline import SCHEDULER

from sdort.errors import BadModelError, UsageError
from sdort.exporter.replacements import Replacements, replace_parts
from sdort.exporter.source import Source
from sdort.generation.requests.request import Request
from sdort.generation.requests.schedule_cache import cached_counts, cached_recurrence
from sdort.generation.schedules.recurrence import Recurrence, find_recurrence
from sdort.generation.schedules.schedule_part import WHOLE, Begin, Part
from sdort.generation.schedules.schedulers import choose_scheduler, load_sampler, load_scheduler
from sdort.graph.signature import Array
from sdort.pipelines.folder import PipelineFolder
from sdort.samplers.flow_levels import tokens_of

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # diffusers' arithmetic on numpy 2

EULER, HEUN = "FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler"
DPM, UNIPC = "DPMSolverMultistepScheduler", "UniPCMultistepScheduler"
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
SD3 = {"_class_name": EULER, "num_train_timesteps": 1000, "shift": 3.0}
FLUX = {**SD3, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15}
STEPS = (1, 4, 8, 28, 50)
SHIFTS = (1.0, 1.73, 3.0, 6.0)
TOLERANCE = 1e-6
"""In standard deviations; of float64 on both sides 1e-12 is usual, and some noise levels of diffusers stay in fp32."""


def write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "scheduler_config.json").write_text(json.dumps(config))
    return folder


def tanh_model(latents: Array) -> Array:
    return np.asarray(0.9 * np.tanh(latents))


def theirs(
    class_name: str,
    config: dict[str, Any],
    steps: int,
    noise: Array,
    begin: int = 0,
    image: Array | None = None,
    **timesteps: Any,
) -> tuple[Array, list[Array]]:
    """The timesteps of diffusers' class; what it gives a model at each call, and the result."""
    import diffusers

    made = getattr(diffusers, class_name)
    with pytest.MonkeyPatch.context() as patch:
        # Every step casts to fp32: to float64 here, where rounding does not hide an error.
        patch.setattr(sys.modules[made.__module__], "torch", _Double())
        scheduler = made.from_config({**config, "_class_name": class_name})
        scheduler.set_timesteps(steps, **timesteps)
        scheduler.sigmas = scheduler.sigmas.double()
        scheduler.set_begin_index(begin)
        latents = torch.from_numpy(noise)
        if image is not None:
            sigma = scheduler.sigmas[begin]
            latents = sigma * latents + (1 - sigma) * torch.from_numpy(image)
        given = []
        for time in scheduler.timesteps[begin:]:
            given.append(latents.numpy())
            output = torch.from_numpy(tanh_model(given[-1]))
            latents = scheduler.step(output, time, latents, return_dict=False)[0]
    assert latents.dtype == torch.float64
    return scheduler.timesteps[begin:].numpy(), [*given, latents.numpy()]


class _Double:
    """torch, whose fp32 is float64."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def check(
    found: Recurrence | None, noise: Array, expected: tuple[Array, list[Array]], image: Array | None = None
) -> None:
    """That the numbers of a recurrence give the same."""
    assert found is not None
    assert found.noises == 0
    times, walk = expected
    np.testing.assert_allclose(found.timesteps, times, rtol=1e-6)
    rows = [noise, *[np.zeros_like(noise)] * found.steps, *([] if image is None else [image])]
    for call, (weights, wanted) in enumerate(zip([*found.inputs, found.result], walk, strict=True)):
        latents = np.tensordot(weights, rows, 1)
        error = np.abs(latents - wanted).max() / max(float(wanted.std()), 1.0)
        assert error < TOLERANCE, (call, error)
        if call < found.steps:
            rows[1 + call] = tanh_model(latents)


@pytest.fixture
def noise() -> Array:
    return np.random.default_rng(3).standard_normal((2, 16, 4, 6))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", ["euler", "heun", "dpm++-2m", "unipc"])
def test_every_sampler_takes_the_steps_of_diffusers_class(
    name: str, steps: int, shift: float, noise: Array, tmp_path: Path
) -> None:
    folder = write(tmp_path, {**SD3, "shift": shift})
    choice = choose_scheduler(folder, name)
    sampler = load_sampler(folder, steps, name)
    assert sampler.name == choice.class_name == {"euler": EULER, "heun": HEUN, "dpm++-2m": DPM, "unipc": UNIPC}[name]
    assert len(sampler.timesteps) == (2 * steps - 1 if name == "heun" else steps)
    found = find_recurrence(lambda: load_sampler(folder, steps, name))
    check(found, noise, theirs(choice.class_name, choice.config, steps, noise))


@pytest.mark.parametrize(
    "config",
    [
        {"_class_name": HEUN, "shift": 2.0},
        {"_class_name": DPM, **FLOW, "flow_shift": 2.5, "solver_order": 3},
        {"_class_name": DPM, **FLOW, "flow_shift": 3.0, "solver_type": "heun", "final_sigmas_type": "sigma_min"},
        {"_class_name": UNIPC, **FLOW, "flow_shift": 5.0, "solver_order": 3, "shift_terminal": 0.1},
        {"_class_name": UNIPC, **FLOW, "prediction_type": "epsilon"},
        {**SD3, "shift_terminal": 0.02},
        {**SD3, "use_karras_sigmas": True},
        {**SD3, "use_exponential_sigmas": True},
    ],
    ids=lambda config: " ".join(map(str, config.values()))[:60],
)
def test_a_folders_own_config_chooses_the_sampler(config: dict[str, Any], noise: Array, tmp_path: Path) -> None:
    folder = write(tmp_path, config)
    sampler = load_sampler(folder, 12, None)
    assert sampler.name == config["_class_name"]
    check(find_recurrence(lambda: load_sampler(folder, 12, None)), noise, theirs(sampler.name, config, 12, noise))


def calculated_shift(tokens: int) -> float:
    """As the pipelines of Flux, Stable Diffusion 3.5 and Z-Image have it."""
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    return float(calculate_shift(tokens, 256, 4096, 0.5, 1.15))


@pytest.mark.parametrize("kind", ["exponential", "linear"])
@pytest.mark.parametrize("size", [(256, 256), (1024, 1024), (832, 1216), (2048, 512)])
@pytest.mark.parametrize("name", [None, "unipc"])
def test_the_size_of_an_image_shifts_its_noise_levels(
    name: str | None, size: tuple[int, int], kind: str, noise: Array, tmp_path: Path
) -> None:
    folder, tokens = write(tmp_path, {**FLUX, "time_shift_type": kind}), tokens_of(size, 8)
    assert tokens == size[0] * size[1] // 256
    choice = choose_scheduler(folder, name, tokens=tokens)
    found = find_recurrence(lambda: load_sampler(folder, 9, name, tokens=tokens))
    check(found, noise, theirs(choice.class_name, choice.config, 9, noise, mu=calculated_shift(tokens)))


@pytest.mark.parametrize("shift", SHIFTS)
def test_trailing_timesteps_are_those_of_fluxs_pipeline(shift: float, noise: Array, tmp_path: Path) -> None:
    """Which gives the noise levels before their shift."""
    folder = write(tmp_path, FLUX)
    for steps in STEPS:
        options: dict[str, Any] = {"timestep_spacing": "trailing", "shift": shift}
        expected = theirs(EULER, {**SD3, "shift": shift}, steps, noise, sigmas=np.linspace(1, 1 / steps, steps))
        check(find_recurrence(lambda: load_sampler(folder, steps, None, **options)), noise, expected)  # noqa: B023
        simple = find_recurrence(lambda: load_sampler(folder, steps, "euler-simple", shift=shift))  # noqa: B023
        check(simple, noise, expected)


@pytest.mark.parametrize("name", ["euler", "heun", "dpm++-2m", "unipc"])
def test_an_image_begins_on_the_line_to_its_noise(name: str, noise: Array, tmp_path: Path) -> None:
    folder, image = write(tmp_path, SD3), np.random.default_rng(4).standard_normal(noise.shape)
    choice, sampler = choose_scheduler(folder, name), load_sampler(folder, 10, name)
    first = 4 * sampler.order
    found = find_recurrence(lambda: load_sampler(folder, 10, name), Part(first, begin=Begin.IMAGE))
    check(found, noise, theirs(choice.class_name, choice.config, 10, noise, first, image), image)
    assert found is not None
    np.testing.assert_allclose(found.inputs[0, 0] + found.inputs[0, -1], 1, atol=1e-12)
    masked = find_recurrence(lambda: load_sampler(folder, 10, name), Part(first, begin=Begin.IMAGE, masked=True))
    assert masked is not None
    assert masked.outside is not None
    np.testing.assert_allclose(masked.outside.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_array_equal(masked.outside[-1], [0, 1])


def test_stochastic_sampling_draws_the_noise_of_each_level_anew(noise: Array, tmp_path: Path) -> None:
    """Of a model that knows the image: what is left of it and of the noise is their level."""
    folder = write(tmp_path, {**SD3, "stochastic_sampling": True})
    sampler, image, latents = load_sampler(folder, 6, None), np.full(noise.shape, 5.0), noise
    draws = np.random.default_rng(9).standard_normal((6, *noise.shape))
    for call in range(6):
        level = sampler.level_at(float(sampler.timesteps[call]))
        drawn = noise if call == 0 else draws[call - 1]
        np.testing.assert_allclose(latents, level.signal * image + level.noise * drawn, atol=1e-6)
        latents = sampler.step(call, drawn - image, latents, lambda call=call: draws[call])  # type: ignore[misc]
    np.testing.assert_allclose(latents, image, atol=1e-6)


def test_a_pipeline_keeps_the_schedules_of_its_sizes_apart(tmp_path: Path) -> None:
    config = {**FLUX, "shift": 3.0}
    write(tmp_path / "scheduler", config)
    folder = PipelineFolder(tmp_path, {})
    folder.__dict__["vae_factor"] = 8
    request = Request("", steps=4)
    small, large, again = (cached_recurrence(folder, request, 4, WHOLE, (side, side)) for side in (512, 1024, 512))
    assert small is again
    assert small is not None
    assert large is not None
    assert (small.timesteps[1:] < large.timesteps[1:]).all()
    fixed = [cached_recurrence(folder, Request("", steps=4, shift=3.0), 4, WHOLE, (side, side)) for side in (512, 1024)]
    assert fixed[0] is not None
    assert fixed[1] is not None
    np.testing.assert_array_equal(fixed[0].timesteps, fixed[1].timesteps)
    assert cached_counts(folder, request, 4).calls == 4


@pytest.mark.parametrize(
    ("config", "asked", "message"),
    [
        (SD3, {"scheduler": "ddim"}, "DDIMScheduler does not draw with a model of flow matching"),
        (SD3, {"scheduler": "dpm++-2m-sde"}, "does not draw with a model of flow matching"),
        (SD3, {"scheduler": "heun-karras"}, "has only flow matching's own noise levels"),
        (SD3, {"timestep_spacing": "leading"}, "has no leading timesteps with a model of flow matching"),
        (SD3, {"scheduler": "unipc", "timestep_spacing": "trailing"}, "has no trailing timesteps"),
        (SD3, {"eta": 0.5}, "takes no --eta"),
        ({"_class_name": "DDIMScheduler", **SCHEDULER}, {"shift": 3.0}, "--shift is for models of flow matching"),
        ({"_class_name": "DDIMScheduler", **SCHEDULER}, {"scheduler": EULER}, "is for models of flow matching"),
        ({"_class_name": UNIPC, **FLOW, "use_karras_sigmas": True}, {}, "only one can be|does not take"),
    ],
)
def test_what_does_not_go_with_a_models_noise_is_refused(
    config: dict[str, Any], asked: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        load_sampler(write(tmp_path, config), 4, **{"scheduler": None, **asked})


@pytest.mark.parametrize(
    ("config", "scheduler", "message"),
    [
        ({**SD3, "invert_sigmas": True}, None, "asks of FlowMatchEulerDiscreteScheduler for invert_sigmas=True"),
        (
            {**SD3, "_class_name": "FlowMatchLCMScheduler"},
            None,
            "sdort does not know for models of flow matching",
        ),
        ({"_class_name": "DEISMultistepScheduler", **FLOW}, None, "does not know for models of flow matching"),
        ({"_class_name": UNIPC, **FLOW, "prediction_type": "epsilon"}, "euler", "predicts epsilon"),
    ],
)
def test_a_config_that_no_sampler_knows_is_named(
    config: dict[str, Any], scheduler: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadModelError, match=message):
        load_sampler(write(tmp_path, config), 4, scheduler)


def test_an_unknown_class_of_flow_matching_gives_way_to_a_known_one(tmp_path: Path) -> None:
    folder = write(tmp_path, {**SD3, "_class_name": "FlowMatchLCMScheduler"})
    assert load_sampler(folder, 4, "euler").name == EULER
    with pytest.raises(BadModelError, match="with which diffusers' pipelines of a UNet do not draw"):
        load_scheduler(folder, "euler")


def test_an_export_writes_a_sampler_of_the_models_noise(tmp_path: Path) -> None:
    write(tmp_path / "scheduler", SD3)
    source = Source("mine", tmp_path, {"scheduler": ["diffusers", EULER]})
    written = replace_parts(source, Replacements(scheduler="unipc"), tmp_path)
    assert written.index["scheduler"] == ["diffusers", UNIPC]
    assert load_sampler(written.part("scheduler"), 4, None).name == UNIPC
    with pytest.raises(UsageError, match="--prediction-type epsilon is not for mine"):
        replace_parts(source, Replacements(prediction_type="epsilon"), tmp_path)
