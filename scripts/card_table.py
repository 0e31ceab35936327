#!/usr/bin/env python3
"""Writes docs/guide/cards.md: which provider runs on which card, from sdort/providers/cards.py.

python scripts/card_table.py            writes it
python scripts/card_table.py --check    exit code 1 if the page is not what it would write
"""

from __future__ import annotations

import sys

from generated_files import REPOSITORY, parse_check, settle

from sdort.providers import PROVIDERS
from sdort.providers.cards import GENERATIONS, SYSTEMS, Way

PAGE = "docs/guide/cards.md"
TITLES = {"Darwin": "macOS"}
HEAD = """# Which provider for which card

The best first; behind all of them is `cpu`. `--provider auto` tries them in this order where the installed ONNX
Runtime has several, and `sdort doctor --measure` ends with the one for your machine. Names in `code` are what
`--provider` takes; sdort has no provider yet for the others, and skips them. A number leads to a fact and its source.
What was not measured on a card is not called fast: [what machines reach](../performance.md), [how to
install](install.md).

"""


def page() -> str:
    """The page's text."""
    known: list[Way] = []
    lines = [
        f"| card | {' | '.join(TITLES.get(name, name) for name in SYSTEMS)} |",
        "|---" * (len(SYSTEMS) + 1) + "|",
    ]
    for each in GENERATIONS:
        cells = [", ".join(cell(way, known) for way in each.ways.get(name, ())) or "`cpu`" for name in SYSTEMS]
        names = f": {each.cards}" if each.cards else ""
        lines.append(f"| {each.name}{names} | {' | '.join(cells)} |")
    lines += ["", "Facts and their sources, read in November 2026:", ""]
    lines += [f"{number}. {way.package}: {way.why} (<{way.source}>)." for number, way in enumerate(known, 1)]
    return HEAD + "\n".join(lines) + "\n"


def cell(way: Way, known: list[Way]) -> str:
    """The name of a way, and the number of its facts, which are added where they are new."""
    if way not in known:
        known.append(way)
    name = f"`{way.provider}`" if way.provider in PROVIDERS else way.provider
    return f"{name} [{known.index(way) + 1}]"


if __name__ == "__main__":
    check = parse_check(__doc__)
    sys.exit(settle({REPOSITORY / PAGE: page()}, check=check))
