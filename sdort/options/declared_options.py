"""Options of a command, each declared once: a field of a dataclass that :func:`option` makes.

The command line (:mod:`sdort.cli.from_options`), the keyword arguments for editors (``scripts/option_keywords.py``),
checks of ranges, the record of an image, ``--from-image``, the texts of other programs and the key of kept schedules
are made of these declarations (docs/add-an-option.md).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sdort.options.number_ranges import Range, flag_of

T = TypeVar("T")
_MARK = "option"
"""The key of an option in its field's metadata."""


@dataclass(frozen=True, eq=False)
class Option:
    """One option of a command."""

    help: str = ""
    """Text of the command line's help; empty for an option that Python alone has."""
    doc: str = ""
    """Text for Python and for records, where ``help`` does not serve."""
    section: str = ""
    """Heading of the help."""
    after: str = ""
    """The option of the same section that it follows in the help, where that is not the one before it."""
    flags: tuple[str, ...] = ()
    """Names on the command line, where they are not made of the field's."""
    negated: bool = False
    """Whether there is ``--no-NAME`` too."""
    within: Range[Any] | tuple[Any, Any, str] | None = None
    """The numbers that it takes: lowest, highest, and the reason for these bounds."""
    choices: tuple[str, ...] = ()
    """The texts that it takes."""
    form: str = ""
    """A form of :data:`sdort.cli.from_options.FORMS`, where the annotation does not tell the command line's."""
    metavar: str | None = None
    """The value's name in the help."""
    unset: str = ""
    """The default that the help names for an option without one."""
    completes: str = ""
    """Kind of values that a shell completes: ``files``, ``schedulers`` or ``fusions``."""
    positional: bool = False
    """Whether Python's functions take it as a parameter of their own."""
    needs: str = ""
    """The option without which it means nothing."""
    names_file: bool = False
    """Whether it names a file, which is not in an image that was drawn with it."""
    recorded_as: str = ""
    """Field of the record, where its name is another."""
    not_replayed: str = ""
    """The reason why ``--from-image`` does not take it from an image."""
    schedule: bool | None = None
    """Whether another value makes another schedule of timesteps; each option of the section Sampling says it."""
    a1111: tuple[str, ...] = ()
    """Names in A1111's parameters; the first is written."""
    comfyui: str = ""
    """``NODE.input`` of ComfyUI's graphs."""
    name: str = ""
    """The field's."""
    annotation: str = ""
    """The field's type, as it is written."""
    default: Any = None
    """The field's."""

    @property
    def flag(self) -> str:
        """Its long name on the command line, for messages."""
        return flag_of(self.name)

    @property
    def text(self) -> str:
        """Its text for Python and for records."""
        return self.doc or self.help

    @property
    def range(self) -> Range[Any] | None:
        """Its range by its own name; None if it is no number."""
        if isinstance(self.within, Range):
            return replace(self.within, name=self.name)
        return Range(self.name, *self.within) if self.within else None

    @property
    def words(self) -> frozenset[str]:
        """The names in its annotation."""
        return frozenset(re.findall(r"\w+", self.annotation))

    @property
    def is_path(self) -> bool:
        """Whether it is held as a path, for which Python takes a text too."""
        return "Path" in self.words and "str" not in self.words

    @property
    def keyword(self) -> str:
        """The type that Python's functions take."""
        if self.default == {}:
            return f"{self.annotation} | None"
        return self.annotation.replace("Path", "str | Path") if self.is_path else self.annotation

    @property
    def kind(self) -> Any:
        """``bool``, ``int | float`` or ``str``: the type of its value in JSON."""
        return bool if "bool" in self.words else int | float if self.words & {"int", "float"} else str


def option(default: Any = None, *, factory: Any = None, **marks: Any) -> Any:
    """A field of a dataclass that is an option of a command.

    Args:
        default: its value where nobody says one.
        factory: makes the default, where that can be changed.
        marks: fields of :class:`Option`.
    """
    declaration = {_MARK: Option(**marks)}
    return (
        field(default_factory=factory, metadata=declaration)
        if factory
        else field(default=default, metadata=declaration)
    )


def option_of(owner: type, name: str, default: Any = MISSING, **marks: Any) -> Any:
    """A field that is the same option as another dataclass has, for a command that has not all options of that one.

    Args:
        owner: declares it.
        default: where it is another.
        marks: fields of :class:`Option` that are others.
    """
    [found] = [each for each in fields(owner) if each.name == name]
    made = {_MARK: replace(found.metadata[_MARK], **marks)}
    if default is MISSING and found.default is MISSING:
        return field(default_factory=found.default_factory, metadata=made)
    return field(default=found.default if default is MISSING else default, metadata=made)


@cache
def declared(*classes: type) -> Mapping[str, Option]:
    """The options of dataclasses by their names, in their order; fields that are no options are left out."""
    return {
        each.name: replace(
            each.metadata[_MARK],
            name=each.name,
            annotation=str(each.type),
            default=each.default_factory() if callable(each.default_factory) else each.default,
        )
        for owner in classes
        for each in fields(owner)
        if _MARK in each.metadata
    }


@cache
def ranges_of(*classes: type) -> Mapping[str, Range[Any]]:
    """Option that is a number -> its range."""
    return {name: each.range for name, each in declared(*classes).items() if each.range}


def sections_of(options: Collection[Option]) -> dict[str, list[str]]:
    """Heading of the help -> names of its options, in their order."""
    sections: dict[str, list[str]] = {}
    for each in sorted(options, key=lambda each: bool(each.after)):
        names = sections.setdefault(each.section, [])
        names.insert(names.index(each.after) + 1 if each.after else len(names), each.name)
    return sections


def made_of(owner: type[T], given: Mapping[str, Any], **more: Any) -> T:
    """The dataclass that declares options, made of those that are given; None is its default, a text a path.

    Args:
        given: option -> value; other names are left to others.
        more: fields that are no options.

    Raises:
        UsageError: a number is out of its range.
    """
    kind: type = owner
    options = {name: each for name, each in declared(kind).items() if given.get(name) is not None}
    return owner(**{name: _held(each, given[name]) for name, each in options.items()}, **more)


def _held(option: Option, value: Any) -> Any:
    if option.is_path:
        return Path(value)
    return option.range.check(value) if option.range else value


def lone_option(given: Mapping[str, Any], *classes: type) -> str | None:
    """The sentence on an option that is given without the one that it needs; None if there is no such option.

    Args:
        given: option -> value.
        classes: declare the options.
    """
    options = declared(*classes).values()
    lone = (each for each in options if each.needs and given.get(each.name) and not given.get(each.needs))
    return next((f"{each.flag} needs {flag_of(each.needs)}" for each in lone), None)


def command_words(options: Any, *classes: type) -> list[object]:
    """The options of a dataclass that differ from their defaults, as words of the command line.

    Args:
        classes: bases of the dataclass, whose options alone are wanted; all options without one.
    """
    kind: type = type(options)
    values = {each: getattr(options, name) for name, each in declared(*(classes or (kind,))).items() if each.help}
    return [word for each, value in values.items() if value != each.default for word in _words(each, value)]


def _words(option: Option, value: Any) -> list[object]:
    flag = option.flags[-1] if option.flags else option.flag
    if isinstance(value, bool):
        return [f"--no-{flag[2:]}" if option.negated and not value else flag]
    if isinstance(value, Mapping):
        return [word for name, text in value.items() for word in (flag, f"{name}={text}")]
    listed = value if isinstance(value, tuple | list) else [value]
    return [word for each in listed for word in (flag, each)]
