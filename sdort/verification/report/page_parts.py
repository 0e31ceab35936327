"""The pieces of the HTML report: verdicts, tables and images."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Iterable, Sequence
from html import escape

from sdort.model.signature import Array
from sdort.verification.result import FAILED


def badge(verdict: str, text: str) -> str:
    """Green, red, or in the colour of other text for what is neither."""
    return f"<span class='verdict {verdict.lower()}'>{escape(text)}</span>"


def section(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], words: int, wide: Collection[int] = ()
) -> str:
    """A table whose last column is a verdict; a row that ends in ``FAILED`` stands out. Nothing without rows.

    Args:
        words: so many columns, the first, are words.
        wide: those of them whose text goes on in a next line.
    """

    def kind(index: int) -> str:
        return "" if index >= words else " class='words wrap'" if index in wide else " class='words'"

    body = []
    for row in rows:
        cells = [f"<td{kind(index)}>{escape(cell)}</td>" for index, cell in enumerate(row[:-1])]
        cells.append(f"<td>{badge(row[-1], row[-1]) if row[-1] else ''}</td>")
        body.append(f"<tr{' class=bad' if row[-1] == FAILED else ''}>{''.join(cells)}</tr>")
    if not body:
        return ""
    head = "".join(f"<th{kind(index)}>{escape(head)}</th>" for index, head in enumerate(heads))
    return f"<h2>{title}</h2><div class='scroll'><table><tr>{head}</tr>{''.join(body)}</table></div>"


def figure(pixels: Array, caption: str) -> str:
    """An image [height, width, 3], uint8, with what it is; an empty frame where there is none."""
    if not pixels.size:
        return f"<figure><div class='none'>none</div><figcaption>{escape(caption)}</figcaption></figure>"
    small = " class='small'" if max(pixels.shape[:2]) < 256 else ""  # enlarged without blur
    source = f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"
    text = escape(caption)
    return f"<figure><img{small} alt='{text}' src='{source}'><figcaption>{text}</figcaption></figure>"


def _png(pixels: Array) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG", optimize=True)
    return stream.getvalue()
