"""What every kernel's header says: formula, shapes, geometry, roofline, and what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import ops_benchmark
import pytest
from support import native

from sdort.operator_library.library import describe_library

HEADERS = sorted(
    {path.with_name(f"{path.parent.name}.h") for path in native.SOURCE.glob("operators/*/*kernel.h")},
    key=lambda path: path.stem,
)
"""One for every folder with kernels, of its name."""
PARTS = ("Shapes", "Geometry", "Roofline", "Measured")


def comment(path: Path) -> str:
    """The comment that the header begins with, without its slashes."""
    lines = path.read_text().split("\n#pragma once")[0].splitlines()
    assert all(line.startswith("//") for line in lines), path.name
    return "\n".join(line[2:] for line in lines)


def part(path: Path, name: str) -> str:
    found = re.search(rf"^ {name} +(.*?)(?=^ [A-Z]\w+  |\Z)", comment(path), re.M | re.S)
    assert found, f"{path.name} has no {name}"
    return " ".join(found[1].split())


def measured() -> dict[tuple[str, str], tuple[float, str]]:
    """Operator and shape -> microseconds and share of the copy's bandwidth, as MEASURED.md has them."""
    rows = {}
    for line in (native.SOURCE / "MEASURED.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8 and re.fullmatch(r"[\d.]+", cells[3]):
            rows[cells[0], cells[1]] = float(cells[3]), cells[6]
    return rows


def unmeasured(text: str | None = None) -> set[str]:
    """The operators of which a table says so, by default that of MEASURED.md."""
    text = text or (native.SOURCE / "MEASURED.md").read_text()
    return set(re.findall(r"^\| (\w+) \| not measured \|", text, re.M))


def test_every_operator_is_in_the_table() -> None:
    """Of those that GPUs have: with a measurement, or without one."""
    operators = {each.name for each in describe_library(native.library()).operators if each.gpu}
    assert operators == {name for name, _ in measured()} | unmeasured()


def test_the_benchmark_tells_what_it_has_not_measured() -> None:
    operators = {each.name for each in describe_library(native.library()).operators if each.gpu}
    missing = ops_benchmark.unmeasured([{"operator": "BiasAdd"}], native.library())
    assert missing == sorted(operators - {"BiasAdd"})
    assert unmeasured(ops_benchmark.markdown([], None, missing)) == set(missing)


def test_the_benchmark_has_cases_of_every_operator() -> None:
    cases = [{"operator": case.operator} for case in ops_benchmark.CASES]
    assert ops_benchmark.unmeasured(cases, native.library()) == []


MODULATIONS = ("Modulated", "TwiceModulated", "RMS")


@pytest.mark.parametrize(
    "case",
    [
        ops_benchmark.bias_group_norm(4, 64),
        ops_benchmark.bias_layer_norm(6, 32),
        ops_benchmark.interleave_phases(3, 8),
        ops_benchmark.rotary_embedding(40, 2, 16, norm=False),
        ops_benchmark.rotary_embedding(40, 2, 16, norm=True, neighbours=False, batch=2),
        *(ops_benchmark.modulated_norm(40, 64, kind, gated) for kind in MODULATIONS for gated in (False, True)),
        ops_benchmark.gated_sum(40, 64, batch=2),
        ops_benchmark.split_gate(40, 64, "Silu"),
        ops_benchmark.split_gate(40, 64, "FastGelu"),
        ops_benchmark.attention(130, 77, 2, 40),
        ops_benchmark.bias_split_gelu(40, 16),
    ],
    ids=lambda case: case.operator,
)
def test_the_benchmark_knows_what_operators_compute(case: ops_benchmark.Case) -> None:
    values = case.inputs(np.random.default_rng(0))
    model = ops_benchmark.build(case, 1, [values])
    runner = ops_benchmark.Runner(model, ops_benchmark.feeds(case, [values], 1), "cpu", native.library(), False)
    exact = case.reference(values)
    assert np.abs(runner.output("Y_0")[:, case.rows] - exact).max() < 5e-3 * exact.std()


def test_every_kernel_has_a_header() -> None:
    assert [path.stem for path in HEADERS] == sorted(native.kernel_operators())
    assert all(path.exists() for path in HEADERS)


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.stem)
def test_formula_shapes_geometry_and_roofline(path: Path) -> None:
    assert re.match(r" \w+[:,].* = .*", comment(path)), "the first line is the formula"
    for name in PARTS:
        text = part(path, name)
        assert len(text) > 20 or (name, text) == ("Measured", "not measured."), name
    roofline = part(path, "Roofline")
    for word in (r"\bbytes\b", r"\bflops\b|exponentials", "-bound|bound by", r"\d"):
        assert re.search(word, roofline, re.I), word


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.stem)
def test_what_was_measured_is_in_the_table(path: Path) -> None:
    """Device and date, at least two shapes, each as MEASURED.md has it, and what was not measured.

    Or that nothing was, which the table then says, too.
    """
    text = part(path, "Measured")
    operators = {each.name for each in describe_library(native.library()).operators}
    [operator] = [name for name in operators if comment(path).startswith((f" {name}:", f" {name},"))]
    assert (text == "not measured.") == (operator in unmeasured())
    if operator in unmeasured():
        assert operator not in {name for name, _ in measured()}
        return
    found = re.fullmatch(r"(?:H100 80GB|H200), 2\d{3}-\d\d-\d\d, fp16: (.*); not measured on AMD hardware\.", text)
    assert found, text
    rows = [re.fullmatch(r"(.+) ([\d.]+) µs \((\d+%) of copy\)", each) for each in found[1].split(", ")]
    assert len(rows) >= 2
    for row in rows:
        assert row
        microseconds, share = measured()[operator, row[1]]
        assert (f"{microseconds:.1f}", share) == (row[2], row[3]), row[1]
