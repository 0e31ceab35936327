"""Inputs to measure ranges with: recorded while the original, in fp32, generates an image on the CPU, or random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sdort.console import say
from sdort.errors import SdortError
from sdort.families.component_names import CONTROLNET, DECODER, ENCODER
from sdort.families.known_families import DENOISERS
from sdort.generation.pipeline import assemble
from sdort.generation.recorded import Recording, encoder_input
from sdort.generation.requests.request import Request
from sdort.graph.signature import Feeds
from sdort.onnx_io.component_file import read_component
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import open_session
from sdort.workload.samples import Sample, declared_inputs, make_inputs

RECORDED_PROMPT = "a photograph of a lighthouse on a cliff above the sea at dusk"
NEGATIVE = "blurry, text"
RECORDED_STEPS = 6
KEPT = 3
"""Recorded runs of a component that are kept: the first, the last and others evenly between."""
LARGEST_PIXEL_SIDE = 512
"""Pixels: larger models are measured at this size; the ranges hardly depend on it."""
SEEDS = 3
"""Random inputs for a component that has no recorded ones."""


def recorded_inputs(source: Path) -> dict[str, list[Feeds]]:
    """Inputs of each component on real prompts and timesteps.

    Args:
        source: a folder; with text encoder, UNet, decoder, tokenizer and scheduler it can generate.

    Returns:
        Nothing, and a message, if the folder cannot generate: no pipeline, or of a family that ``sdort run`` does not
        know.
    """
    reason = f"{source} has no scheduler or no tokenizer"
    if (source / "scheduler").is_dir() and (source / "tokenizer").is_dir():
        try:
            return _record(source)
        except SdortError as error:
            reason = error.message
    say(f"fp16's ranges are measured on random inputs, as none can be recorded: {reason}")
    return {}


def inputs_for(component: str, path: Path, recorded: Mapping[str, list[Feeds]]) -> tuple[list[Feeds], str]:
    """Feeds to measure a component with, and their source in words.

    Args:
        path: the original ``.onnx`` file.
        recorded: from :func:`recorded_inputs`.

    Raises:
        BadModelError: nothing says how large an input is.
    """
    declared = declared_inputs(read_component(path, component).graph, component)
    feeds = recorded.get(component, [])
    if feeds and {item.name for item in declared} <= set(feeds[0]):
        return _some(feeds), "recorded while generating"
    side = 16 if component in (*DENOISERS, CONTROLNET, DECODER) else 64
    sample = Sample(batch=1, height=side, width=side)
    return [make_inputs(declared, sample, component, seed) for seed in range(SEEDS)], "random"


def _record(source: Path) -> dict[str, list[Feeds]]:
    folder = open_folder(source)
    options = RuntimeOptions("cpu", custom_ops="off", control_inputs=True, split=False)
    sessions = {name: open_session(folder.models[name], name, CPU, options) for name in folder.needed}
    recording = Recording(assemble(folder, sessions, CPU, None))
    request = Request(RECORDED_PROMPT, NEGATIVE, steps=RECORDED_STEPS)
    height, width = (min(side, LARGEST_PIXEL_SIDE) for side in recording.pipeline.size(request))
    [image] = recording.generate(replace(request, height=height, width=width))
    return {**recording.fed, ENCODER: [{"sample": encoder_input(image)}]}


def _some(feeds: list[Feeds]) -> list[Feeds]:
    chosen = np.linspace(0, len(feeds) - 1, min(KEPT, len(feeds)))
    return [feeds[round(index)] for index in chosen]
