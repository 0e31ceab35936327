#!/usr/bin/env python3
"""Seconds an image and GPU memory of ComfyUI, with its own models and with sdort's nodes on the same weights.

    python scripts/comfyui_benchmark.py COMFYUI WORK [--provider cuda|rocm|cpu] [--family sd1,sdxl] [--small]
        [--images 5] [--steps 20] [--json FILE]

COMFYUI and WORK are as for scripts/check_comfyui.py. The checkpoints have the released models' sizes and random weights
of a fixed seed: SD 1.5 at 512x512, SDXL at 1024x1024, in fp16. Each side has a server of its own, one after the other:
ComfyUI as it starts without options, and ComfyUI with sdort's nodes as they are without settings. The first start with
the nodes exports and optimizes; a second one is measured. Times are ComfyUI's own, medians of images that are warm, in
each of which the seed is another. The LoRA changes every matrix and convolution of the attention blocks. GPU memory is
the highest of the whole device's from the server's start, less what it was before.

Both sides are compared with ComfyUI in fp32. The exit code is 1 if an image of sdort's is further from it than
ComfyUI's own in fp16 by more than MARGIN decibels, and 5 if a workflow fails.

--provider cpu --small tries all of it in a minute or two without a GPU, on UNets of the fewest blocks; its times say
nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from check_comfyui import (
    LEAST,
    ON_CPU,
    UNETS,
    Workflow,
    copied,
    decibels_of,
    messages_of,
    plain_workflow,
    results,
    server,
    write_checkpoint,
)
from diffusers import UNet2DConditionModel
from measuring import Arguments
from safetensors.torch import save_file

from sdort.demo.shapes import SHAPES
from sdort.machine.gpus import memory_reader

MARGIN = 6.0
"""Decibels: a distance to fp32 twice as long as ComfyUI's own."""
STEP = 48.0
"""Decibels of an image whose pixels are a step of 255 away: no image has to be nearer."""
GOALS = {"s": 0.8, "MiB": 1.0}
"""The most that sdort should take of ComfyUI's, by unit."""
RANK = 16
"""The LoRA's."""
FULL = {"sd1": (SHAPES["sd15"].denoiser, 512), "sdxl": (SHAPES["sdxl"].denoiser, 1024)}
"""The UNet's config and the side of images in pixels, by family."""
SMALL = 128
"""Pixels of a side with ``--small``."""
POLL = 0.005
"""Seconds from one look at the GPU's memory to the next."""
PLAIN, LORA = "plain", "LoRA"


@dataclass
class Side:
    """What one side took and drew.

    Attributes:
        rows: a row's name -> seconds or MiB.
        drawn: latents and image of each case.
    """

    rows: dict[str, float] = field(default_factory=dict)
    drawn: dict[str, tuple[Any, Any]] = field(default_factory=dict)


class WorkflowError(Exception):
    """A workflow failed."""


