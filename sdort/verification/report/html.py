"""Self-contained HTML pages: styles, plots and images are inside, readable in light and dark and on narrow screens.

Every text is escaped here; the functions return HTML.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import compress

from sdort.errors.plain_text import printable
from sdort.model.signature import Array
from sdort.verification.report.difference import difference_map, is_comparable
from sdort.verification.report.shares import percent


@dataclass(frozen=True)
class Theme:
    """Colours of a page and of the plots on it; ``name`` is part of the plots' file names.

    Attributes:
        quiet: text of less weight.
        faint: bars and grids of less weight.
        line: rules between rows.
        soft: backgrounds of less weight.
        good, bad: text of verdicts; ``good_paper`` and ``bad_paper`` are behind it.
    """

    name: str
    paper: str
    ink: str
    quiet: str
    faint: str
    line: str
    soft: str
    good: str
    good_paper: str
    bad: str
    bad_paper: str

    @property
    def variables(self) -> str:
        """CSS variables of the colours."""
        colours = {key: value for key, value in asdict(self).items() if key != "name"}
        return " ".join(f"--{key.replace('_', '-')}: {value};" for key, value in colours.items())


LIGHT = Theme(
    "light", paper="#ffffff", ink="#1f2328", quiet="#59636e", faint="#9aa1a9", line="#d5d9de", soft="#f3f4f6",
    good="#14692f", good_paper="#e4f3e8", bad="#b3261e", bad_paper="#fbe7e5",
)  # fmt: skip
DARK = Theme(
    "dark", paper="#14171c", ink="#e6e9ee", quiet="#a3abb5", faint="#717983", line="#363d46", soft="#1e2329",
    good="#7bd494", good_paper="#173322", bad="#ff9a91", bad_paper="#43201d",
)  # fmt: skip
THEMES = (LIGHT, DARK)

_STYLE = (
    f"""
:root {{ color-scheme: light dark; {LIGHT.variables} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK.variables} }} }}
"""
    + """
body { margin: 0 auto; max-width: 80rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .6rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; } h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
.answer { margin: 0 0 1rem; padding: .6rem .9rem; border-left: .35rem solid; border-radius: 4px; font-size: 1.05rem; }
.answer strong { font-weight: 600; } .label { color: var(--quiet); margin: .8rem 0 .2rem; }
.label + pre { margin: 0; }
.verdict { display: inline-block; padding: .15rem .7rem; border-radius: .8rem; font-weight: 600; }
h3 .verdict { font-size: .85rem; font-weight: 400; } h3 .quiet { color: var(--quiet); font-weight: 400; }
.differs { background: var(--soft); }
.ok { color: var(--good); background: var(--good-paper); } .failed { color: var(--bad); background: var(--bad-paper); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: var(--quiet); }
dd { margin: 0; }
.scroll { overflow-x: auto; } pre { padding: .6rem .8rem; background: var(--soft); border-radius: 4px; }
pre code { background: none; padding: 0; white-space: pre-wrap; }
summary { cursor: pointer; font-weight: 600; margin: 1rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .4rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  overflow-wrap: normal; }
th { color: var(--quiet); font-weight: 600; white-space: normal; vertical-align: bottom; }
th.words, td.words { text-align: left; } td.wrap { white-space: normal; min-width: 12rem;
  overflow-wrap: anywhere; }
td { vertical-align: baseline; }
.whole { white-space: nowrap; }
tr.bad td { background: var(--bad-paper); }
.share { display: flex; align-items: center; gap: .5rem; } .share b { font-weight: 400; }
.share i { flex: none; width: 7rem; height: .6rem; border: 1px solid var(--quiet); border-radius: 2px;
  background: linear-gradient(var(--quiet) 0 0) 0 / var(--part) no-repeat; }
.share.over i { border-color: var(--bad);
  background: repeating-linear-gradient(135deg, var(--bad) 0 3px, var(--bad-paper) 3px 6px); }
.share.over b { color: var(--bad); font-weight: 600; }
.row { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .8rem; margin: .5rem 0 1.6rem; }
.headline span { font-size: 2.6rem; line-height: 1.1; font-weight: 700; margin-right: .3rem; }
.plot { min-width: 40rem; } picture img { max-width: 100%; height: auto; }
figure { margin: 0; } figcaption { color: var(--quiet); font-size: .85rem; margin-top: .25rem; }
figure img, .none { width: 100%; border: 1px solid var(--line); border-radius: 4px; background: var(--soft);
  display: block; box-sizing: border-box; }
