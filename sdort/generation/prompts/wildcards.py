"""The folder of wildcards: text files of which prompts take a line."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sdort.errors import UsageError, did_you_mean
from sdort.errors.plain_text import cut, one_line
from sdort.files.input_file import read_input
from sdort.files.named_files import files_below
from sdort.options.number_ranges import DECIMAL

MAX_FILE = 1 << 24
"""Bytes of a file of wildcards."""

_WEIGHT = re.compile(rf"\s*(?P<weight>{DECIMAL})::")


@dataclass(frozen=True)
class Lines:
    """Texts to draw one of."""

    weights: list[float]
    texts: list[str]


def read_weight(text: str) -> tuple[float, int]:
    """The weight of ``2::text``, and where the text begins; 1 and 0 where it has none."""
    found = _WEIGHT.match(text)
    return (float(found["weight"]), found.end()) if found else (1.0, 0)


class Wildcards:
    """The ``.txt`` files of a folder and its subfolders, a text a line; empty lines and those with ``#`` are left out.

    Args:
        folder: None where none is given.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._read: dict[str, Lines] = {}

    @cached_property
    def names(self) -> dict[str, Path]:
        """Name, with its subfolders, -> file.

        Raises:
            UsageError: it is no folder.
        """
        if self.folder is None:
            return {}
        if not self.folder.is_dir():
            raise UsageError(f"--wildcards {self.folder} is no folder", hint="Give the folder of your .txt files.")
        found = files_below(self.folder, (".txt",))
        return {path.relative_to(self.folder).with_suffix("").as_posix(): path for path in found}

    def lines(self, name: str) -> Lines:
        """The lines of a file with their weights; of all files that fit where the name has a ``*``.

        Raises:
            UsageError: there is no folder, no such file, or it has no lines.
            BadModelError: a file cannot be read.
        """
        if name not in self._read:
            lines = [(line, *read_weight(line)) for line in self._lines(name)]
            self._read[name] = Lines([weight for _, weight, _ in lines], [line[begin:] for line, _, begin in lines])
        return self._read[name]

    def _lines(self, name: str) -> list[str]:
        shown = f"__{cut(one_line(name), 60)}__"
        if self.folder is None:
            raise UsageError(
                f"the prompt asks for a line of {shown}, and there is no folder of wildcards",
                hint="Give the folder of its .txt files: --wildcards DIR, or SDORT_WILDCARDS=DIR. Underscores that are "
                rf"text are written \_\_{cut(one_line(name), 60)}\_\_.",
            )
        wanted = name.strip("/").casefold()
        fitting = [each for each in self.names if each == name] or [
            each for each in self.names if fnmatch.fnmatchcase(each.casefold(), wanted)
        ]
        if not fitting:
            question = did_you_mean(name, self.names) or ""
            raise UsageError(
                f"there is no wildcard {shown} in {self.folder}",
                hint=f"{question}It would be the file {cut(one_line(name), 60)}.txt.",
            )
        texts = [read_input(self.names[each], "the wildcards", limit=MAX_FILE) for each in fitting]
        lines = [line.strip() for text in texts for line in text.decode("utf-8-sig", "replace").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if not lines:
            raise UsageError(f"the wildcard {shown} has no lines", hint=f"Write texts into {self.names[fitting[0]]}.")
        return lines
