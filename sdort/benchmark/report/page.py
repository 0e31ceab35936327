"""Everything that a benchmark can show: its plots as files, and one HTML file with plots, tables and images in it."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sdort.benchmark import regression
from sdort.benchmark import rows as tables
from sdort.benchmark.ablation import Ablation
from sdort.benchmark.measure import Measurement, Picture
from sdort.benchmark.report import ablation_table, figures, image_maps
from sdort.benchmark.report.image_maps import Pixels
from sdort.benchmark.report.roofline_plot import roofline
from sdort.benchmark.report.theme import DARK, LIGHT, THEMES, Theme
from sdort.benchmark.roofline import measure_rooflines
from sdort.benchmark.rows import Row, caption
from sdort.benchmark.setup import Options
from sdort.console import say
from sdort.errors import OutputError
from sdort.verification.report.difference import difference_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Theme], "Figure | None"]


@dataclass(frozen=True)
class Plot:
    """One plot; ``name`` is its file's, ``words`` say for those who cannot see it what it is."""

    name: str
    words: str
    draw: Draw


@dataclass
class Book:
    """What there is to show."""

    title: str
    rows: Sequence[Row]
    pictures: Sequence[Picture] = ()
    ablation: Ablation | None = None
    remarks: list[str] = field(default_factory=list)
    """Sentences about what could not be shown."""
    more: list[Plot] = field(default_factory=list)

    def plots(self) -> Iterator[Plot]:
        """Those that the data is there for."""
        for batch in sorted({row.batch_size for row in self.rows}):
            words = f"Latency of one call of each component at batch {batch}"
            yield Plot(f"latency-batch-{batch}", words, partial(figures.latency, self.rows, batch))
        found = self.ablation
        if found:
            for batch in ablation_table.batches(found):
                words = f"Latency of each step of the ablation at batch {batch}"
                yield Plot(f"ablation-batch-{batch}", words, partial(figures.ablation, found, batch))
        yield Plot("memory", "Peak memory", partial(figures.memory_use, self.rows))
        yield from self.more


def book_of(found: Measurement | Ablation, title: str) -> Book:
    """What a measurement or an ablation has to show; of images those at the smallest batch, larger ones begin alike."""
    measured = found.measured if isinstance(found, Ablation) else found
    smallest = min((each.row.batch_size for each in measured.pictures), default=0)
    pictures = [each for each in measured.pictures if each.row.batch_size == smallest]
    return Book(title, measured.rows, pictures, found if isinstance(found, Ablation) else None)


def add_rooflines(book: Book, path: Path, options: Options) -> None:
    """Measure and add the rooflines, or a sentence that says why there are none."""
    found, remarks = measure_rooflines(path, book.rows, options.runtime)
    book.remarks += remarks
    for each in found:
        words = f"Roofline of the hot nodes of {each.component}"
        book.more.append(Plot(f"roofline-{each.component}", words, partial(roofline, each)))


def picture_names(book: Book) -> list[str]:
    """What tells each picture from the others."""
    return [figures.label(picture.row, book.rows) for picture in book.pictures]


def write_plots(book: Book, folder: Path) -> list[Path]:
    """Every plot as a PNG for light and one for dark surroundings.

    Raises:
        OutputError: the folder cannot be written.
    """
    images = Plot("images", "", lambda theme: image_maps.images(book.pictures, picture_names(book), theme))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for plot in [*book.plots(), images]:
            for theme in THEMES:
                figure = plot.draw(theme)
                if figure is not None:
                    written.append(folder / f"{plot.name}-{theme.name}.png")
                    figure.savefig(written[-1], dpi=130)
    except OSError as error:
        raise OutputError(f"cannot write plots to {folder}: {error.strerror or error}") from error
    say(f"wrote {len(written)} plots to {folder}")
    return written


