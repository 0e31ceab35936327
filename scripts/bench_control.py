"""What ControlNet costs: a UNet's step without inputs for it, with unused ones, and with one and two ControlNets.

All run in turns in one process, with random weights, so that ratios hold whatever else the machine does:

    python scripts/bench_control.py --provider cuda --fp16 --family sd15 --size 512 --graph
    python scripts/bench_control.py --provider cpu --family tiny --size 64 --work DIR

Rows: plain (a UNet exported without --control), unused (exported with it and opened as a run that nothing steers opens
it), zeros (opened with its inputs, zeros bound), one and two ControlNets. A T2I-Adapter runs once an image, and a step
then costs what one with zeros does. Times are medians of a step. What the UNet gives is compared before: unused inputs
and zeros change nothing but roundings, and a ControlNet changes something; else the exit code is 1. With --work the
models are made there once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from measuring import Arguments, in_turns

import sdort
from sdort.demo.shapes import SHAPES
from sdort.generation.denoising.running_controls import Controls, RunningControls
from sdort.generation.requests.control_choice import ControlChoice
from sdort.generation.requests.control_plan import ControlModel
from sdort.graph.signature import TensorSpec
from sdort.onnx_io.component_file import read_component
from sdort.providers import find_provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session
from sdort.runtime.step.bound_unet import Batch, BoundBuffers
from sdort.runtime.step.step_conditions import StepConditions

ONLY_UNETS = ("sample_size", "up_block_types")
"""Entries of a UNet's config that a ControlNet's lacks."""
TOKENS, FACTOR = 77, 8
"""Of a prompt, and pixels a latent."""
ROWS = {"plain": 0, "unused": 0, "zeros": 0, "one": 1, "two": 2}
"""Row -> its ControlNets."""
ROUNDED = {False: 1e-4, True: 4e-3}
"""By --fp16, norm over norm: sums in another order."""
WITHOUT_INPUTS = ("plain", "unused")
"""Rows whose UNet is opened without inputs for control images."""


def make(family: str, folder: Path) -> None:
    """Save a UNet and a ControlNet of a family with random weights."""
    import torch
    from diffusers import ControlNetModel, UNet2DConditionModel

    torch.manual_seed(0)
    config = SHAPES[family].denoiser
    UNet2DConditionModel(**config).save_pretrained(folder / "unet" / "unet")
    index = {"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet2DConditionModel"]}
    (folder / "unet" / "model_index.json").write_text(json.dumps(index))
    net = ControlNetModel(**{name: value for name, value in config.items() if name not in ONLY_UNETS})
    for layer in [*net.controlnet_down_blocks, net.controlnet_mid_block]:
        torch.nn.init.normal_(layer.weight, std=0.01)
    net.save_pretrained(folder / "net")


def prepare(folder: Path, args: argparse.Namespace) -> dict[str, Path]:
    """Export and optimize, once; row or ``net`` -> the model's file."""
    static = f"{args.images}x{args.size}x{args.size}" if args.static else None
    for name, source, control in (("plain", "unet", False), ("unused", "unet", True), ("net", "net", False)):
        if not (folder / f"{name} model").exists():
            sdort.export(folder / source, folder / f"{name} model", control=control, static=static)
        if not (folder / f"{name} fast").exists():
            sdort.optimize(folder / f"{name} model", folder / f"{name} fast", provider=args.provider, fp16=args.fp16)
    unet = {row: folder / f"{row if row == 'plain' else 'unused'} fast" / "unet" / "model.onnx" for row in ROWS}
    return {**unet, "net": folder / "net fast" / "controlnet" / "model.onnx"}


