"""The browser that tests of pages look through sees what is wrong with a page, and nothing in a right one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.browser import view

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_RIGHT = """<!doctype html><html lang='en'><head><meta charset='utf-8'>
<meta name='viewport' content='width=device-width'><style>
:root { color-scheme: light dark } body { margin: 0; color: #222; background: #fff }
@media (prefers-color-scheme: dark) { body { color: #eee; background: #111 } }
</style></head><body><h1>A page</h1><p class='here'>first</p>"""
_WRONG = """<p style='width: 500px; height: 900px'>wide</p><p style='color: #8888'>faint</p>
<p style='overflow: hidden; height: 5px'>hidden</p><h3>third</h3><img src='data:image/png;base64,AAAA'>
<input><p hidden style='color: #fff'>unseen</p><link rel='stylesheet' href='https://example.invalid/style.css'>"""


def test_a_right_page_has_no_problems(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(_RIGHT)
    for scheme, ink, paper in (("light", 0x22, 0xFF), ("dark", 0xEE, 0x11)):
        seen = view(browser, page, 420, scheme, ["p.here"], tmp_path / "shot")
        assert seen.problems == []
        assert (seen.scroll_width, seen.first_screen) == (420, "A page first")
        assert [box.width for box in seen.boxes["p.here"]] == [420]
        high, low = (_luminance(grey) + 0.05 for grey in sorted((ink, paper), reverse=True))
        assert [round(ratio, 3) for _, ratio in seen.contrasts] == [round(high / low, 3)] * 2
        assert (tmp_path / f"shot-420-{scheme}.png").stat().st_size


def _luminance(grey: int) -> float:
    return float(((grey / 255 + 0.055) / 1.055) ** 2.4)


def test_each_problem_of_a_page_is_told(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(_RIGHT + _WRONG)
    seen = view(browser, page, 420, "light")
    told = "\n".join(seen.problems)
    for problem in (
        "the page is 500 pixels wide at 420 pixels, light",
        "'faint' has a contrast of ",
        "'hidden' is cut",
        "the image '' is not decoded",
        "image 0 has no description",
        "a textbox has no name",
        "the heading 'third' leaves out a level",
        "it asks for https://example.invalid/style.css",
    ):
        assert problem in told
    assert "unseen" not in told
    assert "faint" not in seen.first_screen  # 900 pixels below
