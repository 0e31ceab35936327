"""Names of schedulers as people and other programs write them, held against diffusers' classes."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.tiny_pipeline import SCHEDULER

from sdort.errors import UsageError
from sdort.generation.schedules.schedulers import load_scheduler, set_steps
from sdort.samplers.scheduler_names import (
    CLASSES,
    NOISE_LEVELS,
    OF_FLOW,
    SAMPLERS,
    WITH_ETA,
    WITHOUT_SIGMAS,
    WITHOUT_SPACING,
    find_scheduler,
)

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")

KARRAS, EXPONENTIAL, BETA = "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"
# diffusers' table: https://huggingface.co/docs/diffusers/api/schedulers/overview
TABLE: list[tuple[str, str, dict[str, Any]]] = [
    ("DPM++ 2M", "DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver++"}),
    ("DPM++ 2M Karras", "DPMSolverMultistepScheduler", {KARRAS: True, "algorithm_type": "dpmsolver++"}),
    ("DPM++ 2M SDE", "DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    ("DPM++ 2M SDE Karras", "DPMSolverMultistepScheduler", {KARRAS: True, "algorithm_type": "sde-dpmsolver++"}),
    ("DPM2 Karras", "KDPM2DiscreteScheduler", {KARRAS: True}),
    ("DPM2 a", "KDPM2AncestralDiscreteScheduler", {}),
    ("Euler", "EulerDiscreteScheduler", {}),
    ("Euler Karras", "EulerDiscreteScheduler", {KARRAS: True}),
    ("Euler a", "EulerAncestralDiscreteScheduler", {}),
    ("Heun", "HeunDiscreteScheduler", {}),
    ("Euler Exponential", "EulerDiscreteScheduler", {EXPONENTIAL: True, "timestep_spacing": "linspace"}),
    ("DPM++ 2M SGM Uniform", "DPMSolverMultistepScheduler", {"timestep_spacing": "trailing"}),
    ("Euler simple", "EulerDiscreteScheduler", {"timestep_spacing": "trailing"}),
    ("dpmpp_2m_sde_karras", "DPMSolverMultistepScheduler", {KARRAS: True, "algorithm_type": "sde-dpmsolver++"}),
    ("euler_ancestral", "EulerAncestralDiscreteScheduler", {}),
    ("DPM++ SDE Karras", "DPMSolverSinglestepScheduler", {KARRAS: True, "algorithm_type": "sde-dpmsolver++"}),
    ("dpm_2_ancestral karras", "KDPM2AncestralDiscreteScheduler", {KARRAS: True}),
    ("PLMS", "PNDMScheduler", {"skip_prk_steps": True}),
]


def write_config(folder: Path, **config: Any) -> Path:
    (folder / "scheduler_config.json").write_text(json.dumps({"_class_name": "PNDMScheduler", **SCHEDULER, **config}))
    return folder


@pytest.mark.parametrize(("name", "class_name", "settings"), TABLE, ids=[row[0] for row in TABLE])
def test_a_name_means_what_diffusers_says(name: str, class_name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    import diffusers

    ours = load_scheduler(write_config(tmp_path), name)
    set_steps(ours, 7)
    theirs = getattr(diffusers, class_name).from_config({**SCHEDULER, **settings})
    theirs.set_timesteps(7)
    assert type(ours) is type(theirs)
    assert ours.timesteps.tolist() == theirs.timesteps.tolist()
    assert {key: ours.config[key] for key in settings} == settings
    if hasattr(theirs, "sigmas"):
        assert ours.sigmas.tolist() == theirs.sigmas.tolist()


def test_noise_levels_of_the_pipelines_own_config_give_way(tmp_path: Path) -> None:
    folder = write_config(tmp_path, _class_name="DPMSolverMultistepScheduler", use_karras_sigmas=True)
    assert load_scheduler(folder, "euler").config.use_karras_sigmas
    exponential = load_scheduler(folder, "euler-exponential").config
    assert exponential.use_exponential_sigmas
    assert not exponential.use_karras_sigmas
    assert not load_scheduler(folder, "euler-normal").config.use_karras_sigmas


def test_what_classes_can_is_what_diffusers_classes_can() -> None:
    import inspect

    import diffusers

    def takes(class_name: str, method: str, name: str) -> bool:
        return name in inspect.signature(getattr(getattr(diffusers, class_name), method)).parameters

    known = CLASSES - OF_FLOW - {"LMSDiscreteScheduler"}  # whose stand-in without scipy has no signature
    assert {name for name in known if not takes(name, "__init__", KARRAS)} == WITHOUT_SIGMAS
    assert {name for name in known if not takes(name, "__init__", "timestep_spacing")} == WITHOUT_SPACING
    assert {name for name in known if takes(name, "step", "eta")} == WITH_ETA


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ddim-karras", "DDIMScheduler has no karras noise levels"),
        ("DPM++ 2S simple", "DPMSolverSinglestepScheduler has no timestep spacing"),
        ("DPM++ 2S a Karras", "Did you mean dpm.*karras"),
        ("karras", "there is no scheduler 'karras'"),
        ("", "there is no scheduler ''"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_scheduler(name)
    assert re.search(reason, f"{caught.value} {caught.value.hint}")


def test_all_noise_levels_are_settings_or_a_sentence() -> None:
    for name, levels in itertools.product(SAMPLERS, NOISE_LEVELS):
        own = SAMPLERS[name].class_name
        lacks = WITHOUT_SIGMAS if levels in ("karras", "exponential", "beta") else WITHOUT_SPACING
        if own in lacks:
            with pytest.raises(UsageError, match=own):
                find_scheduler(f"{name}-{levels}")
        else:
            assert find_scheduler(f"{name}-{levels}") == (own, {**SAMPLERS[name].config, **NOISE_LEVELS[levels]})


def test_beta_levels_name_the_package_that_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffusers.schedulers.scheduling_euler_discrete.is_scipy_available", lambda: False)
    with pytest.raises(UsageError, match="EulerDiscreteScheduler with these noise levels needs scipy"):
        load_scheduler(write_config(tmp_path), "euler-beta")


def test_spacing_and_eta_reach_the_scheduler(tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    assert load_scheduler(folder, "euler", timestep_spacing="trailing").config.timestep_spacing == "trailing"
    assert load_scheduler(folder, "tcd", eta=0.5).step.keywords == {"eta": 0.5}
    with pytest.raises(UsageError, match="EulerDiscreteScheduler takes no --eta"):
        load_scheduler(folder, "euler", eta=0.5)
    with pytest.raises(UsageError, match="no timestep spacing"):
        load_scheduler(folder, "dpm++-2s", timestep_spacing="trailing")
