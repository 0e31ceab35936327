"""Text of models, prompts, file names and libraries as plain text: nothing in it is obeyed by who shows it.

A terminal obeys control characters, a reader's eye is turned by marks of writing direction and misses what has no
width, and a person follows advice. Messages, tables, reports and pages pass their text through here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Unicode's categories Cc but newline and tab, Cs, Zl, Zp, and of Cf all that are not seen themselves.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")

# What torch, numpy, transformers, diffusers and huggingface_hub say of loading files that run code.
_UNSAFE = re.compile(
    r"`weights_only\b|weights_only ?(=|set to) ?.?False|Weights only load failed|safe_globals|allow_pickle"
    r"|trust_remote_code|use_safetensors ?= ?False|safe_serialization ?= ?False|arbitrary code|can still be loaded"
    r"|trust (the|this) (source|author|class|repo|code|file|model|checkpoint)|trusted source"
    r"|documentation of torch\.load",
    re.I,
)
_INSTALL = re.compile(r"\b(pip|pip3|conda|apt|apt-get|brew) install\b", re.I)
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_SENTENCE = re.compile(r"(?<=[.!?])[ \t]+(?=[A-Z`(\[])")


def printable(text: str) -> str:
    r"""Text with what a terminal obeys and nobody sees written as Python does: ``\x1b``, ``\u202e``.

    Control characters but newline and tab, marks of writing direction, characters without width, separators of lines
    and paragraphs, and halves of surrogate pairs, as which Python holds bytes of file names that are no UTF-8.
    """
    return text if text.isprintable() and text.isascii() else _UNSEEN.sub(_escape, text)


def one_line(text: str) -> str:
    """:func:`printable` text whose newlines and tabs are written too: a name cannot pose as a line of its own."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def cut(text: str, most: int = 60) -> str:
    """The beginning of a text that has more than ``most`` characters, with three dots."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def some(names: Iterable[str], most: int = 5) -> str:
    """The first few of many names, in order, for a sentence; each on one line and not too long."""
    shown = sorted(names)
    return ", ".join([*(cut(one_line(name), 100) for name in shown[:most]), *["..."] * (len(shown) > most)])


def encodable(text: str) -> str:
    """Text that UTF-8 can hold: halves of surrogate pairs are written out, all else stays as it is."""
    return text if text.isascii() else _SURROGATE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def without_unsafe_advice(text: str) -> str:
    """A library's text without its sentences on how to load files that may run code."""
    return _without(text, _UNSAFE) if _UNSAFE.search(text) else text


def library_reason(error: BaseException) -> str:
    """The reason that a library's exception gives: its first line, without advice (unsafe, or to install) and colours.

    What to do is sdort's to say, in an error's hint.
    """
    text = _without(_without(_COLOUR.sub("", str(error)), _UNSAFE), _INSTALL).strip()
    return one_line(text.partition("\n")[0].strip()) or "no reason given"


def _without(text: str, advice: re.Pattern[str]) -> str:
    lines = text.split("\n")
    kept = [[part for part in _SENTENCE.split(line) if not advice.search(part)] for line in lines]
    return "\n".join(" ".join(parts) for parts, line in zip(kept, lines, strict=True) if parts or not line)