def step_of(session: Session, controls: Controls | None, args: argparse.Namespace) -> Callable[[], BoundBuffers]:
    """One step of the UNet and its ControlNets on buffers that are bound once, which it returns."""
    batch = Batch(2, args.images, (4, args.size // FACTOR, args.size // FACTOR))
    shapes = {
        name: tuple(_number(spec, axis) for axis in range(1, len(spec.shape)))
        for name, spec in session.inputs.items()
        if name in ("encoder_hidden_states", "text_embeds", "time_ids")
    }
    buffers = BoundBuffers(session, batch, shapes, 1)
    generator = np.random.default_rng(0)
    buffers.sample.write(generator.standard_normal(buffers.sample.shape))
    conditions = {name: generator.standard_normal(buffer.shape) for name, buffer in buffers.conditioning.items()}
    buffers.row.words.write(buffers.step_rows(np.full(1, 500), StepConditions.fixed([conditions], 1))[0])
    buffers.write_conditioning(conditions)

    def step() -> BoundBuffers:
        if controls:
            controls.prepare(0, 1, buffers)
        buffers.run(0)
        return buffers

    return step


def _number(spec: TensorSpec, axis: int) -> int:
    size = spec.shape[axis]
    return size if isinstance(size, int) else TOKENS


def opened(paths: dict[str, Path], args: argparse.Namespace) -> dict[str, Callable[[], BoundBuffers]]:
    """The step of each row."""
    provider = find_provider(args.provider)
    options = RuntimeOptions(provider=args.provider, graph=args.graph, custom_ops=args.custom_ops)
    picture = np.random.default_rng(1).integers(0, 256, (args.size, args.size, 3), np.uint8)
    file = read_component(paths["net"], "controlnet")
    steps: dict[str, Callable[[], BoundBuffers]] = {}
    for row, count in ROWS.items():
        with_inputs = replace(options, control_inputs=row not in WITHOUT_INPUTS)
        session = open_session(paths[row], "unet", provider, with_inputs)
        models = [ControlModel(ControlChoice(paths["net"].parent.parent, picture).read(), file)] * count
        controls = RunningControls().use(models, (args.size, args.size), session, guess=False)
        steps[row] = step_of(session, controls, args)
    return steps


def wrong_rows(steps: dict[str, Callable[[], BoundBuffers]], args: argparse.Namespace) -> list[str]:
    """Sentences on rows whose output is not what it has to be beside the plain one's."""
    outputs = {row: step().output.read().astype(np.float64) for row, step in steps.items()}
    norm, most, said = np.linalg.norm(outputs["plain"]), ROUNDED[args.fp16], []
    for row, values in outputs.items():
        off = float(np.linalg.norm(values - outputs["plain"]) / norm)
        if not (off <= most if ROWS[row] == 0 else off > most):
            said.append(
                f"{row}: {off:.1e} from plain, which has to be {'at most' if ROWS[row] == 0 else 'more than'} {most}"
            )
    return said


def measure(steps: dict[str, Callable[[], BoundBuffers]], args: argparse.Namespace) -> dict[str, float]:
    """Median milliseconds of each row, all rows in turns."""
    seconds = in_turns(steps, args.repeat, warmup=args.warmup)
    return {row: 1000 * statistics.median(values) for row, values in seconds.items()}


def main() -> int:
    """Measure and print a table, or with ``--json`` an object."""
    parser = Arguments(
        __doc__,
        "--provider --family --fp16 --graph --static --custom-ops --repeat",
        providers="cpu cuda rocm migraphx",
        family="tiny",
    )
    parser.add_argument("--size", type=int, default=64, help="pixels of a side")
    parser.add_argument("--images", type=int, default=1, help="images at once; each is two samples")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--work", type=Path, help="make the models here, and keep them")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.work or Path(scratch)
        if not (folder / "net").exists():
            make(args.family, folder)
        steps = opened(prepare(folder, args), args)
        wrong, medians = wrong_rows(steps, args), measure(steps, args)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    if args.json:
        print(json.dumps(medians))
    for row, value in medians.items() if not args.json else ():
        print(f"{row:8} {value:9.3f} ms  {value / medians['plain']:6.3f} x plain")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
