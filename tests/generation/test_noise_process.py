"""Models of other processes of noise than betas are refused; zero terminal SNR reaches every scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_pipeline import SCHEDULER

from sdort.errors import BadModelError, UsageError
from sdort.generation.schedules.schedulers import load_scheduler, set_steps
from sdort.samplers.scheduler_names import CLASSES, SAMPLERS, noise_process

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")

FOREIGN: list[dict[str, Any]] = [
    {"_class_name": "EDMDPMSolverMultistepScheduler", "sigma_data": 0.5, "sigma_max": 80.0, "sigma_min": 0.002},
    {"_class_name": "EDMEulerScheduler", "sigma_data": 1.0, "prediction_type": "v_prediction"},
    {"_class_name": "EulerDiscreteScheduler", "sigma_data": 0.5, "sigma_max": 80.0},  # replaced by hand
    {"_class_name": "EulerDiscreteScheduler", "timestep_type": "continuous", "sigma_max": 700.0, "sigma_min": 0.002},
    {"_class_name": "DPMSolverMultistepScheduler", "beta_schedule": "linear", "prediction_type": "flow_prediction"},
]


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "scheduler_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("config", FOREIGN, ids=lambda config: f"{config['_class_name']} {len(config)}")
def test_no_scheduler_stands_in_for_one_of_another_process(tmp_path: Path, config: dict[str, Any]) -> None:
    write(tmp_path, config)
    assert noise_process(config)
    for name in (None, *SAMPLERS, *CLASSES):
        with pytest.raises(BadModelError, match="with which sdort does not draw") as refused:
            load_scheduler(tmp_path, name)
        assert config["_class_name"] in refused.value.message
        assert not any(f" {sampler}," in str(refused.value.hint) for sampler in SAMPLERS)  # no way to noise
        assert name is None or f"{name} would draw noise" in refused.value.message


def test_an_unknown_scheduler_gives_way_to_another_only_where_betas_are_known(tmp_path: Path) -> None:
    write(tmp_path, {"_class_name": "MineScheduler"})
    for name in (None, "euler"):
        with pytest.raises(BadModelError, match="'MineScheduler', which sdort does not know") as refused:
            load_scheduler(tmp_path, name)
        assert "no betas" in str(refused.value.hint)
    write(tmp_path, {"_class_name": "MineScheduler", "beta_schedule": "scaled_linear"})
    with pytest.raises(BadModelError, match="MineScheduler") as refused:
        load_scheduler(tmp_path, None)
    assert "euler" in str(refused.value.hint)
    assert type(load_scheduler(tmp_path, "euler")).__name__ == "EulerDiscreteScheduler"


MEAN, DEVIATION = 0.7, 0.5
"""Of images whose pixels are independent and normal: what their model predicts is known."""
ZERO_SNR = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing", "prediction_type": "v_prediction"}


def levels() -> np.ndarray[Any, np.dtype[np.float64]]:
    """The share of the signal at each timestep: algorithm 1 of https://arxiv.org/abs/2305.08891."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    roots = np.sqrt(np.cumprod(1 - betas))
    first, last = roots[0], roots[-1]
    shares: np.ndarray[Any, np.dtype[np.float64]] = ((roots - last) * first / (first - last)) ** 2
    held: np.ndarray[Any, np.dtype[np.float64]] = np.maximum(shares, 2.0**-24)
    return held


def velocity(noised: torch.Tensor, time: float) -> torch.Tensor:
    """What the model of these images predicts: alpha * noise - sigma * image, both as their means given ``noised``."""
    share = np.exp(np.interp(time, np.arange(1000), np.log(levels())))
    alpha, sigma = share**0.5, (1 - share) ** 0.5
    gain = alpha * DEVIATION**2 / (alpha**2 * DEVIATION**2 + sigma**2)
    image = MEAN + gain * (noised.double() - alpha * MEAN)
    return (alpha * (noised.double() - alpha * image) / sigma - sigma * image).float()


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_scheduler_begins_without_a_signal(tmp_path: Path, name: str) -> None:
    """Images of a brightness of their own come out; one that begins with a rest of the signal draws them too grey."""
    write(tmp_path, {"_class_name": "DDIMScheduler", **SCHEDULER, **ZERO_SNR})
    try:
        scheduler = load_scheduler(tmp_path, name)
    except UsageError as error:
        assert "scipy" in str(error)  # noqa: PT017
        pytest.skip(str(error))
    assert float(scheduler.alphas_cumprod[-1]) < 1e-6
    np.testing.assert_allclose(scheduler.alphas_cumprod[:-1], levels()[:-1], rtol=2e-3)
    set_steps(scheduler, 30)
    random = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 1, 50, 80, generator=random) * scheduler.init_noise_sigma
    seeded = {"generator": random} if "generator" in scheduler.step.__code__.co_varnames else {}
    for time in scheduler.timesteps:
        noised = scheduler.scale_model_input(latents, time)
        latents = scheduler.step(velocity(noised, float(time)), time, latents, **seeded).prev_sample
    # Without the betas 0.026 to 0.047. PNDM averages the noise of several steps, and gets only as near as this.
    assert abs(float(latents.mean()) - MEAN) < (0.032 if name in ("pndm", "plms") else 0.014)
