"""Fuzzing: kept cases replayed, a fixed number of new inputs, and a harness that sees what it is to see."""

from __future__ import annotations

import itertools
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fuzzing import targets
from support.fuzzing.watch import EscapeError, TooSlowError, bounded

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/fuzz/cases").glob("*/*"))
HAS_WHEELS = (3, 11) <= sys.version_info < (3, 14) and platform.machine() == "x86_64"
"""Of atheris, by its marker in pyproject.toml: where there are, the test fails without it."""


def test_every_case_is_small_and_of_a_target() -> None:
    assert {case.parent.name for case in CASES} <= targets.TARGETS.keys()
    assert [case.name for case in CASES if case.stat().st_size > 4096] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_what_failed_once_is_refused_or_accepted(case: Path, tmp_path: Path) -> None:
    with bounded(tmp_path):
        targets.run(case.parent.name, tmp_path, case.read_bytes())


@pytest.mark.long
@pytest.mark.skipif(not HAS_WHEELS, reason="atheris has wheels for Python 3.11 to 3.13 on x86-64 only")
def test_new_inputs_of_a_fixed_seed(tmp_path: Path) -> None:
    """The same inputs each time the same code runs: a failure here is repeated by the hexadecimal text that it prints,
    as a file FILE in a folder of its target's name: scripts/fuzz.py --case TARGET/FILE."""
    command = [sys.executable, str(ROOT / "scripts/fuzz.py"), "--ci", "--cases", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines()[1:]}
    ran, reached = ({name: int(line[column]) for name, line in lines.items()} for column in (1, 3))
    assert {name for name, target in targets.TARGETS.items() if ran[name] < target.runs} == set()
    assert {name: reached[name] for name, target in targets.TARGETS.items() if reached[name] < target.edges} == {}


@pytest.mark.parametrize("outside", ["written", "removed", "read", "started"])
def test_an_escape_is_seen(outside: str, tmp_path: Path) -> None:
    (inside := tmp_path / "inside").mkdir()
    (tmp_path / "file").write_text("x")
    (inside / "link").symlink_to(tmp_path / "file")
    actions: dict[str, Callable[[], object]] = {
        "written": lambda: (tmp_path / "new").write_text("x"),
        "removed": lambda: (tmp_path / "file").unlink(),
        "read": lambda: (inside / "link").read_text(),
        "started": lambda: subprocess.run(["true"], check=True),
    }
    with pytest.raises(EscapeError), bounded(inside):
        actions[outside]()
    assert (tmp_path / "file").read_text() == "x"
    assert not (tmp_path / "new").exists()


def test_what_is_slow_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.fuzzing.watch.SECONDS", 0.02)
    with pytest.raises(TooSlowError), bounded(tmp_path):
        all(number >= 0 for number in itertools.count())


def test_every_target_accepts_what_is_whole() -> None:
    """Else it would fuzz the first check alone."""
    for name, target in targets.TARGETS.items():
        with tempfile.TemporaryDirectory() as folder:
            refusal = targets.run(name, Path(folder), target.seeds()[0])
        assert refusal is None, (name, refusal)
