"""Names of images by a template, such as ``out/{index:03}-{seed}-{prompt}.png``."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sdort.errors import UsageError, did_you_mean
from sdort.errors.plain_text import cut, one_line

FIELDS = {
    "index": "the number of the image, from 1; {index:03} has three digits at least",
    "seed": "its seed",
    "prompt": "the beginning of its prompt, of letters and digits",
}
"""Field of a template -> what it becomes."""
_LONGEST = 60
"""Characters of a prompt in a name; file systems take 255 bytes."""
_MOST_BYTES = 150


def is_template(output: str) -> bool:
    """Whether a path has fields to be filled in; ``{{`` is a bracket of the name."""
    return "{" in output


def fill_template(template: str, images: Sequence[tuple[int, str]]) -> list[Path]:
    """The path of each image.

    Args:
        images: seed and prompt of each.

    Raises:
        UsageError: an unknown field, or two images would have one name.
    """
    parts = _parts(template)
    names = []
    for index, (seed, prompt) in enumerate(images, 1):
        values = {"index": index, "seed": seed, "prompt": plain_name(prompt)}
        names.append("".join(text + (format(values[name], spec) if name else "") for text, name, spec in parts))
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice:
        raise UsageError(
            f"-o {one_line(template)} names two images {one_line(twice)}", hint="Put {index} into it, or {seed}."
        )
    return [Path(name) for name in names]


def _parts(template: str) -> list[tuple[str, str, str]]:
    """The text before each field, the field's name (empty after the last) and its format."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        hint = "A bracket that is part of a name is written {{ or }}."
        raise UsageError(f"-o {one_line(template)} is no template: {error}", hint=hint) from error
    for _, name, spec, conversion in parsed:
        if name is not None and name not in FIELDS:
            known = "; ".join(f"{{{field}}}, {meaning}" for field, meaning in FIELDS.items())
            question = did_you_mean(name, FIELDS) or ""
            raise UsageError(
                f"-o has the field {{{cut(one_line(name))}}}, which there is not", hint=f"{question}{known}"
            )
        if conversion or (spec and not (name in ("index", "seed") and re.fullmatch(r"0?[1-9][0-9]?", spec))):
            raise UsageError(
                f"-o has the format {{{name}:{cut(one_line(spec or ''))}}}, which there is not",
                hint="Numbers take a width, such as {index:03}.",
            )
    return [(text, name or "", spec or "") for text, name, spec, _ in parsed]


def plain_name(text: str) -> str:
    """The beginning of a text as part of a file's name: letters, digits and single hyphens, never empty."""
    normal = unicodedata.normalize("NFC", text)
    words = re.sub(r"[\W_]+", "-", normal[: 4 * _LONGEST]).strip("-")[:_LONGEST].strip("-")
    return words.encode()[:_MOST_BYTES].decode(errors="ignore") or "image"
