"""Options are declared once, completely: what a forgotten mark would do silently fails here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import option_keywords

from sdort.generation.requests.typed_options import GENERATION
from sdort.options.declared_options import declared, option, sections_of


def _unmarked(*classes: type) -> list[str]:
    """Options of sampling of which nobody said whether another value makes another schedule."""
    return [name for name, each in declared(*classes).items() if each.section == "Sampling" and each.schedule is None]


def test_the_keyword_arguments_are_what_is_declared() -> None:
    stale = [path.name for path, text in option_keywords.files().items() if path.read_text() != text]
    assert stale == [], "run scripts/option_keywords.py"


def test_every_option_of_sampling_says_whether_it_makes_the_schedule() -> None:
    """One that is forgotten in the key of kept schedules would take another run's."""

    @dataclass
    class Forgotten:
        beta_end: float | None = option(None, section="Sampling", help="Noise at the end.")
        said: float | None = option(None, section="Sampling", help="Noise at the end.", schedule=False)

    assert _unmarked(*GENERATION) == []
    assert _unmarked(Forgotten) == ["beta_end"]


def test_options_name_other_options_and_have_a_text() -> None:
    options = declared(*GENERATION)
    for name, each in options.items():
        assert each.text or each.positional, name
        assert {each.needs, each.after} - {""} <= options.keys(), name
        assert not each.after or options[each.after].section == each.section, name


def test_an_option_follows_another_one_that_is_declared_later() -> None:
    @dataclass
    class Options:
        b: Any = option(section="S", after="a")
        c: Any = option(section="S", after="b")
        d: Any = option(section="S")
        a: Any = option(section="S")

    assert sections_of(declared(Options).values()) == {"S": ["d", "a", "b", "c"]}
