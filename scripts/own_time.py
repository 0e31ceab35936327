#!/usr/bin/env python3
"""Seconds of an image beside those of its stages: what `Pipeline.generate` takes for itself, after the first image.

    python scripts/own_time.py PIPELINE [--provider cuda] [--graph] [--images 20] [--steps 20] [--size WxH]
        [--memory low]
        [--diffusers] [--beside] [--most 1.03] [--json FILE]

Each round draws one image with `sdort.load(PIPELINE).generate` and, with --diffusers, one with diffusers' pipeline on
the same components (sdort.integrations.diffusers), each with a prompt of its own. Medians are printed. It also counts
the processes that a later `generate` starts and the files that it opens. The exit code is 1 if the whole is more than
--most times the stages, a process starts or a file is opened. With --memory low each image loads the models: that
counts as a stage, and the files that it opens are told alone. The memory is what the process takes of the GPU, or of
the host where there is none.

With --beside it also measures what is asked for beside the pixels: a preview, the PNG file, the texts in it, and the
hash of the pipeline's files, which is found once for an open pipeline.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from measuring import Arguments, timed

import sdort
from sdort.options.number_ranges import parse_size

PROMPTS = (f"a photograph of {number} red foxes in the snow" for number in itertools.count(2))
"""Another one for each image: a text that was encoded before is not encoded again."""
KERNEL = ("/proc/", "/sys/")
"""Where the kernel tells how much memory is free: no files of a disk."""


def main() -> int:
    args = arguments()
    sdort.set_verbosity(0)
    options: dict[str, Any] = {"steps": args.steps, "seed": 1, "size": args.size}
    pipeline = sdort.load(args.pipeline, provider=args.provider, graph=args.graph, memory=args.memory)
    draw: dict[str, Callable[[], Any]] = {"generate": lambda: pipeline.generate(next(PROMPTS), **options)}
    if args.diffusers:
        draw["diffusers"] = in_diffusers(args)
    for each in draw.values():
        each()
    seen = Watch()
    drawn = [draw["generate"]()]
    seen.on = False
    whole: dict[str, list[float]] = {name: [] for name in draw}
    for _ in range(args.images):
        for name, each in draw.items():
            result, seconds = timed(each)
            whole[name].append(seconds)
            if name == "generate":
                drawn.append(result)
    stages = [stages_of(one) for one in drawn[1:]]
    found = {name: median(each[name] for each in stages) for name in stages[0]}
    found["stages"] = median(sum(each.values()) for each in stages)
    found |= {name: median(times) for name, times in whole.items()}
    ratio = median(time / sum(each.values()) for time, each in zip(whole["generate"], stages, strict=True))
    for stage, seconds in found.items():
        print(f"{stage:12} {seconds * 1000:10.1f} ms")
    print(f"generate / stages {ratio:.3f}, at most {args.most}")
    print(f"a later generate starts {len(seen.processes)} processes and opens {len(seen.files)} files")
    memory = drawn[-1].peak_memory
    where, used = ("of the GPU", memory.device) if memory.device is not None else ("of the host", memory.host or 0)
    print(f"memory {where} {used / 2**20:,.0f} MiB at most")
    for each in drawn[-1].opened:
        print(f"    {each.component} is loaded {each.times} x in {each.seconds * 1000:.0f} ms")
    for line in [*seen.processes, *seen.files]:
        print(f"    {line}")
    beside = asked_beside(pipeline, args, options, drawn[-1].images[0]) if args.beside else {}
    for what, seconds in beside.items():
        print(f"{what:32} {seconds * 1000:10.2f} ms")
    if args.json:
        told = {"seconds": found, "ratio": ratio, "processes": seen.processes, "files": seen.files}
        told |= {"beside": beside, "memory": used}
        args.json.write_text(json.dumps(told, indent=2))
    return int(ratio > args.most or bool(seen.processes or (seen.files and args.memory != "low")))


def stages_of(drawn: Any) -> dict[str, float]:
    """Seconds of the stages of an image, and of the models that were loaded for it."""
    stages = {name: getattr(drawn.seconds, name) for name in ("encode", "denoise", "decode")}
    return stages | {"load": sum(each.seconds for each in drawn.opened)}


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__, "pipeline --provider --graph --images --steps --json", providers="cpu cuda rocm migraphx", images=20
    )
    parser.add_argument("--memory", choices=["normal", "low"])
    parser.add_argument("--size")
    parser.add_argument("--diffusers", action="store_true")
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--most", type=float, default=1.03)
    return parser.parse_args()


def in_diffusers(args: argparse.Namespace) -> Callable[[], Any]:
    """A function that draws the same image by diffusers' loop."""
    import torch

    from sdort.integrations.diffusers import load_pipeline

    pipeline = load_pipeline(args.pipeline, provider=args.provider, graph=args.graph)
    pipeline.set_progress_bar_config(disable=True)
    size = {}
    if args.size:
        size = dict(zip(("height", "width"), parse_size(args.size), strict=True))

    def draw() -> Any:
        return pipeline(
            next(PROMPTS), num_inference_steps=args.steps, generator=torch.Generator().manual_seed(1), **size
        )

    return draw


def asked_beside(pipeline: Any, args: argparse.Namespace, options: dict[str, Any], image: Any) -> dict[str, float]:
    """Seconds of what is asked for beside the pixels, medians."""
    from sdort.generation.files.image_files import kept_record, save_image
    from sdort.generation.files.infotext import parameters_text
    from sdort.generation.latents.preview import BatchPreviews
    from sdort.pipelines.folder import open_folder

    shown: list[float] = []
    show = BatchPreviews.show
    BatchPreviews.show = lambda *given: shown.append(timed(lambda: show(*given))[1])  # type: ignore[method-assign]
    previews = {"steps": max(2, args.steps), "on_preview": lambda _: None, "preview_every": 1}
    pipeline.generate(next(PROMPTS), **options | previews)
    BatchPreviews.show = show  # type: ignore[method-assign]
    record, seed = image.record, image.seed
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "image.png"
        calls: dict[str, Callable[[], Any]] = {
            "the PNG file": lambda: save_image(place, image.pixels, record, seed, overwrite=True),
            "of that the texts in it": lambda: (parameters_text(record, seed), json.dumps(kept_record(record, seed))),
            "the hash of all files, once": lambda: open_folder(args.pipeline).model_hash,
        }
        found = {what: median(timed(call)[1] for _ in range(args.images)) for what, call in calls.items()}
    return {"a preview": median(shown), **found}


class Watch:
    """Python's audit events of processes that are started and files that are opened, while ``on``."""

    def __init__(self) -> None:
        self.on = True
        self.processes: list[str] = []
        self.files: list[str] = []
        sys.addaudithook(self.see)

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"):
            self.processes.append(f"{event} {arguments[:1]}")
        if event == "open" and not isinstance(arguments[0], int) and not str(arguments[0]).startswith(KERNEL):
            self.files.append(str(arguments[0]))


if __name__ == "__main__":
    sys.exit(main())
