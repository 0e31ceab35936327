#!/usr/bin/env python3
"""Writes docs/schemas/*.json and docs/json.md: every JSON document of sdort, from the dataclasses that it is made of.

python scripts/json_schemas.py            writes them
python scripts/json_schemas.py --check    exit code 1 if a file is not what it would write
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
import re
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from generated_files import REPOSITORY, parse_check, settle

from sdort.console import DOCUMENTS, json_keys
from sdort.options.declared_options import declared

SCHEMAS = "docs/schemas"
PAGE = "docs/json.md"

_NUMBER = {"anyOf": [{"type": ["number", "null"]}, {"enum": ["inf", "-inf"]}]}
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: _NUMBER,  # NaN is null, infinity is text: JSON has neither
    Path: {"type": "string"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
}


def documents() -> dict[str, type]:
    """Schema -> its dataclass, with every module of sdort imported."""
    import sdort

    for module in pkgutil.walk_packages(sdort.__path__, "sdort."):
        # The others are programs (roofline_worker), what compilers read, another system's: no document is made there.
        if not module.name.startswith(("sdort.custom_ops", "sdort.fusions")) and not module.name.endswith(
            ("__main__", "windows_calls")
        ):
            importlib.import_module(module.name)
    return dict(sorted(DOCUMENTS.items()))


class Schema:
    """The JSON Schema (draft 2020-12) of a document."""

    def __init__(self, name: str, report: type) -> None:
        self._parts: dict[str, dict[str, Any]] = {}
        self.undocumented: list[str] = []
        whole = self._object(report)
        whole["properties"] = {"schema": {"const": name}, **whole["properties"]}
        whole["required"] = ["schema", *whole["required"]]
        if report.__dict__.get("__is_open__"):
            whole["additionalProperties"] = True
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
        self.json: dict[str, Any] = {**head, **whole, "$defs": dict(sorted(self._parts.items()))}

    def _object(self, report: type) -> dict[str, Any]:
        hints, notes = _hints(report), _notes(report)
        properties: dict[str, Any] = {}
        for name, key in json_keys(report).items():
            note = notes.get(name, "")
            if not note:
                self.undocumented.append(f"{report.__module__}.{report.__qualname__}.{name}")
            properties[key] = {**self._type(hints[name]), **({"description": note} if note else {})}
        names = list(properties)
        shape = {"type": "object", "description": _plain(inspect.getdoc(report) or "")}
        schema = report.__dict__.get("__schema__")
        if schema:  # a document within a document says its schema too; the outer one has it first
            properties["schema"] = {"const": schema}
        return {**shape, "properties": properties, "required": names, "additionalProperties": False}

    def _part(self, report: type) -> dict[str, Any]:
        if report.__name__ not in self._parts:
            self._parts[report.__name__] = {}  # it may hold itself
            self._parts[report.__name__] = self._object(report)
        return {"$ref": f"#/$defs/{report.__name__}"}

    def _type(self, hint: Any) -> dict[str, Any]:
        """The schema of a value of a type, after :func:`sdort.console.to_json`."""
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self._type(argument) for argument in arguments]}
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if origin is tuple and arguments[-1] is not ...:
            return {"type": "array", "prefixItems": [self._type(a) for a in arguments], "items": False}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self._type(arguments[1])}
        if isinstance(origin, type) and issubclass(origin, (Sequence, Set)):
            return {"type": "array", "items": self._type(arguments[0])}
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return {"enum": [member.value for member in hint]}
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            kinds = [hint, *hint.__subclasses__()]
            return self._part(hint) if len(kinds) == 1 else {"anyOf": [self._part(kind) for kind in kinds]}
        if getattr(hint, "__supertype__", None):
            return self._type(hint.__supertype__)
        raise TypeError(f"no schema for {hint!r}")


def _hints(report: type) -> dict[str, Any]:
    """The types of a dataclass's fields; imports for type checkers are made here."""
    names: dict[str, Any] = {}
    annotations: dict[str, Any] = {}
    for base in reversed(report.__mro__):
        annotations |= inspect.get_annotations(base)
        module = sys.modules[base.__module__]
        names |= vars(module)
        for node in ast.walk(ast.parse(inspect.getsource(module))) if module.__name__.startswith("sdort") else ():
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sdort"):
                source = importlib.import_module(node.module)
                names |= {a.asname or a.name: getattr(source, a.name) for a in node.names if hasattr(source, a.name)}
    getters = {name: part.fget for name, part in inspect.getmembers(report, lambda part: isinstance(part, property))}
    kinds = {name: typing.get_type_hints(getter, names)["return"] for name, getter in getters.items() if getter}
    # Those that a subclass replaces are not read: a caller names an image in other types than a record.
    held = types.SimpleNamespace(
        __annotations__={each.name: annotations[each.name] for each in dataclasses.fields(report)}
    )
    return {**kinds, **typing.get_type_hints(held, names)}


