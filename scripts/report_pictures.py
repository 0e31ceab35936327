#!/usr/bin/env python3
"""Takes the pictures of the report in docs/guide/verify.md.

    scripts/report_pictures.py [FOLDER]     FOLDER is docs/images unless given

Optimizes the demo model for the CPU in a temporary folder, and `sdort verify` compares it with its original. Chromium
shows the page, at 1200 pixels in the light and at 420 in the dark. Takes minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from measuring import Arguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.browser import opened_browser

PICTURES: tuple[tuple[Literal["light", "dark"], int, int], ...] = (("light", 1200, 1150), ("dark", 420, 1100))
"""Colours, and the width and height of the window in pixels."""
COMMANDS = (
    "export demo model",
    "optimize model fast --fp16 --provider cpu",
    "verify fast --provider cpu --report verify.html",
)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1] / "docs" / "images")
    target: Path = parser.parse_args().folder.resolve()
    with tempfile.TemporaryDirectory() as name:
        for command in COMMANDS:
            print(f"==> sdort {command}", flush=True)
            subprocess.run([sys.executable, "-m", "sdort", *command.split()], cwd=name, check=True)
        with opened_browser() as browser:
            for colours, width, height in PICTURES:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
                page.goto((Path(name) / "verify.html").as_uri())
                page.screenshot(path=target / f"verify-{width}-{colours}.png")


if __name__ == "__main__":
    main()
