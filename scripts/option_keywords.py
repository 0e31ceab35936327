#!/usr/bin/env python3
"""Writes the keyword arguments for editors, tables of types at the end of the modules that declare options.

python scripts/option_keywords.py            writes them
python scripts/option_keywords.py --check    exit code 1 if a file is not what it would write
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from generated_files import REPOSITORY, parse_check, settle

from sdort.options.declared_options import Option, declared

MARK = "# Written by scripts/option_keywords.py from what is declared above.\n"
_WIDTH = 116
"""Characters of a line of a docstring within a class."""


@dataclass(frozen=True)
class Table:
    """A table of types that a function takes as ``**options: Unpack[...]``."""

    module: str
    name: str
    doc: str
    declared_in: tuple[str, ...] = ()
    """Dataclasses of the module."""
    bases: tuple[str, ...] = ("TypedDict",)
    without: tuple[str, ...] = ()
    """Options that tables on this base say in words of their own."""


TABLES = (
    Table(
        "sdort.benchmark.bench_options",
        "BenchKeywords",
        "Options of :func:`sdort.bench`, all optional.",
        ("BenchOptions", "BenchResults"),
        ("ExecutionKeywords",),
    ),
    Table(
        "sdort.exporter.export_options",
        "ExportOptions",
        "Options of :func:`sdort.export` and :func:`sdort.plan_export`, all optional.",
        ("ExportedOptions",),
    ),
    Table(
        "sdort.optimizer.optimize_options",
        "PlanKeywords",
        "Options of :func:`sdort.plan_optimize`, all optional.",
        ("PlannedOptions",),
    ),
    Table(
        "sdort.optimizer.optimize_options",
        "OptimizeKeywords",
        "Options of :func:`sdort.optimize`, all optional.",
        ("OptimizationOptions",),
        ("PlanKeywords",),
    ),
    Table(
        "sdort.providers.runtime_options",
        "ExecutionKeywords",
        "Options of the functions that run models.",
        ("ExecutionOptions",),
    ),
    Table(
        "sdort.providers.runtime_options",
        "LoadOptions",
        "Options of :func:`sdort.load`.",
        ("RuntimeOptions",),
        ("ExecutionKeywords",),
    ),
    Table(
        "sdort.generation.requests.typed_options",
        "DrawnKeywords",
        "Options that say what is drawn, all optional.",
        ("DrawnOptions",),
        without=("seed",),
    ),
    Table(
        "sdort.generation.requests.typed_options",
        "GenerationOptions",
        "Options of :meth:`sdort.Pipeline.generate`, all optional.",
        ("JobOptions", "DrawnOptions", "PreviewOptions"),
        ("DrawnKeywords",),
    ),
    Table(
        "sdort.generation.requests.typed_options",
        "RunOptions",
        "Options of :func:`sdort.run`.",
        bases=("GenerationOptions", "LoadOptions"),
    ),
    Table(
        "sdort.batches.batch_options",
        "BatchKeywords",
        "Options of :func:`sdort.batch`, all optional.",
        ("DrawnOptions", "BatchOptions"),
        ("DrawnKeywords", "LoadOptions"),
    ),
    Table(
        "sdort.serving.serve_options",
        "ServeKeywords",
        "Options of :func:`sdort.serve`, all optional.",
        ("ServeOptions",),
        ("LoadOptions",),
    ),
    Table(
        "sdort.generation.upscale_options",
        "UpscaleKeywords",
        "Options of :func:`sdort.upscale`, all optional.",
        ("UpscaleOptions",),
    ),
    Table(
        "sdort.verification.verify_options",
        "VerifyKeywords",
        "Options of :func:`sdort.verify`, all optional.",
        ("ComparisonOptions", "SemanticOptions", "PageOptions"),
        ("ExecutionKeywords",),
    ),
    Table(
        "sdort.warmup.warm_options",
        "WarmKeywords",
        "Options of :func:`sdort.warm` and :func:`sdort.plan_warm`, all optional.",
        ("WarmupOptions",),
        ("ExecutionKeywords",),
    ),
)


def files() -> dict[Path, str]:
    """Path -> content of each module with tables."""
    contents: dict[Path, str] = {}
    for table in TABLES:
        path = REPOSITORY / Path(*table.module.split(".")).with_suffix(".py")
        before = contents.get(path) or path.read_text().partition(MARK)[0] + MARK
        contents[path] = "\n".join([before, "", *_lines(table), ""])
    return contents


def _lines(table: Table) -> Iterator[str]:
    yield f"class {table.name}({', '.join(table.bases)}, total=False):"
    yield f'    """{table.doc}"""'
    inherited = {name for base in TABLES if base.name in table.bases for name in _options(base)}
    own = [option for name, option in _options(table).items() if name not in inherited]
    yield from [""] if own else []
    for option in own:
        yield from _entry(option)


def _options(table: Table) -> Mapping[str, Option]:
    module = importlib.import_module(table.module)
    options = declared(*(getattr(module, name) for name in table.declared_in))
    return {name: option for name, option in options.items() if name not in table.without}


def _entry(option: Option) -> list[str]:
    if option.positional:
        return []
    text = textwrap.wrap(f'"""{option.text}"""', _WIDTH, break_long_words=False, break_on_hyphens=False)
    keyword = option.keyword.replace("'", '"')  # as the formatter writes it
    return [f"    {option.name}: {keyword}", *(f"    {line}" for line in text)]


def main() -> None:
    """Write or check the files."""
    check = parse_check(__doc__)
    sys.exit(settle(files(), check=check))


if __name__ == "__main__":
    main()
