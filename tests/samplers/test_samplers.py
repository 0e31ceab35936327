"""Samplers by formulas, held to diffusers' classes of the same name over drawn settings, steps and parts."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.tiny_pipeline import SCHEDULER

from sdort.generation.schedules.diffusers_sampler import DiffusersSampler
from sdort.generation.schedules.recurrence import find_recurrence
from sdort.generation.schedules.schedule_part import Begin, Part, PartSteps
from sdort.generation.schedules.schedulers import STUMBLES, _with_zero_snr
from sdort.graph.signature import Array
from sdort.samplers.find_sampler import SAMPLER_CLASSES, foreign_settings, sampler_values
from sdort.samplers.sampler import Sampler
from sdort.samplers.scheduler_names import CLASSES, OF_FLOW
from sdort.samplers.settings import CHOSEN_SIGMAS, SIGMA_RANGE, ZERO_SNR, Setting, shifting_settings
from sdort.samplers.spacing import SigmaTable, beta_quantile

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # diffusers' arithmetic on numpy 2

TRAINED = 100
"""Timesteps of the models here: diffusers' Heun and DPM2 set as many when they are made."""
BETAS = {"num_train_timesteps": TRAINED, "beta_start": 0.0085, "beta_end": 0.12, "beta_schedule": "scaled_linear"}
DRAWS = 16
"""Drawn settings of each class, and three times as many of those with algorithms."""


@pytest.fixture(scope="module")
def classes() -> Iterator[dict[str, Any]]:
    """Diffusers' classes by name. That of LMS needs scipy for an integral of polynomials, which numpy does too, and
    those with beta sigmas for a distribution's quantiles."""
    import diffusers
    from diffusers.schedulers.scheduling_lms_discrete import LMSDiscreteScheduler

    nodes, weights = np.polynomial.legendre.leggauss(2)

    def quad(function: Callable[[float], float], start: float, end: float, epsrel: float) -> tuple[float, float]:
        half = (float(end) - float(start)) / 2
        points = half * nodes + (float(end) + float(start)) / 2
        return half * sum(weight * float(function(point)) for weight, point in zip(weights, points, strict=True)), 0.0

    def quantile(share: float, a: float, b: float) -> float:
        return float(beta_quantile(np.array([share]), a)[0])

    scipy: Any = SimpleNamespace(stats=SimpleNamespace(beta=SimpleNamespace(ppf=quantile)))
    found = {name: getattr(diffusers, name) for name in CLASSES} | {"LMSDiscreteScheduler": LMSDiscreteScheduler}
    with pytest.MonkeyPatch.context() as patch:
        for made in found.values():
            module = sys.modules[made.__module__]
            patch.setattr(module, "is_scipy_available", lambda: True, raising=False)
            patch.setattr(module, "scipy", scipy, raising=False)
            patch.setattr(module, "integrate", SimpleNamespace(quad=quad), raising=False)
            patch.setattr(made, "set_timesteps", _when_asked(made.set_timesteps))
        yield found


def _when_asked(own: Callable[..., None]) -> Callable[..., None]:
    """A class's ``set_timesteps`` without the schedule of all trained timesteps, which some set when they are made."""

    def set_timesteps(self: Any, steps: int, *more: Any) -> None:
        import torch

        if steps == TRAINED:
            self.sigmas = torch.zeros(1)
        else:
            own(self, steps, *more)

    return set_timesteps


VALUES: dict[str, list[Any]] = {
    "beta_schedule": ["scaled_linear", "scaled_linear", "linear", "squaredcos_cap_v2"],
    "steps_offset": [0, 1],
    "prediction_type": ["epsilon", "v_prediction", "sample"],
    "lambda_min_clipped": [-float("inf"), -2.0, -5.1],
    "sigma_min": [None, 0.1],
    "sigma_max": [None, 9.0],
    "disable_corrector": [[], [0, 2]],
    "original_inference_steps": [50, 20],
    "timestep_scaling": [10.0, 0.3],
    "trained_betas": [None],
    **{key: [] for key in ("num_train_timesteps", "beta_start", "beta_end")},
}
CANDIDATES = [True, False, None, "linspace", "leading", "trailing", "zero", "sigma_min", 1, 2, 3, "linear",
              "log_linear", "dpmsolver++", "sde-dpmsolver++", "deis", "midpoint", "heun", "bh1", "bh2", "logrho",
              "fixed_small", "fixed_small_log", "fixed_large"]  # fmt: skip
