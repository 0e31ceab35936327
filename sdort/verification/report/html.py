"""Self-contained HTML pages: styles, plots and images are inside, readable in light and dark and on narrow screens.

Templates of jinja2 (``templates/``) lay them out. Every text is made printable and escaped where a template writes it.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

from sdort.errors.plain_text import printable
from sdort.graph.signature import Array
from sdort.verification.report.difference import difference_map, is_comparable
from sdort.verification.report.shares import percent

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


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

_TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, folder: Path = _TEMPLATES, **values: object) -> str:
    """A page from a template.

    Args:
        folder: the template's; it may extend and import those of this module's folder.
        values: what the template asks for, by name.
    """
    return environment(folder).get_template(template).render(light=LIGHT, dark=DARK, **values)


def environment(folder: Path = _TEMPLATES) -> Environment:
    """The environment of templates: what is not marked as HTML is escaped, and a name that is missing is an error."""
    import jinja2
    from markupsafe import Markup

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    made.filters |= {"png": _png, "svg": _svg, "numbers": _numbers}
    made.tests |= {"share": lambda cell: isinstance(cell, Share), "bad": lambda row, table: table.is_bad(row)}
    made.globals |= {"is_comparable": is_comparable, "difference_map": difference_map}
    return made


@dataclass(frozen=True)
class Share:
    """A cell that shows a value as a share of its limit, 1.0 being all of it: a bar, and percents.

    Beyond the limit the bar is striped and the percents bold, for those who see no red.
    """

    value: float

    def __str__(self) -> str:
        return percent(self.value)

    @property
    def part(self) -> str:
        """Length of the bar."""
        return f"{min(max(self.value, 0), 1):.1%}"

    @property
    def over(self) -> bool:
        """Whether it is beyond the limit."""
        return not self.value <= 1


Cell = str | Share


@dataclass(frozen=True)
class Table:
    """A table under its title, without one if that is empty.

    Attributes:
        heads: head and CSS classes of each column.
        verdicts: a cell that is one of these is shown on a verdict's colour.
        bad: a row with a cell that begins with one of these stands out.
    """

    title: str
    heads: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Cell]]
    verdicts: Collection[str]
    bad: tuple[str, ...]

    def is_bad(self, row: Sequence[Cell]) -> bool:
        """Whether a row stands out."""
        return any(str(cell).startswith(self.bad) for cell in row)


def section(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    left: Collection[str],
    wide: Collection[str] = (),
    verdicts: Collection[str] = (),
    bad: tuple[str, ...] = ("FAILED", "failed"),
) -> Table:
    """A table whose empty columns are left out.

    Args:
        left: the heads of columns of words and of :class:`Share`; the others hold numbers, which
            are aligned at the right.
        wide: those of them that hold sentences.
    """
    rows = [*rows]
    used = [any(str(row[column]) for row in rows) for column in range(len(heads))]
    kinds = ["" if head not in left else "words wrap" if head in wide else "words" for head in heads]
    shown = [*compress(zip(heads, kinds, strict=True), used)]
    return Table(title, shown, [[*compress(row, used)] for row in rows], verdicts, bad)


@dataclass(frozen=True)
class Drawing:
    """A plot as two SVG files, for light and for dark surroundings."""

    light: bytes
    dark: bytes


def date_text(date: str) -> str:
    """``2026-11-22 12:42 UTC+00:00`` of an ISO 8601 date and time; empty if it is not known."""
    if not date:
        return ""
    moment = datetime.fromisoformat(date)
    return f"{moment:%Y-%m-%d %H:%M}{f' {moment.tzname()}' if moment.tzinfo else ''}"


def _numbers(text: str) -> Markup:
    """Text whose numbers such as 1.5e-03 stay on one line: browsers break at the hyphen."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<![\d.])\d[\d.]*e-\d+", r"<span class='whole'>\g<0></span>", str(escape(printable(text)))))


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _svg(content: bytes) -> str:
    return _data("image/svg+xml", content)


def _png(pixels: Array) -> str:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG", optimize=True)
    return _data("image/png", stream.getvalue())
