"""scripts/performance_table.py: the page of measured machines, and every file that it refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import performance_table
import pytest
from generated_files import REPOSITORY
from performance_table import FOLDER, PAGE, read_folder

from sdort import console
from sdort.checkup.figures import Figure, MachineFigures
from sdort.checkup.graphs import Load, loads
from sdort.checkup.prediction import counted, expected_ms, roofline_ms
from sdort.checkup.rates import H200
from sdort.checkup.work import totals

TODAY = date(2026, 12, 1)
Values = dict[str, Any]


def figure(load: Load) -> Figure:
    work = totals(counted(load, "cuda", half=True, own=True), H200)
    expected, roofline = float(f"{expected_ms(work, H200):.4g}"), float(f"{roofline_ms(work):.4g}")
    return Figure(
        load.model, load.component, load.samples, load.width, load.height, "fp16", 1.0, 1.5, 1.2, 50,
        expected * 1.2, expected * 1.1, 1.0, roofline, expected, {},
    )  # fmt: skip


@pytest.fixture(scope="module")
def made() -> Values:
    """What a healthy H200 writes."""
    figures = MachineFigures(
        "0.1.0", "2026-11-28", "Linux", "x86_64", "3.12.3", "onnxruntime-gpu", "1.31.1", "cuda", "NVIDIA H200", "sm_90",
        141, "580.159", "", 16, True, 1980.0, 1980.0, 500.0, 700.0, 700.0, 3900.0, 700.0, 4800.0, 989.4,
        [figure(load) for load in loads(True, False)], [], "cuda", "onnxruntime-gpu",
    )  # fmt: skip
    values: Values = console.to_json(figures)
    return values


def write(folder: Path, name: str, values: object) -> None:
    (folder / name).write_text(values if isinstance(values, str) else json.dumps(values))


def test_the_page_in_the_docs_is_that_of_the_folder() -> None:
    entries, refused = read_folder(REPOSITORY / FOLDER, date.today())
    assert refused == []
    assert len(entries) >= 1
    assert (REPOSITORY / PAGE).read_text() == performance_table.page(entries)


def test_a_gpu_has_a_row(made: Values, tmp_path: Path) -> None:
    write(tmp_path, "h200.json", made)
    entries, refused = read_folder(tmp_path, TODAY)
    assert refused == []
    text = performance_table.page(entries)
    assert "| NVIDIA H200 | 580.159 | cuda, own operators, fp16 | onnxruntime-gpu 1.31.1 | 2 x 512x512 |" in text
    assert "| 1.2 |" in text
    assert "[2026-11-28](performance/h200.json) |" in text
    assert "## Processors\n\nNone yet." in text


def change(*path: str | int, to: Any) -> Callable[[Values], None]:
    """A change of one value in a file."""

    def apply(values: Values) -> None:
        place: Any = values
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to(place[path[-1]]) if callable(to) else to

    return apply


SD15_STEP = 2
LIES: dict[str, tuple[Callable[[Values], None], str]] = {
    "a field too many": (change("user", to="someone"), "it is not of the schema"),
    "a field too few": (lambda values: values.pop("card"), "it is not of the schema"),
    "a type": (change("processors", to="16"), "it is not of the schema, at \\$.processors"),
    "another schema": (change("schema", to="sdort-doctor-1"), "it is not of the schema"),
    "a path": (change("card", to="/home/someone"), "card is no plain name"),
    "a path in a key": (change("figures", 2, "on_cpu", to={"/etc/x": 1}), "is no plain name"),
    "control characters": (change("driver", to="\x1b[31m580"), "driver is no plain name"),
    "infinity": (change("figures", 2, "first_s", to="inf"), "first_s is infinite"),
    "a negative number": (change("figures", 2, "opened_s", to=-1.0), "opened_s is -1.0"),
    "a provider": (change("provider", to="magic"), "no such provider"),
    "a day to come": (change("day", to="2027-05-01"), "not measured on 2027-05-01"),
    "a day before sdort": (change("day", to="2020-01-01"), "not measured on 2020-01-01"),
    "no day": (change("day", to="2026-13-45x"), "not measured on 2026-13-45x"),
    "no card": (change("card", to=""), "does not say what was measured"),
    "a reason": (change("reasons", to=[{"code": "luck", "evidence": "found", "value": None}]), "no reason luck"),
    "other published rates": (change("published_gbs", to=9600.0), "published rates of NVIDIA H200 are others"),
    "another card's rates": (change("card", to="NVIDIA H100"), "published rates of NVIDIA H100 are others"),
    "more than the card has": (change("product_tflops", to=2000.0), "product_tflops is 2000.0, which the card"),
    "no rate": (change("copy_gbs", to=0.0), "copy_gbs is 0.0, which the card does not reach"),
    "a size": (change("figures", 2, "width", to=64), "sizes that sdort does not measure"),
    "a figure twice": (lambda values: values["figures"].append(values["figures"][2]), "or one twice"),
    "no decode": (lambda values: values["figures"].pop(), "lacks the step or the decode"),
    "a precision": (change("figures", 2, "precision", to="fp32"), "in fp32, which sdort does not measure on cuda"),
    "another roofline": (change("figures", 2, "roofline_ms", to=lambda ms: ms / 2), "ms at least, not"),
    "another expectation": (change("figures", 2, "expected_ms", to=lambda ms: ms * 1.2), "ms as it should, not"),
    "operators that were not used": (change("operators", to=False), "ms (at least|as it should), not"),
    "a median below the least": (change("figures", 2, "median_ms", to=3.0), "times that are none"),
    "no run": (change("figures", 2, "runs", to=0), "times that are none"),
    "faster than the card": (change("figures", 2, "least_ms", to=0.5), "ms, less than the card can"),
    "more processors": (change("figures", 2, "processors", to=99.0), "used 99 of 16 processors"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_is_refused_and_named(lie: str, made: Values, tmp_path: Path) -> None:
    changed, words = copy.deepcopy(made), LIES[lie]
    words[0](changed)
    write(tmp_path, "liar.json", changed)
    write(tmp_path, "good.json", made)
    entries, (line,) = read_folder(tmp_path, TODAY)
    assert [entry.name for entry in entries] == ["good.json"]
    assert line.startswith("liar.json: ")
    with pytest.raises(AssertionError, match=words[1]):
        raise AssertionError(line)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is no JSON"),
        ("[1", "it is no JSON"),
        ('{"card": NaN}', "it is no JSON"),
        ('{"card": 1, "card": 2}', "it is no JSON"),
        ("[]", "it is not of the schema"),
        (f'"{"x" * (1 << 16)}"', "it is no JSON of at most 65536 bytes"),
        ("[" * 50_000, "it is no JSON"),
    ],
)
def test_what_is_malformed_is_refused(text: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, "broken.json", text)
    entries, (line,) = read_folder(tmp_path, TODAY)
    assert (entries, line.startswith(f"broken.json: {words}")) == ([], True)


def test_a_measurement_counts_once(made: Values, tmp_path: Path) -> None:
    write(tmp_path, "a.json", made)
    write(tmp_path, "b.json", {**made, "day": "2026-11-29", "python": "3.13.0"})
    again = copy.deepcopy(made)
    again["figures"][SD15_STEP]["median_ms"] *= 1.01  # the same machine on another day is another one
    write(tmp_path, "c.json", again)
    (tmp_path / "d.json").symlink_to(tmp_path / "a.json")
    entries, refused = read_folder(tmp_path, TODAY)
    assert [entry.name for entry in entries] == ["a.json", "c.json"]
    assert refused[0] == "b.json: it is the measurement of a.json"
    assert refused[1].startswith("d.json: it is no JSON")


def test_the_script_names_what_it_refuses_and_writes_nothing(
    made: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("performance_table.PAGE", str(tmp_path / "page.md"))
    monkeypatch.setattr("generated_files.REPOSITORY", tmp_path)
    files = tmp_path / "files"
    files.mkdir()
    write(files, "bad.json", "{}")
    monkeypatch.setattr("sys.argv", ["performance_table.py", str(files)])
    assert performance_table.main() == 1
    assert capsys.readouterr().err.startswith("refused: bad.json: it is not of the schema")
    assert not (tmp_path / "page.md").exists()
    write(files, "bad.json", made)
    assert performance_table.main() == 0
    assert "NVIDIA H200" in (tmp_path / "page.md").read_text()
    monkeypatch.setattr("sys.argv", ["performance_table.py", str(files), "--check"])
    (tmp_path / "page.md").write_text("stale")
    assert performance_table.main() == 1
    assert (tmp_path / "page.md").read_text() == "stale"
