"""Export and optimization in one pass: the same bytes as one after the other, and no copy of the weights between."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.pipelines import locked, trace_folder

import sdort
from sdort.checkpoints.configs import MANIFEST, write_json
from sdort.demo import DEMO, DEMO_FOLDER
from sdort.exporter.command import export, open_export
from sdort.files.user_folders import models_folder
from sdort.first_use import making
from sdort.optimizer.command import optimize, optimize_request
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.pipelines.folder import PipelineFolder

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.mark.parametrize(("provider", "fp16"), [("cpu", False), ("rocm", True)])
def test_one_pass_writes_the_bytes_of_two(
    provider: str, fp16: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    traces = trace_folder(request.config)
    graphs, one, two = (tmp_path / name for name in ("graphs", "one", "two"))
    graphs.mkdir()
    with locked(traces):
        export(DEMO, tmp_path / "model", cache_dir=traces)
        optimize(tmp_path / "model", two, provider=provider, fp16=fp16)
        with open_export(DEMO, cache_dir=traces) as opened:
            weights = opened.write(graphs)
            optimize_request(OptimizeRequest(graphs, one, weights, {}, provider=provider, fp16=fp16, check=False))
    written = sorted(path.relative_to(two) for path in two.rglob("*") if path.is_file() and path.name != MANIFEST)
    assert len(written) > 10
    for place in written:
        assert (one / place).read_bytes() == (two / place).read_bytes(), place
    assert not list(graphs.rglob("*.data"))


@pytest.fixture
def traced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checkpoints that are made ready, from traces of the tests'; without inputs for controls, whose trace is
    another one."""
    made: list[str] = []

    @contextmanager
    def opened(model: str | Path, **options: Any) -> Iterator[Any]:
        made.append(str(model))
        traces = trace_folder(request.config)
        with locked(traces), open_export(model, **{**options, "control": False}, cache_dir=traces) as export:
            yield export

    monkeypatch.setattr(making, "open_export", opened)
    return made


def test_a_folder_is_made_ready_once_and_named_in_its_images(traced: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "shapes"
    checkpoint.symlink_to(DEMO_FOLDER)
    options: dict[str, Any] = {"provider": "cpu", "steps": 1, "seed": 7}
    plan = sdort.plan_run(checkpoint, "a red star", output=tmp_path / "1.png", **options)
    assert plan.making
    assert plan.making.bytes
    assert (plan.seconds, plan.files) == (None, [tmp_path / "1.png"])
    assert not models_folder().exists() or not list(models_folder().iterdir())
    results = [sdort.run(checkpoint, "a red star", output=tmp_path / f"{n}.png", **options) for n in (1, 2)]
    assert len(traced) == 2, "the plan, and once"
    assert (results[0].images[0].pixels == results[1].images[0].pixels).all()
    with Image.open(tmp_path / "1.png") as drawn:
        assert "Model: shapes," in str(drawn.info["parameters"])
    plan = sdort.plan_run(checkpoint, "a red star", output=tmp_path / "3.png", **options)
    assert (plan.making, plan.width, plan.steps) == (None, 64, 1)
    assert plan.seconds
    assert sdort.plan_run(checkpoint, "a", size="64x96", output=tmp_path / "3.png", provider="cpu").seconds is None
    [entry] = sdort.list_cache(["models"]).entries
    assert (entry.checkpoint, entry.provider, entry.precision, entry.in_use) == ("shapes", "cpu", "fp32", True)


DIGEST = hashlib.sha256(b"a file").hexdigest()
MADE: dict[str, Any] = {"from": "/m/dream.v1.safetensors"}


@pytest.mark.parametrize(
    ("manifest", "name", "digest", "given"),
    [
        pytest.param({}, "folder", None, None, id="of no manifest"),
        pytest.param({"source": "x.safetensors"}, "x", None, None, id="of an exported file"),
        pytest.param({"source": "owner/na.me"}, "owner/na.me", None, None, id="of a hub id"),
        pytest.param(
            {"source": "x.safetensors", "optimized": {**MADE, "checkpoint": "dream.v1", "sha256": DIGEST}},
            "dream.v1",
            DIGEST,
            "/m/dream.v1.safetensors",
            id="made on first use",
        ),
        pytest.param(
            {"optimized": {"from": "/hub/snapshots/0", "checkpoint": "owner/na.me"}},
            "owner/na.me",
            None,
            "owner/na.me",
            id="made of a hub id",
        ),
        pytest.param(
            {"optimized": {**MADE, "checkpoint": "d", "sha256": "no digest"}}, "d", None, MADE["from"], id="of no hash"
        ),
    ],
)
def test_what_a_pipeline_is_called_by(
    manifest: dict[str, Any], name: str, digest: str | None, given: str | None, tmp_path: Path
) -> None:
    """``given`` is what a person names it by, where that is not its folder."""
    place = tmp_path / "folder"
    place.mkdir()
    write_json(place / MANIFEST, manifest)
    folder = PipelineFolder(place, {})
    assert folder.checkpoint == name
    assert folder.checkpoint_sha256 == digest
    assert folder.given == (given or str(place))
