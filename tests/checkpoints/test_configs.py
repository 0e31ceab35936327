"""Config files of pipelines: read, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdort.checkpoints.configs import optional_config, read_config
from sdort.errors import BadModelError


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"\xff{}", "is no JSON"),
        (b"[1]", "is no JSON object"),
        (None, "cannot read the config .*: No such file"),
    ],
)
def test_a_config_that_is_none_is_refused(content: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
        with pytest.raises(BadModelError, match=reason):
            optional_config(path)
    with pytest.raises(BadModelError, match=reason) as caught:
        read_config(path, "the config", "Do this.")
    assert caught.value.hint == "Do this."


def test_a_config_that_may_be_missing_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert optional_config(path) == {}
    path.write_text('{"a": "\N{EURO SIGN}"}', encoding="utf-8")
    assert optional_config(path) == {"a": "\N{EURO SIGN}"}