def _notes(report: type) -> dict[str, str]:
    """Field -> its docstring, of the class and those that it extends."""
    notes: dict[str, str] = {}
    for base in reversed(report.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        notes |= {name: _plain(each.text) for name, each in declared(base).items()}
        notes |= _attributes(inspect.getdoc(base) or "")
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, after in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(line, ast.FunctionDef) and isinstance(base.__dict__.get(line.name), property):
                notes[line.name] = _plain(ast.get_docstring(line) or "")
            if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                notes[line.target.id] = _plain(inspect.cleandoc(str(after.value.value)))
    return notes


def _attributes(docstring: str) -> dict[str, str]:
    """Field -> its text in the docstring's section of attributes."""
    section = docstring.partition("\n\nAttributes:\n")[2].partition("\n\n")[0]
    entries = re.split(r"\n(?=\S)", textwrap.dedent(section))
    return {name: _plain(text) for name, colon, text in (entry.partition(": ") for entry in entries) if colon}


def _plain(text: str) -> str:
    """A docstring in one line, without the marks of reStructuredText."""
    text = text.partition("\n\nAttributes:")[0]
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "`")
    return " ".join(text.split())


def page(schemas: Mapping[str, Schema]) -> str:
    """docs/json.md."""
    parts = [
        "# JSON output\n",
        "Every command with `--json` prints one JSON document on stdout, and nothing else there. Its first field is\n"
        "`schema`: `sdort-NAME-VERSION`. The version grows when a field goes or changes its meaning; fields may be\n"
        "added without that. A command that fails prints `sdort-error-1` instead, with what it had until then.\n"
        'Not-a-number is null, infinity the text `"inf"` or `"-inf"`. From Python, `sdort.to_json(result)` is the\n'
        "same document.\n",
        "This page and the JSON Schema files in [schemas](schemas) are written by `scripts/json_schemas.py`.\n",
    ]
    for name, schema in schemas.items():
        document = schema.json
        file = f"schemas/{_file_name(name)}"
        parts.append(f"## {name}\n\n{document['description']} [Schema]({file}).\n")
        parts.append(_table(document["properties"]))
        for part, shape in document["$defs"].items():
            parts.append(f"**{part}**: {shape['description']}\n")
            parts.append(_table(shape["properties"]))
    return "\n".join(parts)


def _table(properties: Mapping[str, dict[str, Any]]) -> str:
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for name, shape in properties.items():
        note = shape.get("description", "the name and version of this schema" if name == "schema" else "")
        lines.append(f"| `{name}` | {_type_text(shape)} | {note.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _type_text(shape: Mapping[str, Any]) -> str:
    if "$ref" in shape:
        return str(shape["$ref"].rpartition("/")[2])
    if "const" in shape:
        return f"`{shape['const']}`"
    if "enum" in shape:
        return ", ".join(f"`{value}`" for value in shape["enum"])
    if shape.get("anyOf") == _NUMBER["anyOf"]:
        return "number"
    if "anyOf" in shape:
        return " or ".join(dict.fromkeys(_type_text(option) for option in shape["anyOf"]))
    if shape.get("type") == "array":
        items = shape.get("items") or {"anyOf": shape["prefixItems"]}
        return f"list of {_type_text(items)}"
    if shape.get("type") == "object":
        return f"object of {_type_text(shape['additionalProperties'])}"
    return str(shape.get("type", "any"))


def _file_name(name: str) -> str:
    return f"{name}.json"


def files() -> tuple[dict[Path, str], list[str]]:
    """Path -> content of every file, and the fields that have no docstring."""
    schemas = {name: Schema(name, report) for name, report in documents().items()}
    contents = {
        REPOSITORY / SCHEMAS / _file_name(name): json.dumps(schema.json, indent=2) + "\n"
        for name, schema in schemas.items()
    }
    contents[REPOSITORY / PAGE] = page(schemas)
    return contents, sorted({field for schema in schemas.values() for field in schema.undocumented})


def main() -> None:
    """Write or check the files."""
    check = parse_check(__doc__)
    contents, undocumented = files()
    for field in undocumented:
        print(f"without a docstring: {field}")
    gone = dict.fromkeys(sorted(set((REPOSITORY / SCHEMAS).glob("*.json")) - set(contents)))
    sys.exit(settle({**contents, **gone}, check=check) or bool(undocumented))


if __name__ == "__main__":
    main()
