#!/usr/bin/env python3
"""What `--devices` gains for one image, and what it changes: seconds on one GPU and on several.

    python scripts/shared_images.py PIPELINE [--provider cuda] [--graph] [--devices 0,1 0,1,2,3] [--sizes 1024x1024]
        [--images 5] [--steps 20] [--at-once 1] [--tiling] [--patches 0 2] [--exact-steps 4] [--guidance-scale 7.5]
        [--least 1.8] [--json FILE]

Pipelines on the first GPU alone and on each list of --devices are open together and draw in turns, each image with a
prompt of its own, after one that is not counted: it records graphs. Printed are the medians of the seconds of an image,
of a step and of decoding, how many times as fast the steps are, and how far the images are from those of one GPU, as
sdort verify has it. With --tiling there are rows with `--vae-tiling` too, compared with whole images of one GPU.

With --patches each list of --devices has a number of patches, 0 for none; a list may be there twice. The column of late
steps is the median of those after the exact ones.

The second table is the exchange alone: what a step's latents take through the host's memory, which sdort does, and by
a copy from GPU to GPU. The third one is what patches give each other after a step.

The exit code is 1 if the steps with the first list are less than --least times as fast, or if an image is less than
--psnr dB from that of one GPU, tiles left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from measuring import Arguments, in_turns

import sdort
from sdort.console import show
from sdort.options.number_ranges import parse_size
from sdort.runtime.device_block import DeviceBlock
from sdort.runtime.session import Session
from sdort.runtime.step.device_buffer import Buffer
from sdort.runtime.step.patched_unet import PatchedBuffers
from sdort.tables import Table
from sdort.verification.metrics import psnr

BY_ADDRESS = 4
"""The direction of a copy that the addresses tell: ``cudaMemcpyDefault``, and HIP's."""


@dataclass
class Row:
    """Images of one size on some devices."""

    size: str
    devices: str
    """Their numbers, and in how many patches."""
    tiling: bool
    seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    late_seconds: list[float] = field(default_factory=list)
    """Of a step after the exact ones."""
    decode_seconds: list[float] = field(default_factory=list)
    decoded: str = ""
    psnr: list[float] = field(default_factory=list)
    """In dB, beside the images of one device that are decoded whole."""
    worst: int = 0
    """Levels of 255 at the pixel that differs most."""


def main() -> int:
    args = arguments()
    sdort.set_verbosity(0)
    first = args.devices[0].split(",")[0]
    options: dict[str, Any] = {"provider": args.provider, "graph": args.graph}
    pipelines = {first: sdort.load(args.pipeline, **options, device_id=int(first))}
    kinds = dict(zip([label(*kind) for kind in kinds_of(args)], kinds_of(args), strict=True))
    pipelines |= {name: sdort.load(args.pipeline, **options, devices=devices) for name, (devices, _) in kinds.items()}
    patches = {name: count for name, (_, count) in kinds.items() if count}
    rows = [row for size in args.sizes for row in draw(pipelines, patches, size, args)]
    listed = next(iter(kinds))
    exchanges = [exchange(pipelines[listed], size, args) for size in args.sizes]
    given = [row for name in patches for row in exchange_of_patches(pipelines[name], name)]
    print_rows(rows)
    print_exchanges(exchanges)
    print_given(given)
    if args.json:
        found = {"rows": [asdict(row) for row in rows], "exchanges": exchanges, "patches": given}
        args.json.write_text(json.dumps(found, indent=2))
    alone = {row.size: median(row.step_seconds) for row in rows if row.devices == first and not row.tiling}
    shared = [row for row in rows if row.devices == listed and not row.tiling]
    slow = any(alone[row.size] / median(row.step_seconds) < args.least for row in shared)
    return int(slow or any(min(row.psnr) < args.psnr for row in rows if not row.tiling))


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__,
        "pipeline --provider --graph --images --steps --json",
        providers="cpu cuda rocm migraphx",
        images=5,
        steps=20,
    )
    parser.add_argument("--devices", nargs="+", default=["0,1"], help="lists of GPUs, such as 0,1 0,1,2,3")
    parser.add_argument("--sizes", nargs="+", default=["1024x1024"])
    parser.add_argument("--at-once", type=int, default=1, help="images of one call")
    parser.add_argument("--tiling", action="store_true")
    parser.add_argument("--patches", nargs="+", type=int, default=[], help="of each list of GPUs, such as 0 2")
    parser.add_argument("--exact-steps", type=int, default=4)
    parser.add_argument("--guidance-scale", type=float)
    parser.add_argument("--least", type=float, default=0.0)
    parser.add_argument("--psnr", type=float, default=0.0)
    args = parser.parse_args()
    if args.patches and len(args.patches) != len(args.devices):
        parser.error(f"--patches has {len(args.patches)} numbers, and --devices {len(args.devices)} lists")
    return args


def kinds_of(args: argparse.Namespace) -> list[tuple[str, int]]:
    """Each list of GPUs and its patches."""
    return list(zip(args.devices, args.patches or [0] * len(args.devices), strict=True))


def label(devices: str, patches: int) -> str:
    """Words for a list of GPUs and its patches."""
    return f"{devices} in {patches}" if patches else devices


