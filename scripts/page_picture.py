#!/usr/bin/env python3
"""Takes the picture of the page of `sdort serve` in docs/guide/serve.md.

    scripts/page_picture.py [FOLDER]     FOLDER is docs/images unless given

Serves the demo model on the CPU at a free port, has the page draw five prompts in Chromium, and photographs it. Takes
seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from measuring import Arguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from open_loop import served
from support.browser import opened_browser, watched

PROMPTS = (
    "a large yellow star on navy",
    "a small green triangle on white",
    "a large purple circle on white",
    "a small orange square right of a large green circle on white",
    "a small red circle left of a large blue square on white",
)
WIDTH, HEIGHT = 1200, 700
"""Of the window, in CSS pixels."""


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1] / "docs" / "images")
    target: Path = parser.parse_args().folder.resolve()
    with (
        served("demo", "--provider", "cpu") as server,
        opened_browser() as browser,
        watched(browser, f"{server.url}/", WIDTH) as opened,
    ):
        page = opened.page
        page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        page.get_by_text("connected", exact=True).wait_for()
        for prompt in PROMPTS:
            page.fill("#prompt", prompt)
            page.fill("#seed", "7")
            page.keyboard.press("Control+Enter")
            page.get_by_role("button", name=f"{prompt}, seed 7").locator("img").wait_for()
            page.get_by_role("button", name="Draw", exact=True).wait_for()
        page.locator("h1").click()
        page.screenshot(path=target / "page.png", full_page=True)


if __name__ == "__main__":
    main()
