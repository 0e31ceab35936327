"""Files of prompts for batches: each kind gives the same lines, and a bad line leaves the others."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from sdort.batches.line_files import MAX_ID, BadLine, Line, count_lines, read_lines
from sdort.errors import BadModelError, MissingPackageError, UsageError
from sdort.generation.files.prompts_file import MAX_LINE

ROWS: tuple[dict[str, Any], ...] = (
    {"id": "first", "prompt": "a cat, sitting", "seed": 7, "guidance_scale": 2.5},
    {"id": "second", "prompt": 'says "7"', "seed": "3-5", "hires": 2.0},
    {"prompt": "no id"},
)


def as_csv(rows: tuple[dict[str, Any], ...]) -> str:
    import csv

    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_jsonl(path: Path) -> None:
    path.write_text("\n".join(map(json.dumps, ROWS)))


def write_csv(path: Path) -> None:
    path.write_text(as_csv(ROWS), encoding="utf-8-sig")  # as Excel writes it


def write_parquet(path: Path) -> None:
    names = list(dict.fromkeys(name for row in ROWS for name in row))
    # A column has one type: a seed is a text where one of them is.
    columns = {name: [row.get(name) for row in ROWS] for name in names}
    columns["seed"] = [None if seed is None else str(seed) for seed in columns["seed"]]
    parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.parametrize(
    ("name", "write", "first"),
    [
        ("a.jsonl", write_jsonl, 1),
        ("a.NDJSON", write_jsonl, 1),
        ("a.csv", write_csv, 2),
        ("a.parquet", write_parquet, 1),
    ],
)
def test_every_kind_gives_the_same_lines(name: str, write: Callable[[Path], None], first: int, tmp_path: Path) -> None:
    write(tmp_path / name)
    found = list(read_lines(tmp_path / name))
    assert all(isinstance(line, Line) for line in found)
    assert [line.name for line in found] == ["first", "second", f"{first + 2:06}"]
    assert [line.number for line in found] == [first, first + 1, first + 2]
    wanted: list[dict[str, Any]] = [{key: value for key, value in row.items() if key != "id"} for row in ROWS]
    if name.endswith("parquet"):
        wanted[0]["seed"] = "7"
    assert [line.options for line in found if isinstance(line, Line)] == wanted
    assert count_lines(tmp_path / name) >= 3


def test_a_text_file_has_prompts_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes('\ufeffone\r\n\n# no prompt\n  two  \n{"prompt": 3}'.encode())
    found = [(line.number, line.options) for line in read_lines(tmp_path / "a.txt") if isinstance(line, Line)]
    assert found == [(1, {"prompt": "one"}), (4, {"prompt": "two"}), (5, {"prompt": '{"prompt": 3}'})]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "is no JSON"),
        (b"[1]", "is no object"),
        (b'{"seed": 3}', "has no prompt"),
        (b'{"prompt": "a", "stepps": 3}', "has the option 'stepps', which lines do not have"),
        (b'{"prompt": "a", "output": "/etc/passwd"}', "has the option 'output', which lines do not have"),
        (b'{"prompt": "a", "id": "../up"}', "has an id that is no name of a file"),
        (b'{"prompt": "a", "id": ".hidden"}', "has an id that is no name of a file"),
        (b'{"prompt": "a", "id": ""}', "has an id that is no name of a file"),
        (b'{"prompt": "a", "id": 1.5}', "has an id that is no name of a file"),
        (b'{"prompt": "a", "id": "%s"}' % (b"x" * (MAX_ID + 1)), "has an id that is no name of a file"),
        (b'{"prompt": "\xff"}', "is no text in UTF-8: byte 13"),
        (b'{"prompt": "%s"}' % (b"x" * MAX_LINE), f"has more than {MAX_LINE:,} bytes"),
        (b'{"prompt": "again", "id": "good"}', "has the id of line 1"),
    ],
)
def test_a_bad_line_is_named_and_the_next_is_read(line: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "a", "id": "good"}\n' + line + b'\n{"prompt": "b"}\n')
    first, bad, last = read_lines(path)
    assert isinstance(first, Line)
    assert isinstance(bad, BadLine)
    assert (bad.number, bad.problem.startswith(f"line 2 of {path} ")) == (2, True)
    assert why in bad.problem
    assert last == Line(3, "000003", {"prompt": "b"})


def test_an_id_may_be_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "id": 12}')
    assert list(read_lines(tmp_path / "a.jsonl")) == [Line(1, "12", {"prompt": "a"})]


def test_cells_of_a_csv_file(tmp_path: Path) -> None:
    """Texts stay texts, also where they look like numbers; a cell with line feeds counts its lines."""
    path = tmp_path / "a.csv"
    path.write_text('id , prompt,steps,vae_tiling,size\n007,12,5,true,64x96\nb,"two\nlines",,,\nc,x,5,1,1,1\nd,y\n')
    first, second, bad, last = read_lines(path)
    assert first == Line(2, "007", {"prompt": "12", "steps": 5, "vae_tiling": True, "size": "64x96"})
    assert second == Line(4, "b", {"prompt": "two\nlines"})
    assert isinstance(bad, BadLine)
    assert "line 5" in bad.problem
    assert "6 cells for 5 columns" in bad.problem
    assert last == Line(6, "d", {"prompt": "y"})


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("a.csv", b"id,text\n1,2\n", UsageError, "has no column prompt"),
        ("a.csv", b"", UsageError, "has no column prompt"),
        ("a.csv", b"prompt\n\xff\xfe\n", BadModelError, "is no text in UTF-8"),
        ("a.csv", b'prompt\n"' + b"x" * 200_000 + b'"\n', BadModelError, "cannot read line 2 of .*field larger than"),
        ("a.parquet", b"PAR1 and no more", BadModelError, "is no Parquet file"),
        ("a.parquet", b"", BadModelError, "is no Parquet file"),
    ],
)
def test_a_file_that_cannot_be_read(
    name: str, content: bytes, error: type[Exception], words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=words):
        list(read_lines(tmp_path / name))


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match="pyarrow is not installed"):
        list(read_lines(tmp_path / "a.parquet"))


def test_lines_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    """A file may be larger than the memory."""
    path = tmp_path / "a.txt"
    path.write_text("one\n" * 1000)
    lines = read_lines(path)
    assert next(lines) == Line(1, "000001", {"prompt": "one"})
    path.write_text("")
    assert len(list(lines)) < 999 or path.stat().st_size == 0
