"""Files of prompts: a prompt a line, or JSON lines with options of their own.

In a text file empty lines and lines that begin with ``#`` are left out. In a ``.jsonl`` file each line is an object
with ``prompt`` and options of a generation by their names in Python: ``{"prompt": "a cat", "seed": 7, "steps": 20}``;
they override what is given for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sdort.errors import UsageError, did_you_mean
from sdort.errors.plain_text import cut, one_line
from sdort.generation.from_image import REPLAYED
from sdort.machine.input_file import read_input
from sdort.machine.json_text import parse_json

MAX_FILE = 1 << 26
"""Bytes of a file: 10,000 prompts, as many as images of a run, of 6,700 bytes."""
OF_A_LINE = frozenset({*REPLAYED, "num_images"})
"""Options that a line may have."""
_TEXTS = ("negative_prompt", "prompt_2", "negative_prompt_2")


class Lines(NamedTuple):
    """Consecutive lines with the same options."""

    prompts: list[str]
    options: dict[str, Any]
    """Texts are lists, one for each prompt."""
    numbers: list[int]
    """Of the lines in the file, from 1."""

    def each(self) -> Iterator[Lines]:
        """The lines alone."""
        for index, (prompt, number) in enumerate(zip(self.prompts, self.numbers, strict=True)):
            texts = {name: [self.options[name][index]] for name in _TEXTS if name in self.options}
            yield Lines([prompt], self.options | texts, [number])


def read_lines(path: Path) -> list[Lines]:
    """The lines of a file of prompts.

    Raises:
        BadModelError: it cannot be read, or is too large.
        UsageError: a line is no text or no JSON object with a prompt, or has an unknown option; or there is none.
    """
    content = read_input(path, "the prompts", limit=MAX_FILE)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8: byte {error.start + 1}", hint="Save it as UTF-8.") from error
    json_lines = path.suffix.lower() in (".jsonl", ".ndjson")
    numbered = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if json_lines:
        lines = [(number, _object(path, number, line)) for number, line in numbered]
    else:
        lines = [(number, {"prompt": line}) for number, line in numbered if not line.startswith("#")]
    if not lines:
        raise UsageError(f"{path} has no prompts", hint="Write one a line.")
    return [_together(list(group)) for _, group in itertools.groupby(lines, _setting)]


def _setting(numbered: tuple[int, dict[str, Any]]) -> list[tuple[str, Any]]:
    return sorted((name, repr(value)) for name, value in numbered[1].items() if name not in ("prompt", *_TEXTS))


def _together(numbered: list[tuple[int, dict[str, Any]]]) -> Lines:
    numbers, lines = [number for number, _ in numbered], [line for _, line in numbered]
    settings = {name: value for name, value in lines[0].items() if name not in ("prompt", *_TEXTS)}
    texts = {name: [line.get(name, "") for line in lines] for name in _TEXTS if any(name in line for line in lines)}
    return Lines([line["prompt"] for line in lines], settings | texts, numbers)


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = parse_json(line.encode())
    except ValueError as error:
        raise UsageError(f"line {number} of {path} {error}", hint='Write {"prompt": "a cat", "seed": 7}.') from error
    if not isinstance(found, dict) or not isinstance(found.get("prompt"), str):
        raise UsageError(f"line {number} of {path} has no prompt", hint='Write {"prompt": "a cat", "seed": 7}.')
    unknown = next((name for name in found if name not in OF_A_LINE), None)
    if unknown is not None:
        question = did_you_mean(unknown, OF_A_LINE) or ""
        raise UsageError(
            f"line {number} of {path} has the option {cut(one_line(unknown))!r}, which lines do not have",
            hint=f"{question}There are: {', '.join(sorted(OF_A_LINE))}.",
        )
    wrong = next((name for name in _TEXTS if not isinstance(found.get(name, ""), str)), None)
    if wrong:
        raise UsageError(f"line {number} of {path} has a {wrong} that is no text")
    return found
