"""The machine code of every kernel on every AMD target, run in the emulator, against float64.

The emulator runs instructions, waves and blocks in any order, and sees what is read or written where it must not be. It
has no caches, no timing and no hazards between instructions, so it does not see what is wrong with those.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if sys.version_info < (3, 11):
    pytest.skip("tinygrad's tables need Python 3.11", allow_module_level=True)

from support import emulated
from support.emulated import Target
from support.emulator import CodeObject
from support.machine_code import objects
from support.machine_code_cases import Case, RowProblem, cases, run
from support.planted import found, nothing, planted

TARGETS = emulated.targets()
RUNS = [(target, case) for target in TARGETS for case in cases(target)]
SEVERAL = [
    (target, case)
    for target, case in RUNS
    if case.kernel.startswith("group_norm_f16_") and target.architecture in {"gfx942", "gfx1100", "gfx1201"}
]
"""Blocks that know of each other, on one target of each kind."""


def names(runs: list[tuple[Target, Case]]) -> list[str]:
    return [f"{target.architecture}-{case}" for target, case in runs]


@pytest.mark.parametrize(("target", "case"), RUNS, ids=names(RUNS))
def test_every_kernel_is_right_on_every_target(target: Target, case: Case) -> None:
    outcome = run(target, case)
    assert case.kernel in outcome.kernels
    assert outcome.same, "the order of waves or what registers held before has changed the result"
    assert outcome.error <= 1


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.architecture)
def test_every_kernel_of_an_object_has_a_case(target: Target) -> None:
    reached = {each.kernel for case in cases(target) for each in case.launches(case.problem.bind(target))}
    assert reached == set(target.code) == set(target.object.kernels)


def test_all_objects_are_run() -> None:
    assert [target.architecture for target in TARGETS] == [path.stem for path in objects("*.hsaco")]
    assert {target.machine for target in TARGETS} == {"mfma", "wmma_gfx11", "wmma_gfx12"}


def test_only_what_changes_runs_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Results are kept by kernel, tensors, launch and seed, wherever in memory the tensors lie."""
    monkeypatch.setattr(emulated, "CACHE", tmp_path)
    [target] = [each for each in TARGETS if each.architecture == "gfx1100"]
    case = next(case for case in cases(target) if case.kernel == "skip_layer_norm_f16_wide")
    ran: list[str] = []
    actual = CodeObject.run

    def counted(self: CodeObject, kernel: str, *rest: Any, **options: Any) -> None:
        ran.append(kernel)
        actual(self, kernel, *rest, **options)

    monkeypatch.setattr(CodeObject, "run", counted)
    held = case.problem.bind(target)  # as long as it is there, others lie elsewhere
    outcomes = [run(target, case, [seed]) for seed in (1, 1, 2)]
    assert len(ran) == 2
    changed = planted(target, found(target, case.kernel, "s_delay_alu")[:1], nothing)
    outcomes.append(run(Target(target.architecture, changed.data), case, [1]))
    assert len(ran) == 3
    assert len(set(outcomes)) == 1
    assert isinstance(case.problem, RowProblem)
    other = replace(case, problem=replace(case.problem, rows=replace(case.problem.rows, spread=2.0)))
    run(target, other, [1])
    assert len(ran) == 4
    del held


@pytest.mark.parametrize(("target", "case"), SEVERAL, ids=names(SEVERAL))
def test_no_block_waits_for_one_that_has_not_begun(target: Target, case: Case) -> None:
    """With one block on the device at a time, the result is that of all together."""
    bound = case.problem.bind(target)
    launches = case.launches(bound)
    alone = bound.run(target, launches, seed=1, resident=1)
    assert bound.error() <= 1
    assert alone == bound.run(target, launches, seed=1)
