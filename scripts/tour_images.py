#!/usr/bin/env python3
"""Images for the tour (scripts/tour.sh): control images, masks, contact sheets, and the judge of the demo's images.

    scripts/tour_images.py edges IMAGE OUT.png           where colours change, white on black: a control image
    scripts/tour_images.py mask 32,0,64,64 OUT.png       of 64x64 pixels, white in the box: left, top, right, bottom
    scripts/tour_images.py judge IMAGE PROMPT [--like IMAGE]
    scripts/tour_images.py sheet OUT.png IMAGE...        side by side, at twice the size

``judge`` says what it sees and ends with 1 if that is not what the prompt asks for. With --like the shapes also have to
stand where they stand in another image.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Arguments
from PIL import Image

from sdort.demo.judge import describe_image, detect_shapes, judge_scene
from sdort.demo.prompt_language import parse
from sdort.demo.scenes import IMAGE_SIDE

DIFFERENT = 24
"""Of 255, in one of the channels: an edge."""
NEAR = 0.06
"""Of width and height: centres that are the same place."""
GAP, GRAY = 4, 160


def edges(images: Any) -> Any:
    """Edges [count, height, width] of images [count, height, width, 3], both uint8; 255 is an edge."""
    values = images.astype(np.int16)
    found = np.zeros(images.shape[:3], bool)
    found[:, 1:] |= (np.abs(np.diff(values, axis=1)) > DIFFERENT).any(-1)
    found[:, :, 1:] |= (np.abs(np.diff(values, axis=2)) > DIFFERENT).any(-1)
    return np.where(found, 255, 0).astype(np.uint8)


def read(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def write_edges(arguments: argparse.Namespace) -> None:
    Image.fromarray(edges(read(arguments.image)[None])[0]).save(arguments.out)


def write_mask(arguments: argparse.Namespace) -> None:
    left, top, right, bottom = map(int, arguments.box.split(","))
    mask = np.zeros((IMAGE_SIDE, IMAGE_SIDE), np.uint8)
    mask[top:bottom, left:right] = 255
    Image.fromarray(mask).save(arguments.out)


def judge(arguments: argparse.Namespace) -> None:
    image = read(arguments.image)
    verdict = judge_scene(image, parse(arguments.prompt))
    right = verdict.right and False not in (verdict.position, verdict.background)
    if arguments.like:
        right &= same_places(image, read(arguments.like))
    print(f"{arguments.image}: {describe_image(image)}: {'right' if right else 'WRONG'}")
    sys.exit(not right)


def same_places(image: Any, other: Any) -> bool:
    """Whether both images have shapes at the same places."""
    one, two = (
        np.array(sorted((shape.x, shape.y) for shape in detect_shapes(each)[1])).reshape(-1, 2)
        for each in (image, other)
    )
    return len(one) == len(two) and bool((np.abs(one - two) < NEAR).all())


def write_sheet(arguments: argparse.Namespace) -> None:
    images = [np.kron(read(path), np.ones((2, 2, 1), np.uint8)) for path in arguments.images]
    padded = [np.pad(image, ((GAP, GAP), (GAP, GAP), (0, 0)), constant_values=GRAY) for image in images]
    Image.fromarray(np.concatenate(padded, axis=1)).save(arguments.out, optimize=True)


def main() -> None:
    parser = Arguments(__doc__)
    commands = parser.add_subparsers(required=True, parser_class=argparse.ArgumentParser)
    for name, action, arguments in (
        ("edges", write_edges, ("image", "out")),
        ("mask", write_mask, ("box", "out")),
        ("judge", judge, ("image", "prompt")),
        ("sheet", write_sheet, ("out", "images")),
    ):
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        for argument in arguments:
            kind = str if argument in ("box", "prompt") else Path
            command.add_argument(argument, type=kind, nargs="+" if argument == "images" else None)
        if name == "judge":
            command.add_argument("--like", type=Path, metavar="IMAGE")
    given = parser.parse_args()
    given.action(given)


if __name__ == "__main__":
    main()