def main() -> int:
    args = arguments()
    home = copied(args.comfyui, args.work)
    (args.work / "no-page").mkdir(exist_ok=True)
    found, good = {}, True
    for family in args.families.split(","):
        print(f"== {family}", flush=True)
        try:
            sides = measured(family, home, args)
        except WorkflowError as error:
            print(f"failed: {error}; see {args.work / 'comfyui.log'}", flush=True)
            return 5
        good &= table(sides)
        found[family] = {name: side.rows for name, side in sides.items()}
        if args.json:
            args.json.write_text(json.dumps(found, indent=2))
    return int(not good)


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "--provider --images --steps --json", providers="cuda rocm cpu")
    parser.add_argument("comfyui", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--family", dest="families", default="sd1,sdxl")
    parser.add_argument("--small", action="store_true", help="UNets of the fewest blocks, at 128x128")
    return parser.parse_args()


def measured(family: str, home: Path, args: argparse.Namespace) -> dict[str, Side]:
    """ComfyUI, sdort and the reference, each on a server of its own."""
    config, pixels = (UNETS[family], SMALL) if args.small else FULL[family]
    name = f"{family}-{pixels}"
    write_checkpoint(home / "models" / "checkpoints" / f"{name}.safetensors", family, config)
    write_lora(home / "models" / "loras" / f"{name}.safetensors", config)
    print(f"{name}: the checkpoint is written", flush=True)
    reader = memory_reader({"cuda": "nvidia", "rocm": "amd"}.get(args.provider, ""), 0)
    options = ON_CPU if args.provider == "cpu" else ()

    def served(own: bool, images: int, options: tuple[str, ...] = options) -> Side:
        side = Side()
        before = reader() if reader else None
        with highest(reader) as peak:
            page = ("--front-end-root", str((args.work / "no-page").resolve()))
            with server(home, args.work, (*options, *page)) as address:
                draw(side, Drawing(name, pixels, own, address, home, args), images)
        if before:
            side.rows["GPU memory, MiB"] = (peak[0] - before.used) / 2**20
        return side

    sides = {"ComfyUI": served(True, args.images)}
    fp32 = ("--force-fp32", "--fp32-vae", "--fp32-text-enc")
    sides["fp32"] = sides["ComfyUI"] if args.provider == "cpu" else served(True, 0, fp32)
    print(f"{name}: ComfyUI is done", flush=True)
    first = served(False, 0)
    print(f"{name}: the first use of the nodes took {first.rows['first image, s']:.1f} s", flush=True)
    sides["sdort"] = served(False, args.images)
    return sides


@dataclass(frozen=True)
class Drawing:
    """Workflows of a side on its server, of a checkpoint and a LoRA of one name."""

    name: str
    pixels: int
    own: bool
    address: str
    home: Path
    args: argparse.Namespace

    def seconds(self, seed: int, lora: bool, image: bool) -> float:
        """Seconds of a workflow to the latents alone, or to the image; files that it writes stay.

        Raises:
            WorkflowError: it failed.
        """
        messages = messages_of(self.workflow(seed, lora, image), self.address)
        if "execution_error" in messages:
            raise WorkflowError(messages["execution_error"]["exception_message"])
        started, ended = (float(messages[kind]["timestamp"]) for kind in ("execution_start", "execution_success"))
        return (ended - started) / 1000

    def workflow(self, seed: int, lora: bool, image: bool) -> Workflow:
        precision = "fp32" if self.args.provider == "cpu" else "auto"
        workflow = plain_workflow(self.name, self.own, {"provider": self.args.provider, "precision": precision})
        workflow["empty"]["inputs"] |= {"width": self.pixels, "height": self.pixels}
        workflow["sampler"]["inputs"] |= {"seed": seed, "steps": self.args.steps}
        if lora:
            workflow["lora"] = {
                "class_type": "LoraLoaderModelOnly",
                "inputs": {"lora_name": f"{self.name}.safetensors", "strength_model": 0.8, "model": ["model", 0]},
            }
            workflow["sampler"]["inputs"]["model"] = ["lora", 0]
        if not image:
            del workflow["decode"], workflow["save"]
        return workflow

    def clear(self) -> None:
        for path in (self.home / "output").glob("*.*"):
            path.unlink()


def draw(side: Side, drawing: Drawing, images: int) -> None:
    """Draw with and without the LoRA, and without it again; with no images, each once alone."""
    drawing.clear()
    for case, lora in ((PLAIN, False), (LORA, True)):
        name = "first image" if not lora else "first image with the LoRA"
        side.rows[f"{name}, s"] = drawing.seconds(7, lora, True)
        side.drawn[case] = results(drawing.home)
        end = "" if not lora else " with the LoRA"
        for image in (False, True) if images else ():
            taken = [drawing.seconds(100 + number, lora, image) for number in range(images + 1)][1:]
            side.rows[f"{'image' if image else 'sampler'}{end}, s"] = statistics.median(taken)
            drawing.clear()
    if images:
        side.rows["first image without it again, s"] = drawing.seconds(7, False, True)
        side.drawn["plain again"] = results(drawing.home)


@contextmanager
def highest(reader: Callable[[], Any] | None) -> Iterator[list[int]]:
    """The most bytes of GPU memory in use while the block runs."""
    peak, ended = [0], threading.Event()

    def poll() -> None:
        while reader and not ended.is_set():
            if found := reader():
                peak[0] = max(peak[0], found.used)
            time.sleep(POLL)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def table(sides: Mapping[str, Side]) -> bool:
    """Print what both sides took, and how far they are from the reference; whether sdort's images are good."""
    own, ours = sides["ComfyUI"], sides["sdort"]
    print(f"{'':34}{'ComfyUI':>10}{'sdort':>10}{'ratio':>8}")
    for name, theirs in own.rows.items():
        ratio, goal = ours.rows[name] / theirs, GOALS[name.rpartition(" ")[2]]
        digits = 0 if name.endswith("MiB") else 3
        note = "" if ratio <= goal or "first" in name else f"  over {goal}"
        print(f"{name:34}{theirs:10,.{digits}f}{ours.rows[name]:10,.{digits}f}{ratio:8.2f}{note}")
    return not [case for case in ours.drawn if not near(case, sides)]


def near(case: str, sides: Mapping[str, Side]) -> bool:
    """Print how far a case's latents and image are from fp32; whether sdort's are no further than they may be."""
    good = True
    for index, what in enumerate(("latents", "image")):
        reference = sides["fp32"].drawn[case if case in sides["fp32"].drawn else PLAIN][index].astype("float64")
        own, ours = (decibels_of(reference, sides[name].drawn[case][index]) for name in ("ComfyUI", "sdort"))
        least = min(own - MARGIN, STEP if index else LEAST)
        good &= ours >= least
        note = "" if ours >= least else "  TOO FAR"
        print(f"{f'{case}, {what}, dB from fp32':34}{min(own, 999):10.1f}{ours:10.1f}{note}")
    return good


def write_lora(path: Path, config: Mapping[str, Any]) -> None:
    """Write a LoRA for all matrices and convolutions of the attention blocks, of 0.3 of their size."""
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in UNet2DConditionModel(**config).state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        if ".attentions." not in name or len(shape) < 2:
            continue
        key = f"lora_unet_{name.removesuffix('.weight').replace('.', '_')}"
        ones = [1] * (len(shape) - 2)
        down = torch.randn((RANK, *shape[1:]), generator=generator) / shape[1:].numel() ** 0.5
        up = torch.randn((shape[0], RANK, *ones), generator=generator) * 0.3 / RANK**0.5
        tensors |= {f"{key}.lora_down.weight": down.half(), f"{key}.lora_up.weight": up.half()}
    save_file(tensors, path)


if __name__ == "__main__":
    sys.exit(main())
