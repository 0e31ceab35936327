"""Files of prompts: a prompt a line, or JSON lines with options of their own.

In a text file empty lines and lines that begin with ``#`` are left out. In a ``.jsonl`` file each line is an object
with ``prompt`` and options of a generation by their names in Python: ``{"prompt": "a cat", "seed": 7, "steps": 20}``;
they override what is given for all.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from sdort.errors import UsageError, did_you_mean
from sdort.errors.plain_text import cut, one_line
from sdort.files.input_file import open_input
from sdort.files.json_text import parse_json
from sdort.generation.files.from_image import REPLAYED
from sdort.options.number_ranges import NUM_IMAGES

MAX_FILE = 1 << 26
"""Bytes of a file: 10,000 prompts, as many as images of a run, of 6,700 bytes."""
MAX_LINE = 1 << 23
"""Bytes of a line: four texts of the longest that sdort takes, each character escaped."""
MAX_LINES = 1 << 20
"""Lines of a file, empty ones and comments among them."""
OF_A_LINE = frozenset({*REPLAYED, "num_images", "size"})
"""Options that a line may have."""
_TEXTS = ("negative_prompt", "prompt_2", "negative_prompt_2")
_OWN = (*_TEXTS, "seed")
"""Options in which lines that are drawn together may differ."""


class Lines(NamedTuple):
    """Consecutive lines that differ in their texts and seeds alone."""

    prompts: list[str]
    options: dict[str, Any]
    """Texts and seeds are lists, one for each prompt; None where a line says nothing of them."""
    numbers: list[int]
    """Of the lines in the file, from 1."""

    def each(self) -> Iterator[Lines]:
        """The lines alone."""
        for index, (prompt, number) in enumerate(zip(self.prompts, self.numbers, strict=True)):
            own = {name: [self.options[name][index]] for name in _OWN if name in self.options}
            yield Lines([prompt], self.options | own, [number])


def read_lines(path: Path) -> list[Lines]:
    """The lines of a file of prompts.

    Raises:
        BadModelError: it cannot be read, or is too large.
        UsageError: a line is no text or no JSON object with a prompt, or has an unknown option; or there is none.
    """
    json_lines = path.suffix.lower() in (".jsonl", ".ndjson")
    lines: list[tuple[int, dict[str, Any]]] = []
    for number, text in enumerate(_texts(path, json_lines), 1):
        line = text.strip()
        if number > MAX_LINES:
            raise UsageError(f"{path} has more than {MAX_LINES:,} lines", hint="Leave out empty lines and comments.")
        if not line or (line.startswith("#") and not json_lines):
            continue
        if len(lines) == NUM_IMAGES.high:
            raise UsageError(
                f"{path} has more than {NUM_IMAGES.high:,} prompts: {NUM_IMAGES.reason}",
                hint="Divide it into several files, with a run for each.",
            )
        lines.append((number, _object(path, number, line) if json_lines else {"prompt": line}))
    if not lines:
        raise UsageError(f"{path} has no prompts", hint="Write one a line.")
    return [together(list(group)) for _, group in itertools.groupby(lines, setting)]


def _texts(path: Path, json_lines: bool) -> Iterator[str]:
    """The lines of a file, one after the other: as ``str.splitlines`` divides it; JSON ends at line feeds and carriage
    returns alone, since its texts may hold the other separators, such as U+2028."""
    begin = 0
    with open_input(path, "the prompts", limit=MAX_FILE) as file:
        buffered = io.BufferedReader(cast("io.RawIOBase", file))
        while line := buffered.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE or begin > MAX_FILE:
                raise UsageError(
                    f"{path} has a line of more than {MAX_LINE:,} bytes at byte {begin + 1}",
                    hint="Write a prompt a line.",
                )
            try:
                text = line.decode("utf-8-sig" if begin == 0 else "utf-8")
            except UnicodeDecodeError as error:
                place = begin + error.start + 1
                raise UsageError(f"{path} is no text in UTF-8: byte {place}", hint="Save it as UTF-8.") from error
            yield from io.StringIO(text, newline=None) if json_lines else text.splitlines()
            begin += len(line)


def setting(numbered: tuple[int, Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """The options of a line but its texts and its seeds: lines with the same are drawn together."""
    return sorted((name, repr(value)) for name, value in numbered[1].items() if name not in ("prompt", *_OWN))


def together(numbered: Sequence[tuple[int, Mapping[str, Any]]]) -> Lines:
    """Lines that have one :func:`setting`."""
    numbers, lines = [number for number, _ in numbered], [line for _, line in numbered]
    settings = {name: value for name, value in lines[0].items() if name not in ("prompt", *_OWN)}
    own = {name: [line.get(name) for line in lines] for name in _OWN if any(name in line for line in lines)}
    return Lines([line["prompt"] for line in lines], settings | own, numbers)


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = parse_json(line.encode())
    except ValueError as error:
        raise UsageError(f"line {number} of {path} {error}", hint='Write {"prompt": "a cat", "seed": 7}.') from error
    return checked_line(path, number, found)


def checked_line(path: Path, number: int, found: object, more: Collection[str] = ()) -> dict[str, Any]:
    """The options of a line, as a file says them.

    Args:
        more: names that it may have beside the prompt and :data:`OF_A_LINE`.

    Raises:
        UsageError: it has no prompt, an unknown option, or a text that is none.
    """
    if not isinstance(found, dict) or not isinstance(found.get("prompt"), str):
        raise UsageError(f"line {number} of {path} has no prompt", hint='Write {"prompt": "a cat", "seed": 7}.')
    unknown = next((name for name in found if name not in OF_A_LINE and name not in more), None)
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
