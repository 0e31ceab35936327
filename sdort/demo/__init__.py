"""The demo: small pipelines of Stable Diffusion's and Z-Image's architecture that generate coloured shapes, and a judge
of their images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.demo.shapes import SHAPES
from sdort.errors import OutputError
from sdort.machine.optional_packages import COMPARING, need_packages

DEMO_FOLDER = Path(__file__).parent / "model"
CONTROL_FOLDER = Path(__file__).parent / "control"
TRANSFORMER_FOLDER = Path(__file__).parent / "transformer"
"""Without the weights of its autoencoder, which are those of :data:`DEMO_FOLDER`."""
CARD = "README.md"

DEMO = "demo"
DEMO_TRANSFORMER = "demo-transformer"
DEMO_CONTROL = "demo-control"
RANDOM = "random:"
DEMO_NAMES = (DEMO, DEMO_TRANSFORMER, DEMO_CONTROL, *(f"{RANDOM}{name}" for name in SHAPES))
"""Names that ``sdort export`` takes in place of a folder: the trained pipeline with a UNet, the one with a transformer,
a ControlNet of the first, which takes edges (scripts/tour_images.py), and pipelines of released shapes with random
weights, made on the spot."""

DEMO_ADAPTER = Path(__file__).parent / "chalk.safetensors"
"""A LoRA of the trained pipeline: white shapes on black, whatever colours a prompt asks for."""


def demo_adapter(choice: AdapterChoice) -> AdapterChoice:
    """The choice with the demo's own LoRA where it names ``demo``, and no file of that name is there."""
    named = choice.path == Path(DEMO) and not choice.path.is_file()  # a folder is often called so: the exported demo
    return replace(choice, path=DEMO_ADAPTER) if named else choice


def write_demo(name: str, folder: Path) -> None:
    """Write the pipeline of that name as a diffusers directory into ``folder``, which exists.

    Raises:
        OutputError: it cannot be written.
    """
    if name.startswith(RANDOM):
        need_packages(*COMPARING, what=f"making {name}")
        from sdort.demo.random_pipeline import make_random

        make_random(name.removeprefix(RANDOM), folder)
    else:
        import shutil

        origins = {DEMO_CONTROL: CONTROL_FOLDER, DEMO_TRANSFORMER: TRANSFORMER_FOLDER}
        parts = [(origins.get(name, DEMO_FOLDER), folder)]
        if name == DEMO_TRANSFORMER:  # last comes its own config of the autoencoder
            parts.insert(0, (DEMO_FOLDER / "vae", folder / "vae"))
        try:
            for origin, target in parts:
                shutil.copytree(origin, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(CARD))
        except shutil.Error as error:  # of every file that failed: where from, where to, and why
            raise OutputError(f"cannot write the demo model: {error.args[0][0][2]}") from error