"""Values that settings of a few values have, among those that they do not."""
STEPS = (1, 2, 3, 4, 5, 8, 15, 16, 21)


def drawn_config(name: str, draw: random.Random) -> dict[str, Any]:
    """A config of a class: its settings at values that sdort's sampler knows."""
    config: dict[str, Any] = {"_class_name": draw.choice(["PNDMScheduler", name]), **BETAS}
    for key, setting in SAMPLER_CLASSES[name].settings.items():
        values = [each for each in VALUES.get(key, CANDIDATES) if setting.accepts(each)]
        wanted = 0.25 if key == ZERO_SNR or key in CHOSEN_SIGMAS or key == "use_lu_lambdas" else 0.8
        if values and draw.random() < wanted:
            config[key] = draw.choice(values)
    config.update(clip_sample=False, thresholding=False)
    config |= {key: False for key in ("use_flow_sigmas", "use_dynamic_shifting") if key in config}
    config.pop("shift_terminal", None)  # of flow matching alone
    chosen = [key for key in CHOSEN_SIGMAS if config.get(key)]
    return {**config, **dict.fromkeys(chosen[1:], False)}


def drawn_part(calls: int, order: int, draw: random.Random) -> Part:
    first = draw.randrange(0, calls, order)
    masked = draw.random() < 0.3
    return draw.choice([Part(), Part(masked=masked), Part(first, begin=Begin.IMAGE, masked=masked),
                        Part(first, begin=Begin.LATENTS), Part(last=first + 1)])  # fmt: skip


def make_theirs(made: Any, config: dict[str, Any], steps: int, eta: float | None) -> DiffusersSampler:
    scheduler = made.from_config(config)
    if config.get(ZERO_SNR):
        scheduler = _with_zero_snr(scheduler, config)
    scheduler.set_timesteps(steps)
    if eta is not None:
        scheduler.step = partial(scheduler.step, eta=eta)
    return DiffusersSampler(scheduler)


def walk(sampler: Sampler, part: Part) -> list[Array]:
    """All that a UNet gets whose output depends on its input alone, and the result."""
    rows = iter(np.random.default_rng(5).standard_normal((80, 1, 2, 3, 5)))
    noise, image = next(rows), next(rows)
    steps = PartSteps(sampler, part)
    latents, seen = steps.begin(noise, image), []
    for number in range(len(steps.timesteps)):
        seen.append(steps.sample(number, latents))
        latents = steps.step(number, np.tanh(seen[-1]) * 0.9, latents, lambda: next(rows))
        if part.masked:
            latents = np.where(noise > 0, latents, steps.outside(number, noise, image))
    drawn = 78 - sum(1 for _ in rows)
    return [*seen, latents, np.array(float(drawn))]


def check_times(ours: Any, theirs: Array, tolerance: float) -> None:
    """The same timesteps, but where fp32 decides between two whole ones."""
    assert len(ours.timesteps) == len(theirs)
    assert ours.timesteps.dtype in (np.int64, np.float32)
    for number in np.flatnonzero(np.abs(ours.timesteps - theirs) > tolerance):
        difference = abs(float(ours.timesteps[number]) - float(theirs[number]))
        exact = float(SigmaTable(ours.shares).times(np.array([ours.sigmas[number]]))[0])
        between = min(abs(exact - round(exact)), abs(exact % 1 - 0.5)) < 0.02
        assert difference == 1 and ours.timesteps.dtype == np.int64 and between, number  # noqa: PT018