def as_html(book: Book) -> str:
    """One self-contained page: it loads nothing, and follows the reader's light or dark."""
    parts = [f"<h1>{html.escape(book.title)}</h1>", f"<p>{html.escape(caption(book.rows))}</p>"]
    parts += [_figure(plot) for plot in book.plots()]
    parts += [f"<p>{html.escape(each)}</p>" for each in book.remarks]
    if book.pictures:
        parts += ["<h2>Images</h2>", *map(_picture, book.pictures, picture_names(book))]
    if book.ablation:
        text = ablation_table.explain(book.ablation)
        parts += [
            "<h2>Ablation</h2>",
            _table(ablation_table.titles(book.ablation), ablation_table.lines(book.ablation)),
        ]
        parts += [f"<p>{html.escape(text)}</p>"]
    else:
        parts += ["<h2>Rows</h2>", _table(*tables.cells(book.rows))]
    if any(row.compared for row in book.rows):
        parts += ["<h2>Against the saved benchmark</h2>", _table(regression.TITLES, regression.lines(book.rows))]
    return _PAGE.format(title=html.escape(book.title), style=_STYLE, body="\n".join(parts))


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
_STYLE = f"""
:root {{ --paper: {LIGHT.paper}; --ink: {LIGHT.ink}; --line: #d6dae0; --bad: #b33a00; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: {DARK.paper}; --ink: {DARK.ink}; --line: #3a4048; --bad: #ff9a66; }}
}}
body {{ background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 88rem;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2.2rem; }}
picture img {{ max-width: 100%; height: auto; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 12px; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .4rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }}
td.number, th.number {{ text-align: right; white-space: nowrap; }}
.whole {{ white-space: nowrap; }}
tr.bad td {{ color: var(--bad); }}
.images {{ display: flex; flex-wrap: wrap; gap: 1rem; margin: .3rem 0 1.4rem; }}
.images figure {{ margin: 0; }} .images img {{ width: 17rem; max-width: 100%; image-rendering: pixelated; }}
figcaption {{ font-size: 13px; }}
"""


def _figure(plot: Plot) -> str:
    drawn = {theme: plot.draw(theme) for theme in THEMES}
    light, dark = drawn[LIGHT], drawn[DARK]
    if light is None or dark is None:
        return ""
    alternative = html.escape(plot.words, quote=True)
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{_svg(dark)}">'
        f'<img alt="{alternative}" src="{_svg(light)}"></picture>'
    )


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    text = io.BytesIO()
    with rc_context({"svg.hashsalt": "sdort"}):  # ids that do not change from one report to the next
        figure.savefig(text, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(text.getvalue()).decode()}"


def _png(pixels: Pixels) -> str:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def _picture(picture: Picture, name: str) -> str:
    shown = [(f"this: {image_maps.likeness(picture)}", picture.image.pixels)]
    if picture.reference is not None and image_maps.comparable(picture):
        pixels, words = difference_map(picture.image.pixels, picture.reference.pixels)
        shown = [("reference", picture.reference.pixels), *shown, (f"difference: {words}", pixels)]
    panels = "".join(
        f'<figure><img alt="{html.escape(words, quote=True)}" src="{_png(pixels)}"><figcaption>{html.escape(words)}'
        f"</figcaption></figure>"
        for words, pixels in shown
    )
    return f'<h3>{html.escape(name)}</h3><div class="images">{panels}</div>'


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(each)}</th>" for each in titles)
    body = "".join(
        f"<tr{_bad(line)}>{''.join(f'<td{_kind(cell)}>{_whole(html.escape(cell))}</td>' for cell in line)}</tr>"
        for line in lines
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _whole(text: str) -> str:
    """Numbers such as 1.5e-03 on one line: browsers break at the hyphen."""
    return re.sub(r"\d[\d.]*e-\d+", r'<span class="whole">\g<0></span>', text)


def _bad(line: Sequence[str]) -> str:
    return ' class="bad"' if any(cell.startswith("FAILED") or cell == regression.SLOWER for cell in line) else ""


def _kind(cell: str) -> str:
    return ' class="number"' if cell[:1].isdigit() else ""
