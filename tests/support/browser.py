"""HTML pages in a real browser: what a person sees of them, and what is wrong with it.

The browser is Debian's Chromium (``scripts/test.sh`` installs it), driven through playwright.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

WIDTHS = (420, 1200)
"""Widths of a phone and of a window, in CSS pixels."""
SCHEMES = ("light", "dark")
_HEIGHT = 800
_LEAST_CONTRAST = 4.5
"""Least ratio of luminances of text and what is behind it: level AA of WCAG 2.2, success criterion 1.4.3."""
_CONTROLS = {
    *("button", "checkbox", "combobox", "dialog", "image", "img", "link", "listbox", "progressbar", "radio"),
    *("searchbox", "slider", "spinbutton", "switch", "textbox"),
}
"""Roles that say nothing without a name, by Chromium's names: WCAG 2.2, success criterion 4.1.2."""


@dataclass(frozen=True)
class Box:
    """Place of an element in CSS pixels from the document's upper left corner."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class PageImage:
    """An image of the page; ``width`` and ``height`` are its pixels', 0 where the browser could not decode it."""

    alt: str
    width: int
    height: int


@dataclass(frozen=True)
class PageView:
    """A page as a browser shows it at one width and in one colour scheme.

    Attributes:
        width: of the window, in CSS pixels.
        scroll_width, height: of the whole document.
        first_screen: the text that is seen before anything is scrolled, at :data:`WIDTHS` 800 pixels high.
        nameless: roles of controls and images that assistive technology has no name for.
        contrasts: each text with the ratio of luminances of it and what is behind it.
        cut: texts of elements that hide a part of their content and cannot be scrolled.
        headings: level and text, in order.
        requests: addresses that were asked for beside the page itself.
        errors: what the browser complained of.
        boxes: by selector, of elements that are rendered: nothing of closed details.
    """

    width: int
    scheme: str
    scroll_width: int
    height: int
    first_screen: str
    nameless: Sequence[str]
    contrasts: Sequence[tuple[str, float]]
    cut: Sequence[str]
    images: Sequence[PageImage]
    headings: Sequence[tuple[int, str]]
    requests: Sequence[str]
    errors: Sequence[str]
    boxes: dict[str, list[Box]]

    @property
    def problems(self) -> list[str]:
        """What is wrong with it on every page, in words."""
        at = f"at {self.width} pixels, {self.scheme}"
        texts = [
            f"{text!r} has a contrast of {ratio:.2f} {at}" for text, ratio in self.contrasts if ratio < _LEAST_CONTRAST
        ]
        levels = [level for level, _ in self.headings]
        jumps = [text for (level, text), last in zip(self.headings, [0, *levels], strict=False) if level > last + 1]
        return [
            *([f"the page is {self.scroll_width} pixels wide {at}"] if self.scroll_width > self.width else []),
            *texts,
            *(f"{text!r} is cut {at}" for text in self.cut),
            *(f"the image {image.alt!r} is not decoded {at}" for image in self.images if not image.width),
            *(f"a {role} has no name" for role in self.nameless),
            *(f"image {number} has no description" for number, image in enumerate(self.images) if not image.alt),
            *([f"{levels.count(1)} headings of the first level"] if levels.count(1) != 1 else []),
            *(f"the heading {text!r} leaves out a level" for text in jumps),
            *(f"it asks for {address}" for address in self.requests),
            *self.errors,
        ]


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """A browser; starting it takes about a second."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@cache
def _chromium() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise FileNotFoundError("chromium is not on PATH; on Debian: apt-get install chromium fonts-dejavu-core")
    return path


def views(browser: Browser, file: Path, selectors: Sequence[str] = (), shots: Path | None = None) -> list[PageView]:
    """A page at each of :data:`WIDTHS` in each of :data:`SCHEMES`.

    Args:
        selectors: CSS selectors of elements whose boxes are wanted.
        shots: path and beginning of the name of screenshots of the whole page, such as ``shots/verify``.
    """
    return [view(browser, file, width, scheme, selectors, shots) for width in WIDTHS for scheme in SCHEMES]


def view(
    browser: Browser, file: Path, width: int, scheme: str, selectors: Sequence[str] = (), shots: Path | None = None
) -> PageView:
    """A page at one width in one colour scheme; parameters as for :func:`views`."""
    with watched(browser, file.resolve().as_uri(), width, scheme) as page:
        return page.view(selectors, shots)


@dataclass(frozen=True)
class WatchedPage:
    """An open page, and what it has asked for and complained of since it was opened."""

    page: Page
    address: str
    width: int
    scheme: str
    requests: list[str]
    errors: list[str]

    def view(self, selectors: Sequence[str] = (), shots: Path | None = None) -> PageView:
        """The page as it is now; parameters as for :func:`views`. What a server's page asks its server for is no
        request of :class:`PageView`."""
        seen: dict[str, Any] = self.page.evaluate(_FACTS, list(selectors))
        if shots is not None:
            self.page.screenshot(path=f"{shots}-{self.width}-{self.scheme}.png", full_page=True)
        own = tuple(["data:", "blob:"] + [self.address] * self.address.startswith("http"))
        return PageView(
            self.width,
            self.scheme,
            seen["scrollWidth"],
            seen["height"],
            seen["firstScreen"],
            _nameless(self.page),
            [(text, ratio) for text, ratio in seen["contrasts"]],
            seen["cut"],
            [PageImage(*image) for image in seen["images"]],
            [(level, text) for level, text in seen["headings"]],
            [url for url in self.requests if url != self.address and not url.startswith(own)],
            self.errors,
            {selector: [Box(*box) for box in boxes] for selector, boxes in seen["boxes"].items()},
        )


@contextmanager
def watched(
    browser: Browser | BrowserContext, address: str, width: int = WIDTHS[-1], scheme: str = "light"
) -> Iterator[WatchedPage]:
    """A page that is open meanwhile: a context of its own, or one of the tabs of a context that is given."""
    context = browser.new_context() if isinstance(browser, Browser) else browser
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": _HEIGHT})
    # Colours are measured, so nothing changes little by little.
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
    requests, errors = list[str](), list[str]()
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(address, wait_until="load")
        yield WatchedPage(page, address, width, scheme, requests, errors)
    finally:
        (page if context is browser else context).close()


def _nameless(page: Page) -> list[str]:
    """The roles of what Chromium gives assistive technology without a name."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    roles = [
        node["role"]["value"]
        for node in nodes
        if not node["ignored"] and not node.get("name", {}).get("value", "").strip()
    ]
    return [role for role in roles if role in _CONTROLS]


