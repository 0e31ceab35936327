#!/usr/bin/env python3
"""Draws the tour of docs/guide/tour.md as a terminal: its commands, the end of what each prints, and its images.

    scripts/tour_picture.py [FOLDER]     writes tour-light.svg and tour-dark.svg; FOLDER is docs/images unless given

Runs the commands on the demo model, on the CPU, in a temporary folder; takes minutes. The pictures hold the images
themselves and name no font that has to be fetched. Only the times and sizes of memory differ from run to run.
"""

from __future__ import annotations

import base64
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measuring import Arguments
from PIL import Image
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from tour_images import edges, read

from sdort.demo.scenes import IMAGE_SIDE

COLUMNS = 80
"""Of the terminal; the longest command is a little shorter, and images stand beside the commands."""
WIDTH = 98
"""Columns of the picture."""
IMAGE, MARGIN = 104, 14
"""Pixels of an image in the picture, four lines and a little, and around the text."""
CHARACTER, LINE = 12.2, 24.4
"""Pixels of a character and a line, as rich's SVG has them."""
SAMPLING = "--seed 7 --steps 20 --guidance-scale 5"


@dataclass(frozen=True)
class Step:
    """A command of the tour.

    Attributes:
        command: as a person types it; a backslash ends a line.
        images: files that are shown beside it: inputs that the tour made, and the result.
    """

    command: str
    images: tuple[str, ...] = ()


STEPS = (
    Step("sdort export demo model --control"),
    Step("sdort optimize model fast --fp16 --provider cpu"),
    Step(
        f"sdort run fast {SAMPLING} -o start.png \\\n"
        '  --prompt "a small red circle left of a large blue square on white"',
        ("start.png",),
    ),
    Step(
        f"sdort run fast {SAMPLING} -o image.png \\\n"
        '  --prompt "a small orange circle left of a large green square on white" \\\n'
        "  --init-image start.png --strength 0.7",
        ("image.png",),
    ),
    Step(
        f"sdort run fast {SAMPLING} -o star.png \\\n"
        '  --prompt "a small red circle left of a large yellow star on white" \\\n'
        "  --init-image start.png --mask mask.png --strength 1",
        ("mask.png", "star.png"),
    ),
    Step(
        f"sdort run fast {SAMPLING} -o chalk.png \\\n"
        '  --prompt "a small red circle left of a large blue square on white" --lora demo',
        ("chalk.png",),
    ),
    Step("sdort export demo-control control -q && sdort optimize control edges --provider cpu -q"),
    Step(
        f"sdort run fast {SAMPLING.replace('7', '100', 1)} -o places.png \\\n"
        '  --prompt "a small yellow circle left of a large black square on beige" \\\n'
        "  --control edges:edges.png",
        ("edges.png", "places.png"),
    ),
)

# Background, foreground, the eight colours and their bright forms, which rich maps ANSI's to.
_NORMAL = [
    (36, 41, 47),
    (176, 38, 38),
    (26, 110, 50),
    (140, 98, 0),
    (20, 90, 180),
    (120, 60, 160),
    (0, 110, 120),
    (90, 96, 104),
]
_BRIGHT = [
    (130, 136, 144),
    (240, 110, 105),
    (90, 200, 120),
    (225, 180, 80),
    (110, 170, 255),
    (200, 150, 240),
    (90, 200, 210),
    (230, 236, 242),
]
THEMES = {
    "light": TerminalTheme((255, 255, 255), (31, 35, 40), _NORMAL, _NORMAL),
    "dark": TerminalTheme((13, 17, 23), (230, 237, 243), _BRIGHT, _BRIGHT),
}  # fmt: skip

_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 WIDTH HEIGHT">
<style>
text {{ font: 20px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
<rect x="1" y="1" width="99.8%" height="99.8%" rx="8" fill="BACKGROUND" stroke="#8b949e"/>
<g transform="translate(MARGIN, MARGIN)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
IMAGES
</g>
</svg>
"""


def output_of(command: str, folder: Path) -> str:
    """What a command prints to a terminal of :data:`COLUMNS` columns, with its colours.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with subprocess.Popen(
        command, shell=True, cwd=folder, stdout=theirs, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(theirs)
        written = b""
        with suppress(OSError):  # Linux: nobody has the other end open any more
            while block := os.read(ours, 65536):
                written += block
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return written.decode().replace("\r\n", "\n")


def end_of(output: str) -> str:
    """The last paragraph without the command that comes next, which the tour shows itself."""
    last = output.strip("\n").split("\n\n")[-1]
    return re.split(r"\n(?:\x1b\[[\d;]*m)*Next:", last)[0]


def make_input(name: str, folder: Path) -> None:
    """A mask, or the control image of the first image."""
    start = read(folder / "start.png")
    mask = np.zeros((IMAGE_SIDE, IMAGE_SIDE), np.uint8)
    mask[:, 28:] = 255
    Image.fromarray({"mask.png": mask, "edges.png": edges(start[None])[0]}[name]).save(folder / name)


def draw(theme: TerminalTheme, outputs: list[str], folder: Path) -> str:
    """The picture as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    images, row = [], 0
    for step, output in zip(STEPS, outputs, strict=True):
        texts = [Text("$ " + line if not i else line, "bold") for i, line in enumerate(step.command.split("\n"))]
        texts += [Text.from_ansi(line) for line in output.split("\n") if output]
        images += [place(folder / name, row, len(step.images) - i) for i, name in enumerate(step.images)]
        blank = max(1, 5 - len(texts)) if step.images else 1
        for text in [*texts, *[Text()] * blank]:
            console.print(text, soft_wrap=True)
        row += len(texts) + blank
    svg = console.export_svg(title="", theme=theme, code_format=_SVG, unique_id="tour")
    size = {"WIDTH": f"{WIDTH * CHARACTER + 2 * MARGIN:.0f}", "HEIGHT": f"{(row - 1) * LINE + 2 * MARGIN:.0f}"}
    filled = {"IMAGES": "\n".join(images), "BACKGROUND": theme.background_color.hex, "MARGIN": str(MARGIN), **size}
    for name, value in filled.items():
        svg = svg.replace(name, value)
    return svg


def place(path: Path, row: int, from_right: int) -> str:
    """An image beside the rows from ``row`` on."""
    y = row * LINE + 4
    x = WIDTH * CHARACTER - from_right * (IMAGE + MARGIN)
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<image x="{x:.1f}" y="{y:.1f}" width="{IMAGE}" height="{IMAGE}" '
        f'style="image-rendering: pixelated" href="data:image/png;base64,{data}"/>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{IMAGE}" height="{IMAGE}" fill="none" stroke="#8b949e"/>'
    )


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1] / "docs" / "images")
    target: Path = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as name:
        folder, outputs = Path(name), []
        for step in STEPS:
            for needed in step.images[:-1]:
                make_input(needed, folder)
            print(step.command, flush=True)
            outputs.append(end_of(output_of(step.command, folder)))
        for theme, colours in THEMES.items():
            (target / f"tour-{theme}.svg").write_text(draw(colours, outputs, folder))


if __name__ == "__main__":
    main()
