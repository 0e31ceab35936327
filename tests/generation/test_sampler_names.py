"""A1111's names for what was drawn with, and the process of noise that a scheduler's config says."""

from __future__ import annotations

from typing import Any

import pytest

from sdort.errors import BadModelError, UsageError
from sdort.samplers.sampler_names import a1111_sampler
from sdort.samplers.scheduler_names import (
    NOISE_LEVELS,
    SAMPLERS,
    check_eta,
    check_noise_process,
    check_spacing,
    find_scheduler,
    has_betas,
    is_flow,
    noise_process,
)

# https://github.com/AUTOMATIC1111/stable-diffusion-webui: modules/sd_samplers_kdiffusion.py, sd_samplers_timesteps.py
NAMES = {
    "ddim": "DDIM", "dpm2": "DPM2", "dpm2-a": "DPM2 a", "dpm++-2m": "DPM++ 2M", "dpm++-2m-sde": "DPM++ 2M SDE",
    "dpm++-2m-sde-heun": "DPM++ 2M SDE Heun", "dpm++-3m-sde": "DPM++ 3M SDE", "dpm++-sde": "DPM++ SDE",
    "euler": "Euler", "euler-a": "Euler a", "heun": "Heun", "lcm": "LCM", "lms": "LMS", "plms": "PLMS",
    "unipc": "UniPC", "deis": "DEIS",
}  # fmt: skip
TYPES = {
    "karras": "Karras", "exponential": "Exponential", "beta": "Beta", "sgm-uniform": "SGM Uniform", "normal": "Normal",
    "ddim-uniform": "DDIM",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_has_a1111s_name(name: str) -> None:
    class_name = SAMPLERS[name].class_name
    assert a1111_sampler(class_name, name) == {"Sampler": NAMES[name]}
    for levels, schedule in TYPES.items():
        try:
            find_scheduler(f"{name}-{levels}")
        except UsageError:
            continue
        assert a1111_sampler(class_name, f"{name}-{levels}") == {"Sampler": NAMES[name], "Schedule type": schedule}


def test_the_pipelines_own_scheduler_is_called_by_its_class() -> None:
    assert a1111_sampler("EulerDiscreteScheduler", None) == {"Sampler": "Euler"}
    assert a1111_sampler("EulerDiscreteScheduler", "EulerDiscreteScheduler") == {"Sampler": "Euler"}
    assert a1111_sampler("DPMSolverMultistepScheduler", None) == {"Sampler": "DPM++ 2M"}
    assert a1111_sampler("TCDScheduler", "tcd") == {"Sampler": "TCDScheduler"}
    assert a1111_sampler("DPMSolverSinglestepScheduler", "dpm++-2s") == {"Sampler": "DPMSolverSinglestepScheduler"}
    assert a1111_sampler("Strange", None) == {"Sampler": "Strange"}


SAME = {
    "dpm++-2m": ("DPM++ 2M", "dpmpp_2m", "dpm++ 2m", "DPM++2M"),
    "dpm++-2s": ("DPM++ S", "dpm++-s", "dpmpp_2s"),
    "dpm2-a": ("dpm_2_ancestral", "DPM2 a"),
    "euler-a": ("euler_ancestral", "Euler a", "EULER-A"),
    "unipc": ("uni_pc", "uni_pc_bh2", "UniPC"),
    "dpm++-3m-sde": ("dpmpp_3m_sde",),
    "dpm++-2m-sde-heun": ("DPM++ 2M SDE Heun",),
}


def test_other_programs_names_of_samplers() -> None:
    for name, spelled in SAME.items():
        for text in spelled:
            assert find_scheduler(text) == find_scheduler(name), text
            if name != "euler-a":  # which has no such levels
                assert find_scheduler(f"{text} karras") == find_scheduler(f"{name}-karras")
    assert find_scheduler("EulerDiscrete") == find_scheduler("eulerdiscretescheduler") == ("EulerDiscreteScheduler", {})


SETTINGS: dict[str, tuple[str, str, int, str]] = {
    "dpm++-2m": ("DPMSolverMultistepScheduler", "dpmsolver++", 2, "midpoint"),
    "dpm++-2m-sde": ("DPMSolverMultistepScheduler", "sde-dpmsolver++", 2, "midpoint"),
    "dpm++-2m-sde-heun": ("DPMSolverMultistepScheduler", "sde-dpmsolver++", 2, "heun"),
    "dpm++-3m-sde": ("DPMSolverMultistepScheduler", "sde-dpmsolver++", 3, "midpoint"),
    "dpm++-2s": ("DPMSolverSinglestepScheduler", "dpmsolver++", 2, "midpoint"),
    "dpm++-sde": ("DPMSolverSinglestepScheduler", "sde-dpmsolver++", 2, "midpoint"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_solvers_differ_in_type_and_order(name: str) -> None:
    class_name, algorithm, order, solver = SETTINGS[name]
    assert find_scheduler(name) == (
        class_name, {"algorithm_type": algorithm, "solver_order": order, "solver_type": solver},
    )  # fmt: skip


def test_each_spacing_of_noise_levels_switches_the_others_off() -> None:
    switches = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")
    spacings = {
        "karras": None, "exponential": "linspace", "beta": "linspace", "sgm-uniform": "trailing", "simple": "trailing",
        "normal": "linspace", "ddim-uniform": "leading",
    }  # fmt: skip
    assert NOISE_LEVELS.keys() == spacings.keys()
    for levels, settings in NOISE_LEVELS.items():
        assert {name: settings[name] for name in switches} == {
            name: name == f"use_{levels}_sigmas" for name in switches
        }
        assert settings.get("timestep_spacing") == spacings[levels]


BETAS = {"beta_start": 0.1}


@pytest.mark.parametrize(
    ("config", "process"),
    [
        ({"_class_name": "EulerDiscreteScheduler", **BETAS}, None),
        ({}, None),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", **BETAS}, "flow matching"),
        ({**BETAS, "use_flow_sigmas": True}, "flow matching"),
        ({**BETAS, "use_flow_sigmas": False}, None),
        ({**BETAS, "prediction_type": "flow_prediction"}, "flow matching"),
        ({**BETAS, "prediction_type": "flow"}, "flow matching"),
        ({**BETAS, "prediction_type": "v_prediction"}, None),
        ({"_class_name": "EDMEulerScheduler", **BETAS}, "EDM's continuous"),
        ({"sigma_data": 0.5}, "EDM's continuous"),
        ({"sigma_data": 0.5, **BETAS}, None),
        ({"sigma_data": 0.5, "beta_schedule": "linear"}, None),
        ({"sigma_data": 0.5, "trained_betas": [0.5]}, None),
        ({"sigma_data": 0.5, "trained_betas": None}, "EDM's continuous"),
        ({**BETAS, "timestep_type": "continuous"}, "continuous noise levels"),
        ({**BETAS, "timestep_type": "discrete"}, None),
    ],
)
def test_processes_of_noise(config: dict[str, Any], process: str | None) -> None:
    found = noise_process(config)
    assert found is None if process is None else (found or "").startswith(process)
    if process is None or is_flow(config):  # which has samplers of its own
        check_noise_process(config, "a", None)
        return
    for asked, end in ((None, "does not draw$"), ("euler", "does not draw; euler would draw noise with it$")):
        with pytest.raises(BadModelError) as caught:
            check_noise_process(config, "the place", asked)
        assert caught.value.message.startswith(f"the scheduler of the place, {config.get('_class_name')}, is for")
        assert caught.value.message.endswith(end.removesuffix("$"))


def test_settings_that_a_class_has_not() -> None:
    for name in ("DDIMScheduler", "TCDScheduler"):
        check_eta(name)
    with pytest.raises(UsageError, match="EulerDiscreteScheduler takes no --eta") as caught:
        check_eta("EulerDiscreteScheduler")
    assert caught.value.hint == "These do: DDIMScheduler, TCDScheduler."
    check_spacing("EulerDiscreteScheduler")
    with pytest.raises(UsageError, match="DPMSolverSinglestepScheduler has no timestep spacing"):
        check_spacing("DPMSolverSinglestepScheduler")
    assert not has_betas({"beta_start": 0})
