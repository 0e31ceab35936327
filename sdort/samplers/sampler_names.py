"""A1111's names of samplers, as PNG files and model sites have them, for diffusers' classes."""

from __future__ import annotations

from sdort.errors import SdortError
from sdort.samplers.scheduler_names import NOISE_LEVELS, SAMPLERS, find_scheduler, leveled_names

A1111_NAMES = {
    "ddim": "DDIM",
    "deis": "DEIS",
    "dpm2": "DPM2",
    "dpm2-a": "DPM2 a",
    "dpm++-2m": "DPM++ 2M",
    "dpm++-2m-sde": "DPM++ 2M SDE",
    "dpm++-2m-sde-heun": "DPM++ 2M SDE Heun",
    "dpm++-3m-sde": "DPM++ 3M SDE",
    "dpm++-sde": "DPM++ SDE",
    "euler": "Euler",
    "euler-a": "Euler a",
    "heun": "Heun",
    "lcm": "LCM",
    "lms": "LMS",
    "plms": "PLMS",
    "unipc": "UniPC",
}
"""Short name -> A1111's, where it has the sampler."""
A1111_TYPES = {
    "karras": "Karras",
    "exponential": "Exponential",
    "beta": "Beta",
    "sgm-uniform": "SGM Uniform",
    "simple": "Simple",
    "normal": "Normal",
    "ddim-uniform": "DDIM",
}
"""Noise levels -> A1111's schedule type."""


def a1111_sampler(class_name: str, asked: str | None) -> dict[str, str]:
    """``Sampler`` and ``Schedule type``, as A1111 writes them; the class's own name where A1111 has none for it.

    Args:
        class_name: diffusers' class.
        asked: the name by which it was asked for; None for the pipeline's own, whose settings are not told.
    """
    wanted = _settings(asked) if asked else None
    for short, name in A1111_NAMES.items():
        if wanted is None or wanted[1] == {}:
            if SAMPLERS[short].class_name == class_name:
                return {"Sampler": name}
            continue
        if _settings(short) == wanted:
            return {"Sampler": name}
        for levels in NOISE_LEVELS:
            if _settings(f"{short}-{levels}") == wanted:
                return {"Sampler": name, "Schedule type": A1111_TYPES[levels]}
    return {"Sampler": class_name}


def short_sampler(name: str) -> str:
    """The short name of a sampler, such as ``dpm++-2m-karras``; the first one of a class that says nothing more. A name
    that is none stays."""
    wanted = _settings(name)
    if wanted is None:
        return name
    found = (short for short in (*SAMPLERS, *leveled_names()) if _settings(short) == wanted)
    return next(found, next((short for short, each in SAMPLERS.items() if (each.class_name, {}) == wanted), name))


def _settings(name: str) -> tuple[str, dict[str, object]] | None:
    try:
        return find_scheduler(name)
    except SdortError:
        return None
