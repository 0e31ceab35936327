"""Every command that a test runs with ``--json`` prints one document, and that holds to its schema in docs/schemas."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@functools.cache
def _validator(schema: str) -> Any:
    import jsonschema

    file = SCHEMAS / f"{schema}.json"
    return jsonschema.Draft202012Validator(json.loads(file.read_text()))


def check_document(document: object) -> None:
    """Raise AssertionError where a document does not hold to the schema that it names."""
    assert isinstance(document, dict), "a document is an object"
    assert "schema" in document, f"no schema is named: {list(document)}"
    problems = [f"{error.json_path}: {error.message}" for error in _validator(document["schema"]).iter_errors(document)]
    assert not problems, f"{document['schema']}: {problems[:5]} (after a change of fields: scripts/json_schemas.py)"


def check_all_commands() -> None:
    """From here on every command that click's test runner invokes is checked."""
    invoke = CliRunner.invoke

    @functools.wraps(invoke)
    def checked(runner: CliRunner, cli: Any, args: Any = None, *more: Any, **settings: Any) -> Result:
        result = invoke(runner, cli, args, *more, **settings)
        is_ours = getattr(cli, "name", "") == "cli" and not isinstance(args, str)
        if is_ours and "--json" in (args or ()) and "--output" not in args and "-o" not in args and result.stdout:
            check_document(json.loads(result.stdout))
        return result

    CliRunner.invoke = checked  # type: ignore[method-assign, assignment]
