"""Options of the command line, made of the dataclasses that declare them (:mod:`sdort.options.declared_options`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from sdort.cli.completions import complete_files, complete_fusions, complete_schedulers
from sdort.cli.number_types import NumberList, Real, Size, SizeList, Whole
from sdort.options.declared_options import Option, declared, lone_option, sections_of

Command = Callable[..., Any]
Given = TypeVar("Given")

Forms = Mapping[str, Callable[[], click.ParamType[Any] | Mapping[str, Any]]]
"""Form -> what makes its type, or several arguments of :func:`click.option`."""
FORMS: Forms = {
    "text": lambda: click.STRING,
    "file": lambda: click.Path(dir_okay=False, path_type=Path),
    "folder": lambda: click.Path(file_okay=False, path_type=Path),
    "existing": lambda: click.Path(exists=True, path_type=Path),
    "existing file": lambda: click.Path(exists=True, dir_okay=False, path_type=Path),
    "size": Size,
    "sizes": SizeList,
    "numbers": NumberList,
    "address": lambda: {"type": click.STRING, "is_flag": False, "flag_value": "local"},
}
"""How the command line reads an option whose annotation does not tell."""
_COMPLETIONS: Mapping[str, Any] = {
    "files": complete_files,
    "fusions": complete_fusions,
    "schedulers": complete_schedulers,
}


def options_of(*classes: type, only: Collection[str] = (), forms: Forms = FORMS) -> Callable[[Command], Command]:
    """The options that dataclasses declare and that have a text of help; the command gets a parameter for each.

    Args:
        only: names of those that the command has; all if empty.
        forms: of the command's own, beside :data:`FORMS`.
    """
    found = _shown(classes, only)

    def decorate(command: Command) -> Command:
        for each in reversed(found):
            command = _click_option(each, {**FORMS, **forms})(command)
        return command

    return decorate


def sections(*classes: type, headings: Sequence[str] = (), only: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Heading -> names of options that have one, for :class:`sdort.cli.sections.SectionedCommand`.

    Args:
        headings: in the order of the help; a heading that is not among them comes last.
        only: as for :func:`options_of`.
    """
    found = sections_of([each for each in _shown(classes, only) if each.section])
    ordered = dict.fromkeys([*headings, *found])
    return {heading: tuple(found[heading]) for heading in ordered if heading in found}


def given(options: Given) -> Given:
    """The options of a command that have a value; the others are left to the function that it calls."""
    every = cast("Mapping[str, Any]", options)
    return cast("Given", {name: value for name, value in every.items() if value is not None})


def needs(*classes: type) -> Callable[[Command], Command]:
    """A command whose options are refused without those that they need, before any library is imported."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def checked(**values: Any) -> Any:
            if problem := lone_option(values, *classes):
                raise click.UsageError(problem)
            return command(**values)

        return checked

    return decorate


def _shown(classes: Sequence[type], only: Collection[str]) -> list[Option]:
    return [each for name, each in declared(*classes).items() if each.help and name in (only or (name,))]


def _click_option(option: Option, forms: Forms) -> Callable[[Command], Command]:
    words: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if option.unset:
        words["show_default"] = option.unset
    if option.completes:
        words["shell_complete"] = _COMPLETIONS[option.completes]
    if _is_switch(option):
        words |= {"default": option.default, **({} if option.negated else {"is_flag": True})}
        if option.default and not option.negated:
            words |= {"flag_value": False, "show_default": False}
    elif "Mapping" in option.words and not option.form:
        words |= {"multiple": True, "callback": _assignments}
    else:
        repeatable = bool(option.words & {"Sequence", "Collection"}) and not option.form
        kind = _type(option, forms)
        words |= {"multiple": repeatable, **(kind if isinstance(kind, Mapping) else {"type": kind})}
        if (option.default or option.within) and not repeatable:
            words["default"] = option.default
    return click.option(*_flags(option), option.name, **words)


def _flags(option: Option) -> tuple[str, ...]:
    if option.negated:
        return (f"{option.flag}/--no-{option.flag[2:]}",)
    return option.flags or (option.flag,)


def _is_switch(option: Option) -> bool:
    return "bool" in option.words and not (option.choices or option.form)


def _type(option: Option, forms: Forms) -> click.ParamType[Any] | Mapping[str, Any]:
    if option.form:
        return forms[option.form]()
    if option.range:
        return Whole(option.range) if option.range.whole else Real(option.range)
    if option.choices:
        return click.Choice(option.choices)
    return click.Path(path_type=Path) if "Path" in option.words else click.STRING


def _assignments(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            like = ", such as arena_extend_strategy=kSameAsRequested" if option.name == "provider_options" else ""
            raise click.BadParameter(f"{value!r} is not {option.metavar}{like}")
        if options.setdefault(name, text) != text:
            raise click.BadParameter(f"{name} is given twice, as {options[name]} and as {text}")
    return options