def draw(
    pipelines: dict[str, sdort.Pipeline], patches: dict[str, int], size: str, args: argparse.Namespace
) -> list[Row]:
    """Images of one size of all pipelines, in turns."""
    forms = [False, True] if args.tiling else [False]
    rows = {(devices, tiling): Row(size, devices, tiling) for devices in pipelines for tiling in forms}
    for number in range(args.images + 1):
        plain: list[Any] = []
        for (devices, tiling), row in rows.items():
            options: dict[str, Any] = {} if args.guidance_scale is None else {"guidance_scale": args.guidance_scale}
            if devices in patches:
                options |= {"patches": patches[devices], "exact_steps": args.exact_steps}
            result = pipelines[devices].generate(
                f"a photograph of {number + 2} red foxes in the snow", seed=number, steps=args.steps, size=size,
                num_images=args.at_once, images_at_once=args.at_once, vae_tiling=tiling, vae_slicing=False,
                **options,
            )  # fmt: skip
            images = [image.pixels for image in result.images]
            plain = plain or images
            if number == 0:
                continue
            row.seconds.append(result.elapsed)
            row.step_seconds.append(1 / result.iterations_per_second)
            row.late_seconds.append(median(late_steps(pipelines[devices], args)))
            row.decode_seconds.append(result.seconds.decode)
            row.decoded = str(result.decoded)
            row.psnr += [psnr(image, other) for image, other in zip(images, plain, strict=True)]
            worst = max(
                int(np.abs(image.astype(int) - other).max()) for image, other in zip(images, plain, strict=True)
            )
            row.worst = max(row.worst, worst)
    return list(rows.values())


def late_steps(pipeline: sdort.Pipeline, args: argparse.Namespace) -> list[float]:
    """Seconds of the last call's steps after the exact ones; of all where there are no others."""
    steps = pipeline._models.timings.steps
    return steps[args.exact_steps :] or steps


def exchange(pipeline: sdort.Pipeline, size: str, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of what goes to another device and comes back in a step of guidance."""
    models = pipeline._models
    unet, other = models.sessions[models.denoiser], models.sessions[models.denoiser].others[0]
    height, width = (side // models.folder.vae_factor for side in parse_size(size))
    values = np.zeros((args.at_once, models.folder.latent_channels, height, width), unet.outputs[0].dtype)
    here, there = Buffer(unet, values), other.call(lambda session: Buffer(session, values))

    def forth_and_back(_: Session, sent: Any) -> Any:
        there.write(sent)
        return there.read()

    def by_host() -> None:
        sent = here.read()
        here.write(other.call(lambda session: forth_and_back(session, sent)))

    calls: dict[str, Callable[[], Any]] = {"host": by_host}
    if unet.provider.on_gpu:
        calls["device"] = by_device(unet, other.session, values.nbytes)
    seconds = in_turns(calls, 200, warmup=20)
    return {"size": size, "bytes": values.nbytes} | {name: median(each) for name, each in seconds.items()}


def by_device(here: Session, there: Session, nbytes: int) -> Callable[[], None]:
    """Two copies from GPU to GPU, each of which is waited for."""
    blocks = [DeviceBlock(each.provider.vendor, each.options.device_id, nbytes) for each in (here, there)]

    def copy() -> None:
        for source, target in (blocks, blocks[::-1]):
            address, size = ctypes.c_void_p(source.address), ctypes.c_size_t(nbytes)
            target._call("Memcpy", ctypes.c_void_p(target.address), address, size, BY_ADDRESS)
            target.synchronize()
            source.synchronize()

    return copy


def exchange_of_patches(pipeline: sdort.Pipeline, devices: str) -> list[dict[str, Any]]:
    """Seconds of what patches give each other after a step, for each size."""
    rows = []
    for buffers in pipeline._models.loop._bound.values():
        if isinstance(buffers, PatchedBuffers):
            seconds = in_turns({"exchange": partial(give_all, buffers)}, 50, warmup=5)["exchange"]
            sides = "x".join(str(side) for side in buffers.batch.latent[:0:-1])
            nbytes = buffers.patches[0].given_bytes
            rows.append({"latents": sides, "devices": devices, "bytes": nbytes, "seconds": median(seconds)})
    return rows


def give_all(buffers: PatchedBuffers) -> None:
    buffers.exchange()
    buffers.wait_for_exchange()


def print_rows(rows: list[Row]) -> None:
    heads = [">size", ">GPUs", ">decoded", ">image, s", ">step, ms", ">as fast", ">late step, ms", ">decode, ms"]
    table, first = Table("", [*heads, ">PSNR, dB", ">worst"]), dict[str, Row]()
    for row in rows:
        alone = first.setdefault(row.size, row)
        timed = (row.step_seconds, row.late_seconds, row.decode_seconds)
        step, late, decode = (median(each) * 1000 for each in timed)
        ratio = median(alone.step_seconds) * 1000 / step
        numbers = [f"{median(row.seconds):.3f}", f"{step:.2f}", f"{ratio:.2f} x", f"{late:.2f}", f"{decode:.1f}"]
        table.add_row(row.size, row.devices, row.decoded, *numbers, f"{min(row.psnr):.1f}", str(row.worst))
    show(table)


def print_exchanges(exchanges: list[dict[str, Any]]) -> None:
    table = Table("", [">size", ">kB", ">through the host, ms", ">from GPU to GPU, ms"])
    for each in exchanges:
        device = f"{each['device'] * 1000:.3f}" if "device" in each else ""
        table.add_row(each["size"], f"{each['bytes'] / 1000:.0f}", f"{each['host'] * 1000:.3f}", device)
    show(table)


def print_given(given: list[dict[str, Any]]) -> None:
    table = Table("", [">latents", ">GPUs", ">MB to each other GPU", ">all at once, ms"])
    for each in given:
        table.add_row(each["latents"], each["devices"], f"{each['bytes'] / 1e6:.1f}", f"{each['seconds'] * 1000:.3f}")
    if given:
        show(table)


if __name__ == "__main__":
    sys.exit(main())
