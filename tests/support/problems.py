"""The problems of kernels as ctypes structs, read from the headers that state them (custom_ops/operators/*/*.h).

A problem is a plain struct there: pointers, integers, floats and other such structs, after those of its base. The
simulated machines check its size.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

from support import native

_STRUCT = re.compile(r"^struct (\w+)(?: : (\w+))? \{\n(.*?)^\};", re.M | re.S)
_FIELD = re.compile(r"(?:const )?(\w+)(\*?) (\w+(?:, \w+)*);")
_TYPES = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "float": ctypes.c_float}


@cache
def problem_type(operator: str) -> type[ctypes.Structure]:
    """The struct ``Problem`` of a folder of ``custom_ops/operators``.

    Raises:
        LookupError: there is none in its headers, or a field's type is not known here.
    """
    return struct_type(operator, "Problem")


@cache
def struct_type(operator: str, name: str) -> type[ctypes.Structure]:
    """A struct by its name; see :func:`problem_type`."""
    headers = (native.SOURCE / "operators" / operator).glob("*.h")
    structs = {found[1]: found for path in headers for found in _STRUCT.finditer(path.read_text())}
    if name not in structs:
        raise LookupError(f"no header of {operator} has a struct {name}")
    base = structs[name][2]
    inherited = struct_type(operator, base)._fields_ if base else ()
    return type(name, (ctypes.Structure,), {"_fields_": [*inherited, *_fields(operator, structs[name][3])]})


def _fields(operator: str, body: str) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    for line in re.sub(r"//.*", "", body).splitlines():
        text = line.strip()
        if not text or text.startswith(("static ", "using ")):
            continue
        field = _FIELD.fullmatch(text)
        if not field:
            raise LookupError(f"a problem of {operator} has a field that is none of a plain struct: {text}")
        kind, star, names = field.groups()
        known = ctypes.c_void_p if star else _TYPES.get(kind) or struct_type(operator, kind)
        fields += [(field_name, known) for field_name in names.split(", ")]
    return fields


def problem(operator: str, **values: Any) -> ctypes.Structure:
    """A problem with these fields; a field that is left out is 0 or null.

    Raises:
        TypeError: it has no such field.
    """
    made = problem_type(operator)
    unknown = values.keys() - {field[0] for field in made._fields_}
    if unknown:
        raise TypeError(f"a problem of {operator} has no {', '.join(sorted(unknown))}")
    return made(**values)