@pytest.mark.parametrize("name", sorted(SAMPLER_CLASSES.keys() - OF_FLOW))
def test_every_sampler_is_diffusers_class(name: str, classes: dict[str, Any]) -> None:
    """Inputs, results and the number of draws; what one of them cannot do the other cannot either."""
    draw, held = random.Random(name), 0
    draws = DRAWS * (3 if "algorithm_type" in SAMPLER_CLASSES[name].settings else 1)
    for _ in range(draws):
        config, steps = drawn_config(name, draw), draw.choice(STEPS)
        assert foreign_settings(name, config) == []
        eta = draw.choice([None, 0.0, 0.5, 1.0]) if name in ("DDIMScheduler", "TCDScheduler") else None
        make = partial(SAMPLER_CLASSES[name], sampler_values(name, config), steps, eta)
        part = Part()
        try:
            theirs = make_theirs(classes[name], config, steps, eta)
            if name != "LMSDiscreteScheduler":  # whose first steps of a part are not the method's in diffusers
                part = drawn_part(len(theirs.timesteps), theirs.order, draw)
            expected = walk(theirs, part)
            finite = all(np.isfinite(each).all() for each in expected)
        except STUMBLES:
            finite = False
        if not finite:
            if ends_in_place(make) or is_infinite_times_zero(config):
                continue
            with pytest.raises((ValueError, ArithmeticError)):
                walk(make(), part)
            continue
        ours = make()
        check_times(ours, theirs.timesteps, 1 if is_steep(config) else 1e-3)
        check_walk(walk(ours, part), expected, tolerance_of(config), (config, steps, part))
        assert (ours.order, ours.trained, ours.prediction) == (theirs.order, theirs.trained, theirs.prediction)
        np.testing.assert_allclose(ours.shares, theirs.shares, rtol=2e-3 if config.get(ZERO_SNR) else 1e-4, atol=1e-7)
        held += 1
    assert held >= draws / 2


def ends_in_place(make: Callable[[], Any]) -> bool:
    """Whether the last step has no length: 0 / 0 in diffusers, where sdort's stays where it is; refused ones do not."""
    try:
        sigmas = getattr(make(), "sigmas", [1.0, 0.0])
    except (ValueError, ArithmeticError):
        return False
    return bool(sigmas[-1] > 0 and abs(sigmas[-1] / sigmas[-2] - 1) < 1e-6)


def is_infinite_times_zero(config: dict[str, Any]) -> bool:
    """Whether diffusers' UniPC multiplies the infinite width of the last step by a correction of zero."""
    return config.get("solver_type") == "bh1" and config.get("final_sigmas_type", "zero") == "zero"


def tolerance_of(config: dict[str, Any]) -> float:
    """In standard deviations. Fp32 knows the noise of the first timesteps to 2e-5, and of the noise of a steep table,
    thousands beside a signal of 1, 6e-8 at each step."""
    return 5e-3 if is_steep(config) else 2e-4


def is_steep(config: dict[str, Any]) -> bool:
    """Zero terminal SNR, or the cosine schedule."""
    return bool(config.get(ZERO_SNR)) or config.get("beta_schedule") == "squaredcos_cap_v2"


def check_walk(found: list[Array], expected: list[Array], tolerance: float, case: object) -> None:
    for call, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        error = np.abs(ours - theirs).max() / max(theirs.std(), 1)
        assert error < tolerance, (case, call, error)


@pytest.mark.parametrize("name", sorted(SAMPLER_CLASSES))
def test_settings_and_defaults_are_those_of_diffusers_class(name: str, classes: dict[str, Any]) -> None:
    parameters = dict(list(inspect.signature(classes[name].__init__).parameters.items())[1:])
    settings = SAMPLER_CLASSES[name].settings
    assert parameters.keys() - settings.keys() == set()
    # The shift by tokens stands in configs, and diffusers' pipelines read it there.
    assert settings.keys() - parameters.keys() <= {*SIGMA_RANGE, ZERO_SNR, *shifting_settings(), "timestep_spacing"}
    assert {key: settings[key].default for key in parameters} == {key: each.default for key, each in parameters.items()}
    for key, each in parameters.items():
        assert settings[key].accepts(each.default) is (key != "clip_sample" or each.default is False), key


def test_there_is_a_sampler_for_every_class_of_a_name() -> None:
    assert SAMPLER_CLASSES.keys() == CLASSES


def names_of_settings() -> list[tuple[str, str, Setting]]:
    return [(name, key, setting) for name, made in SAMPLER_CLASSES.items() for key, setting in made.settings.items()]