# Luminance and contrast are WCAG 2.2's. Colours behind a text are those of its ancestors, laid over each other.
_FACTS = """
async selectors => {
  await Promise.all([...document.images].map(image => image.decode().catch(() => {})));
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const colour = text => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
  const behind = element => {
    if (!element) return matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
    const own = colour(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
  };
  const luminance = rgb => rgb.map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const first = [], contrasts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement, text = node.textContent.trim();
    if (!text || !element.checkVisibility({visibilityProperty: true}) || element.closest('style, script')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()].filter(box => box.width > 1 && box.height > 1);
    if (!boxes.length) continue;
    const style = getComputedStyle(element), below = behind(element);
    const ink = colour(element.closest('svg') ? style.fill : style.color);
    contrasts.push([text, contrast(over(ink, below), below)]);
    const inside = box => box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth;
    if (boxes.every(inside)) first.push(text);
  }
  const hides = element => {
    const style = getComputedStyle(element);
    return style.overflowX === 'hidden' && element.scrollWidth > element.clientWidth + 1
      || style.overflowY === 'hidden' && element.scrollHeight > element.clientHeight + 1;
  };
  const box = element => {
    const {left, top, width, height} = element.getBoundingClientRect();
    return [left + scrollX, top + scrollY, width, height];
  };
  const all = selector => [...document.querySelectorAll(selector)];
  return {
    scrollWidth: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    firstScreen: first.join(' '),
    contrasts,
    cut: all('body *').filter(hides).map(element => element.textContent.trim()).filter(text => text),
    images: [...document.images].map(image => [image.alt, image.naturalWidth, image.naturalHeight]),
    headings: all('h1, h2, h3, h4, h5, h6').map(element => [+element.tagName[1], element.textContent]),
    boxes: Object.fromEntries(
      selectors.map(selector => [selector, all(selector).filter(element => element.checkVisibility()).map(box)])),
  };
}
"""
