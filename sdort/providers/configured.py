"""The libraries of plugins that the user's configuration names: the table ``[providers]`` of ``config.toml``.

```toml
[providers]
openvino = "/opt/openvino/libonnxruntime_providers_openvino_plugin.so"
```

A library is code that every command of sdort then runs, so the file has to be the user's own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sdort.errors import UsageError
from sdort.errors.plain_text import library_reason
from sdort.files.input_file import read_input
from sdort.files.ownership import why_foreign
from sdort.files.user_folders import config_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_MOST_BYTES = 1 << 20


def configured_libraries() -> Mapping[str, str]:
    """Provider -> its plugin's library, as the configuration says; empty without one.

    Raises:
        UsageError: the file is not the user's own, no TOML, or its table has something else than paths.
        BadModelError: it cannot be read, or is too large.
    """
    return _read(config_file())


@cache
def _read(path: Path) -> Mapping[str, str]:
    if not path.exists():
        return {}
    if reason := why_foreign(path):
        raise UsageError(f"{path} is not yours alone: {reason}", hint="Take the right away with chmod go-w.")
    text = read_input(path, "the configuration", limit=_MOST_BYTES)
    try:
        found = tomllib.loads(text.decode())
    except ValueError as error:
        raise UsageError(f"{path} is no TOML: {library_reason(error)}") from error
    table = found.get("providers", {})
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise UsageError(
            f"{path}: [providers] has something else than paths of libraries", hint='Write NAME = "PATH" lines.'
        )
    return {name: str(path.parent / Path(value).expanduser()) for name, value in table.items()}