def test_what_a_sampler_does_not_know_is_not_passed_over() -> None:
    """A value that no version has yet, and a key of tomorrow."""
    for name, key, setting in names_of_settings():
        config = {**BETAS, "clip_sample": False, key: "of tomorrow"}
        unread = setting.accepts("of tomorrow")
        assert foreign_settings(name, config) == ([] if unread else [f"{key}='of tomorrow'"]), (name, key)
    for name in SAMPLER_CLASSES:
        assert foreign_settings(name, {**BETAS, "clip_sample": False, "of_tomorrow": 1, "_private": 2}) == [
            "of_tomorrow=1"
        ]
        assert foreign_settings(name, {"clip_sample": False, "interpolation_type": "linear"}) == []
    assert foreign_settings("MineScheduler", {}) is None
    clips = {name for name in SAMPLER_CLASSES if foreign_settings(name, {}) == ["clip_sample=True"]}
    assert clips == {"DDIMScheduler", "DDPMScheduler"}
    for value in (1, 1.0, "True"):  # equal to True, or written so
        assert foreign_settings("EulerDiscreteScheduler", {"use_karras_sigmas": value})


def test_of_three_kinds_of_noise_levels_one_can_be_on() -> None:
    with pytest.raises(ValueError, match="only one of use_karras_sigmas, use_exponential_sigmas, use_beta_sigmas"):
        sampler_values("EulerDiscreteScheduler", dict.fromkeys(CHOSEN_SIGMAS[:2], True))


@pytest.mark.parametrize("first", [0, 1, 3, 7])
def test_a_part_of_lms_takes_whole_steps(first: int) -> None:
    """Where the slope is the same everywhere a step of any order is Euler's."""
    config = {**SCHEDULER, "num_train_timesteps": 1000}
    sampler: Any = SAMPLER_CLASSES["LMSDiscreteScheduler"](sampler_values("LMSDiscreteScheduler", config), 10)
    latents = sampler.noised(first, np.zeros(3), np.ones(3))
    for call in range(first, 10):
        latents = sampler.step(call, np.ones(3), latents, list)
        np.testing.assert_allclose(latents, sampler.sigmas[call + 1], atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "formula"),
    [(1.0, lambda u: u), (0.5, lambda u: np.sin(np.pi * u / 2) ** 2)],
    ids=["uniform", "arcsine"],
)
def test_quantiles_of_the_beta_distribution(shape: float, formula: Callable[[Array], Array]) -> None:
    shares = np.linspace(0, 1, 41)
    np.testing.assert_allclose(beta_quantile(shares, shape), formula(shares), atol=1e-15)


@pytest.mark.parametrize("shape", [0.6, 2.0])
def test_a_quantile_is_where_the_distributions_density_has_its_share(shape: float) -> None:
    """The density times the width of a place in the angle whose squared sine is the place, which has no poles."""
    import math

    nodes, weights = np.polynomial.legendre.leggauss(200)
    whole = math.gamma(shape) ** 2 / math.gamma(2 * shape)
    for share in (0.03, 0.3, 0.5, 0.81):
        place = float(beta_quantile(np.array([share]), shape)[0])
        # With angle = t^5 the density begins smoothly too.
        end = math.asin(math.sqrt(place)) ** 0.2
        points = end / 2 * (nodes + 1)
        angles = points**5
        density = 2 * (np.sin(angles) * np.cos(angles)) ** (2 * shape - 1) * 5 * points**4
        assert end / 2 * (weights * density).sum() / whole == pytest.approx(share, abs=1e-7)


def test_a_samplers_recurrence_is_found_without_a_trial() -> None:
    """Of 50 steps of DPM++ 2M: noise and outputs give its inputs and result."""
    name = "DPMSolverMultistepScheduler"
    make = partial(SAMPLER_CLASSES[name], sampler_values(name, {**SCHEDULER, "use_karras_sigmas": True}), 50)
    found = find_recurrence(make)
    assert found is not None
    assert (found.steps, found.noises) == (50, 0)
    rng = np.random.default_rng(2)
    noise, outputs = rng.standard_normal((1, 1, 4, 4)), rng.standard_normal((50, 1, 1, 4, 4))
    sampler = make()
    latents = sampler.begin(noise)
    rows = np.stack([noise, *outputs])
    for call in range(50):
        np.testing.assert_allclose(np.tensordot(found.inputs[call], rows, 1), sampler.sample(call, latents), atol=1e-9)
        latents = sampler.step(call, outputs[call], latents, lambda: noise)
    np.testing.assert_allclose(np.tensordot(found.result, rows, 1), latents, atol=1e-9)