.row:has(img.small) { max-width: 50rem; }
img.small { image-rendering: pixelated; }
.none { aspect-ratio: 1; display: grid; place-items: center; color: var(--quiet); }
code { background: var(--soft); padding: .05rem .3rem; border-radius: 3px; }
ul { padding-left: 1.2rem; } li { margin: .2rem 0; }
@media print {
  body { padding: 0; } h2, h3, .label { break-after: avoid; } .row, tr, picture, .answer { break-inside: avoid; }
  .scroll { overflow: visible; } .plot { min-width: 0; } td { white-space: normal; } table { font-size: 11px; }
  .answer, .verdict, .share i, tr.bad td { print-color-adjust: exact; }
}
@media (max-width: 640px) {
  body { padding: 1rem .8rem 3rem; } .row { gap: .4rem; } table { font-size: 12px; } th, td { padding: .3rem .2rem; }
  td { white-space: normal; }
  th:first-child, td:first-child { position: sticky; left: 0; background: var(--paper);
    box-shadow: inset 0 -1px var(--line); }
  td.words:not(.wrap):first-child { min-width: 5.5rem; max-width: 9rem; overflow-wrap: anywhere; }
  tr.bad td:first-child { background: var(--bad-paper); }
  td.wrap { min-width: 9rem; } .share b { white-space: nowrap; } .share { gap: .3rem; } .share i { width: 2rem; }
  .verdict { padding: .1rem .4rem; }
}
"""
)


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
"""A page runs no script and loads nothing: what stands in it is all there is."""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page with ``parts`` as its body."""
    head = (
        f"<meta charset='utf-8'><meta http-equiv='Content-Security-Policy' content=\"{_POLICY}\">"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(part for part in [f"<h1>{escape(title)}</h1>", *parts] if part)
    return f"<!doctype html>\n<html lang='en'><head>{head}</head><body>{body}</body></html>\n"


def answer(passed: bool | None, *sentences: str) -> str:
    """The result of a page, its first lines: sentences with their numbers, the first of more weight.

    Args:
        passed: None where there is nothing to pass or fail.
    """
    kind, mark = {True: ("ok", "✓ "), False: ("failed", "✗ "), None: ("differs", "")}[passed]
    first, *others = map(escape, sentences)
    return f"<p class='answer {kind}'><strong>{mark}{first}</strong>{''.join(f'<br>{other}' for other in others)}</p>"


def command(label: str, text: str) -> str:
    """A command to copy, under what it is for."""
    return f"<p class='label'>{escape(label)}</p><pre><code>{escape(text)}</code></pre>"


def escape(text: str) -> str:
    """Text as HTML, :func:`~sdort.errors.plain_text.printable`."""
    return html.escape(printable(text))


def isolated(text: str) -> str:
    """A text of a person inside of a sentence, whose direction of writing does not turn what stands beside it."""
    return f"<bdi>{escape(text)}</bdi>"


def collapsed(summary: str, content: str) -> str:
    """Content that a click opens; empty without content."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>" if content else ""


def paragraph(text: str) -> str:
    """A paragraph of text; empty without text."""
    return f"<p>{escape(text)}</p>" if text else ""


def facts(values: Mapping[str, object]) -> str:
    """Names and values beside each other; those without a value are left out."""
    told = {name: str(value) for name, value in values.items() if value not in (None, "")}
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in told.items())
    return f"<dl>{pairs}</dl>"


def badge(verdict: str, text: str) -> str:
    """Text on the colour of a verdict: ``ok`` green, ``failed`` red, ``differs`` as other text is."""
    return f"<span class='verdict {verdict.lower()}'>{escape(text)}</span>"


@dataclass(frozen=True)
class Share:
    """A cell that shows a value as a share of its limit, 1.0 being all of it: a bar, and percents.

    Beyond the limit the bar is striped and the percents bold, for those who see no red.
    """

    value: float

    def __str__(self) -> str:
        return percent(self.value)

    @property
    def html(self) -> str:
        part = f"{min(max(self.value, 0), 1):.1%}"
        over = "" if self.value <= 1 else " over"
        return f"<span class='share{over}'><i style='--part: {part}'></i><b>{escape(str(self))}</b></span>"


Cell = str | Share


def section(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    left: Collection[str],
    wide: Collection[str] = (),
    verdicts: Collection[str] = (),
    bad: tuple[str, ...] = ("FAILED", "failed"),
) -> str:
    """A table under its title, without one if that is empty; empty without rows. Empty columns vanish.

    Args:
        left: the heads of columns of words and of :class:`Share`; the others hold numbers, which
            are aligned at the right.
        wide: those of them that hold sentences.
        verdicts: a cell that is one of these is a :func:`badge`.
        bad: a row with a cell that begins with one of these stands out.
    """
    rows = [*rows]
    used = [any(str(row[column]) for row in rows) for column in range(len(heads))]
    heads = [*compress(heads, used)]
    kinds = ["" if head not in left else " class='words wrap'" if head in wide else " class='words'" for head in heads]
    body = []
    for row in rows:
        row = [*compress(row, used)]
        cells = "".join(
            f"<td{kind}>{badge(cell, cell) if isinstance(cell, str) and cell in verdicts else _cell(cell)}</td>"
            for kind, cell in zip(kinds, row, strict=True)
        )
        body.append(f"<tr{' class=bad' if any(str(cell).startswith(bad) for cell in row) else ''}>{cells}</tr>")
    if not body:
        return ""
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads, strict=True))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return f"{heading}<div class='scroll' tabindex='0'>{table}</div>"


def _cell(cell: Cell) -> str:
    """Numbers such as 1.5e-03 stay on one line: browsers break at the hyphen."""
    if isinstance(cell, Share):
        return cell.html
    return re.sub(r"(?<![\d.])\d[\d.]*e-\d+", r"<span class='whole'>\g<0></span>", escape(cell))


def figure(pixels: Array, caption: str) -> str:
    """An image [height, width, 3], uint8, with what it is; an empty frame where there is none."""
    text = escape(caption)
    if not pixels.size:
        return f"<figure><div class='none'>none</div><figcaption>{text}</figcaption></figure>"
    small = " class='small'" if max(pixels.shape[:2]) < 256 else ""  # enlarged without blur
    source = _data("image/png", _png(pixels))
    return f"<figure><img{small} alt='{text}' src='{source}'><figcaption>{text}</figcaption></figure>"


def difference_figure(image: Array, reference: Array, gain: int) -> str:
    """The :func:`difference_map` of two images; an empty frame where their sizes differ or there is none.

    Args:
        gain: the factor, one for all of a page (:func:`sdort.verification.report.difference.shared_gain`).
    """
    if not is_comparable(image, reference):
        return figure(image[:0], "difference")
    pixels, scale = difference_map(image, reference, gain)
    return figure(pixels, f"difference: {scale}")


def beside(figures: Iterable[str]) -> str:
    """Figures beside each other, three at most."""
    return f"<div class='row'>{''.join(figures)}</div>"


@dataclass(frozen=True)
class Drawing:
    """A plot as two SVG files, for light and for dark surroundings."""

    light: bytes
    dark: bytes


def plot(description: str, wide: Drawing, narrow: Drawing | None = None) -> str:
    """A plot; the reader's light or dark and the width of the screen decide which file is shown.

    Args:
        description: for those who cannot see it.
        narrow: for phones; without it they scroll ``wide`` in a box of its own.
    """
    sources = [("(prefers-color-scheme: dark)", wide.dark)]
    if narrow:
        phone = "(max-width: 640px)"
        sources = [(f"{phone} and (prefers-color-scheme: dark)", narrow.dark), (phone, narrow.light), *sources]
    shown = "".join(f"<source media='{media}' srcset='{_data('image/svg+xml', svg)}'>" for media, svg in sources)
    image = f"<img alt='{escape(description)}' src='{_data('image/svg+xml', wide.light)}'>"
    picture = f"<picture>{shown}{image}</picture>"
    return picture if narrow else f"<div class='scroll' tabindex='0'><div class='plot'>{picture}</div></div>"


def difference_words(first: str, second: str, gain: int) -> str:
    """What the three figures beside each other are, and the one factor of all difference maps of a page."""
    brightness = "as it is" if gain == 1 else f"{gain} times as bright as it is, in every map"
    return paragraph(f"{first}, {second} and their difference, {brightness}.")


def date_text(date: str) -> str:
    """``2026-11-22 12:42 UTC+00:00`` of an ISO 8601 date and time; empty if it is not known."""
    if not date:
        return ""
    moment = datetime.fromisoformat(date)
    return f"{moment:%Y-%m-%d %H:%M}{f' {moment.tzname()}' if moment.tzinfo else ''}"


def headline(figure: str, words: str) -> str:
    """The one number of a page, large, and what it is."""
    return f"<p class='headline'><span>{escape(figure)}</span> {escape(words)}</p>"


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _png(pixels: Array) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG", optimize=True)
    return stream.getvalue()
