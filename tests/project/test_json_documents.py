"""docs/json.md and docs/schemas are what the dataclasses say; every field is documented."""

from __future__ import annotations

import json_schemas
import pytest
from generated_files import REPOSITORY
from support.json_documents import check_document

from sdort import console
from sdort.cli.error_report import ErrorReport


def test_the_files_are_what_the_dataclasses_say() -> None:
    contents, undocumented = json_schemas.files()
    assert undocumented == []
    stale = [path.name for path, text in contents.items() if not path.is_file() or path.read_text() != text]
    assert stale == [], "run scripts/json_schemas.py"
    folder = REPOSITORY / json_schemas.SCHEMAS
    assert sorted(folder.iterdir()) == sorted(path for path in contents if path.parent == folder)


def test_a_document_names_its_schema_first() -> None:
    document = console.to_json(ErrorReport("no such file", "BadModelError", 3))
    assert next(iter(document.items())) == ("schema", "sdort-error-1")
    check_document(document)


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"exit_code": "3"}, "exit_code"), ({"schema": None}, "schema"), ({"hint": 5}, "hint")],
    ids=["a type", "no schema", "a choice of types"],
)
def test_a_wrong_document_is_seen(change: dict[str, object], problem: str) -> None:
    document = console.to_json(ErrorReport("no such file", "BadModelError", 3))
    wrong = {name: value for name, value in {**document, **change}.items() if name != "schema" or value}
    with pytest.raises(AssertionError, match=problem):
        check_document(wrong)


def test_a_document_with_unknown_fields_is_seen() -> None:
    with pytest.raises(AssertionError, match="surprise"):
        check_document({"schema": "sdort-tuning-verify-1", "bundles": [], "surprise": 1})
