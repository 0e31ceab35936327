"""docs/add-an-option.md, followed literally in a copy of the sources: its two places are all that an option takes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sdort.options.number_ranges import flag_of

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


@dataclass(frozen=True)
class Row:
    """A row of the page's table of commands."""

    command: str
    file: str
    declared_in: str
    arrives_in: str
    rest: str

    @property
    def option(self) -> str:
        """The name of an option that nobody else has."""
        return f"imagined_by_{self.declared_in.lower()}"


ROWS = [
    Row(*cells)
    for cells in re.findall(r"^\| `(\w+)` \| `(sdort/\S+\.py)` \| `(\w+)` \| `(\w+)`(.*) \|$", PAGE, re.MULTILINE)
]
IMAGINED = '    {}: int = option(3, within=(1, 9, "it is imagined"), help="Nothing yet.", doc="Number of nothing.")\n'
ARRIVED = """
import importlib, inspect, json, sys
from click.testing import CliRunner
from sdort.options import declared_options

made, make = [], declared_options.made_of
declared_options.made_of = lambda owner, given, **more: made.append(make(owner, given, **more)) or made[-1]

import sdort
from sdort.cli import cli
from sdort.errors import UsageError
from sdort.exporter.export_options import ExportOptions

STOPS = {
    "optimize": ("sdort.optimizer.command", ["_check_request"], ["a", "b"], []),
    "verify": ("sdort.verification.command", ["verify_pipeline"], ["a"], []),
    "warm": ("sdort.warmup.command", ["pipeline_folder", "ready_folder"], ["a"], []),
    "bench": ("sdort.benchmark.command", ["measure_pipeline"], ["a"], []),
    "export": ("sdort.exporter.command", ["_export", "check_output"], ["a", "b"], []),
    "upscale": ("sdort.generation.upscaled_files", ["read_picture"], ["a"], ["--model", "b"]),
}

class Stopped(BaseException):
    pass

def stop(*_, **__):
    raise Stopped

def arrived(name, call, *arguments, **options):
    made.clear()
    try:
        call(*arguments, **options)
    except Stopped:
        pass
    return {type(each).__name__: getattr(each, name) for each in made if getattr(each, name, 3) != 3}

def told(name, command):
    module, stops, paths, words = STOPS[command]
    for each in stops:
        setattr(importlib.import_module(module), each, stop)
    run, call, plan = CliRunner().invoke, getattr(sdort, command), getattr(sdort, f"plan_{command}", None)
    given, words, flag = [*paths, *words[1:]], [command, *paths, *words], f"--{name.replace('_', '-')}"
    try:
        call(*given, **{name: 99})
    except UsageError as error:
        refused = str(error)
    planned = plan and name in {**inspect.signature(plan).parameters, **ExportOptions.__annotations__}
    return {
        "help": f"{flag} INTEGER" in run(cli, [command, "--help-all"]).output,
        "refused": refused,
        "refused as a word": run(cli, [*words, flag, "99"]).exit_code,
        "arrives": arrived(name, call, *given, **{name: 5}),
        "arrives as a word": arrived(name, run, cli, [*words, flag, "5"]),
        "is planned": arrived(name, plan, *given, **{name: 5}) if planned else {},
        "is planned as a word": arrived(name, run, cli, [*words, flag, "5", "--dry-run"]) if plan else {},
    }

print(json.dumps({name: told(name, command) for name, command in json.loads(sys.argv[1]).items()}))
"""


def test_every_command_makes_all_of_a_declaration(changed: Path) -> None:
    for row in ROWS:
        path, imagined = changed / row.file, IMAGINED.format(row.option)
        first = rf"(?s)(\nclass {row.declared_in}\b.+?\n)(    \w+: [^\n]+ = option)"
        text, count = re.subn(first, rf"\1{imagined}\2", path.read_text(), count=1)
        assert count == 1, row
        path.write_text(text)
    _run(changed, "scripts/option_keywords.py")
    assert [row for row in ROWS if f"    {row.option}: int\n" not in (changed / row.file).read_text()] == []
    found = json.loads(_run(changed, "-c", ARRIVED, json.dumps({row.option: row.command for row in ROWS})))
    assert {row.command for row in ROWS} == {"optimize", "verify", "warm", "bench", "export", "upscale"}
    for row in ROWS:
        arrives = {row.arrives_in: 5}
        planned = arrives if "--dry-run" in row.rest else {}
        assert found[row.option] == {
            "help": True,
            "refused": f"{flag_of(row.option)} 99 is not a whole number from 1 to 9: it is imagined",
            "refused as a word": 2,
            "arrives": arrives,
            "arrives as a word": arrives,
            "is planned": planned,
            "is planned as a word": planned,
        }, row
