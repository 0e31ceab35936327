"""What two models have that are not of one another is told as that, and no fusion is blamed for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.tiny_pipeline import Tiny, edit_weights

from sdort.engines.original import is_recorded
from sdort.optimizer.command import optimize
from sdort.pipelines.manifest import changed_files, write_listed_files
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.bisection.blame import FUSION, OTHER, BisectionFinding, of_other_models
from sdort.verification.command_line import VerifyOptions
from sdort.verification.outcome import Provenance, remedy
from sdort.verification.pipeline_comparison import verify_pipeline

COMPONENT = "text_encoder"


@pytest.fixture
def place(tiny: Tiny, tmp_path: Path) -> Path:
    """``model``, ``fast`` that is made of it, and ``other``, with another text encoder."""
    for name in ("model", "other"):
        shutil.copytree(tiny.onnx, tmp_path / name)
    edit_weights(tmp_path / "other" / COMPONENT / "model.onnx", lambda array, _: array + 1, "final_layer_norm")
    for name in ("model", "other"):
        write_listed_files(tmp_path / name, {}, {})
    optimize(tmp_path / "model", tmp_path / "fast", provider="cuda", components=(COMPONENT,))
    return tmp_path


def searched(candidate: Path, original: Path | None, *, check: bool = True) -> Any:
    runtime = RuntimeOptions("cpu", check=check, custom_ops="off")
    return verify_pipeline(
        candidate,
        VerifyOptions(
            runtime=runtime, against=original, torch=False, components=(COMPONENT,), inputs="random", images=False,
            bisect=True,
        ),
    )  # fmt: skip


def test_another_original_is_no_fusions_fault(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = searched(place / "fast", place / "other")
    [finding, *_] = result.findings
    assert (finding.kind, finding.blamed) == (OTHER, ())
    assert (
        f"{place / 'other'} is not the model that {place / 'fast'} was made from, so that no fusion" in finding.message
    )
    told = " ".join(capsys.readouterr().err.split())
    assert "is not what" in told
    assert result.next_command.startswith(f"sdort optimize {place / 'other'} {place / 'fast-again'} --provider cuda")
    assert "--disable" not in result.next_command


@pytest.mark.parametrize("edited", ["fast", "model"])
def test_an_edited_graph_is_no_fusions_fault(edited: str, place: Path) -> None:
    manifest = (place / edited / "sdort.json").read_bytes()
    edit_weights(place / edited / COMPONENT / "model.onnx", lambda array, _: array + 1, "final_layer_norm")
    (place / edited / "sdort.json").write_bytes(manifest)  # which does not list the new weights
    [finding, *_] = searched(place / "fast", place / "model", check=False).findings
    assert finding.kind == OTHER
    assert f"{place / edited} has files that were edited since sdort wrote them (" in finding.message


def test_the_recorded_original_is_known_wherever_it_lies(place: Path) -> None:
    shutil.move(place / "model", place / "moved")
    assert is_recorded(place / "fast", place / "moved") is True
    assert is_recorded(place / "fast", place / "other") is False
    assert is_recorded(place / "moved", place / "other") is None
    assert is_recorded(place / "other" / COMPONENT / "model.onnx", place / "other") is None
    assert changed_files(place / "fast") == []
    manifest = json.loads((place / "fast" / "sdort.json").read_text())
    del manifest["optimized"]["origin"]
    (place / "fast" / "sdort.json").write_text(json.dumps(manifest))
    assert is_recorded(place / "fast", place / "other") is None


def test_the_remedy_of_other_models_disables_nothing(tmp_path: Path) -> None:
    finding = BisectionFinding(COMPONENT, "y", FUSION, "it is wrong", blamed=("attention",))
    other = of_other_models(finding, "a is not of b")
    assert other.message == "a is not of b, so that no fusion is blamed; it is wrong"
    options = VerifyOptions(runtime=RuntimeOptions("cpu"))
    made = remedy([other], tmp_path, Path("b"), Provenance(made_for="rocm", precision="fp16"), options)
    assert made is not None
    assert "--disable" not in made[1]
    assert "--fp16" in made[1]
