"""docs/add-an-option.md, followed literally in a copy of the sources: its two places are all that an option takes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-an-option.md").read_text()
PLACES = 2
TOLD = """
import dataclasses, json, sys
from pathlib import Path
from click.testing import CliRunner
from sdort.cli import cli
from sdort.errors import UsageError
from sdort.generation.files.from_image import REPLAYED
from sdort.generation.files.infotext import parameters_text, read_infotext
from sdort.generation.requests.schedule_cache import CachedSchedule
from sdort.generation.requests.record import GenerationRecord
from sdort.generation.requests.request import Request, sampler_of
from sdort.generation.schedules.schedule_part import Part
from sdort.generation.requests.typed_options import GenerationOptions
from sdort.pipelines.folder import PipelineFolder

folder = PipelineFolder(Path(sys.argv[1]), {})
plain, other = Request("a", scheduler="ddim"), Request("a", scheduler="ddim", beta_end=0.03)
empty = {field.name: "" for field in dataclasses.fields(GenerationRecord)} | {"versions": {"sdort": "0"}}
record = GenerationRecord(**{**empty, "lora": [], "templates": {}, "only_masked": False, "beta_end": 0.03})
try:
    Request("a", beta_end=0.5)
except UsageError as error:
    refused = str(error)
print(json.dumps({
    "help": "--beta-end" in CliRunner().invoke(cli, ["run", "--help-all"]).output,
    "keyword": GenerationOptions.__annotations__["beta_end"].__forward_arg__,
    "refused": refused,
    "recorded": other.recorded()["beta_end"],
    "replayed": REPLAYED["beta_end"],
    "written": "Beta end: 0.03" in parameters_text(record, 5),
    "read": read_infotext("a\\nSteps: 3, Seed: 5, Beta end: 0.02").options["beta_end"],
    "other key": len({json.dumps(CachedSchedule(folder, each, 5)._key(Part())) for each in (plain, other)}),
    "other schedule": not (sampler_of(folder, plain, 5).shares == sampler_of(folder, other, 5).shares).all(),
}))
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with what the page changes."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("sdort", "scripts"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "results", "model"))
    for number, change in enumerate(re.findall(r"```diff\n(.+?)```", PAGE, re.DOTALL)):
        file = copy / f"{number}.diff"
        file.write_text(change)
        subprocess.run(["git", "apply", str(file)], cwd=copy, check=True)
    return copy


def _run(copy: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_option_has_two_places(changed: Path, tmp_path: Path) -> None:
    assert len(re.findall(r"^\+\+\+ ", PAGE, re.MULTILINE)) == PLACES
    _run(changed, "scripts/option_keywords.py")
    (tmp_path / "scheduler").mkdir()
    config = {"_class_name": "DDIMScheduler", "beta_start": 0.0001, "beta_end": 0.02, "num_train_timesteps": 1000}
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    assert json.loads(_run(changed, "-c", TOLD, str(tmp_path))) == {
        "help": True,
        "keyword": "float | None",
        "refused": "--beta-end 0.5 is not a number from 0.0001 to 0.1: it is the variance of the last step's noise",
        "recorded": 0.03,
        "replayed": "beta_end",
        "written": True,
        "read": 0.02,
        "other key": 2,
        "other schedule": True,
    }  # fmt: skip
