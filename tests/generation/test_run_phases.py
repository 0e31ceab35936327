"""The table of ``sdort run -v``: where each second of a run went."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from support.tiny_pipeline import Tiny

from sdort import console
from sdort.cli import cli
from sdort.generation.denoising.session_groups import Opened
from sdort.generation.requests.record import StageSeconds
from sdort.generation.run_summary import REST, START, run_seconds
from sdort.machine import system


@pytest.mark.parametrize("image", [0.0, 0.5])
def test_the_rows_add_up_and_stand_in_the_order_of_the_run(image: float) -> None:
    seconds = StageSeconds(load=9.0, encode=0.25, encode_image=image, denoise=3.0, first_step=1.0, decode=0.75)
    result: Any = SimpleNamespace(seconds=seconds, opened=[])
    found = run_seconds(result, {"imports": 1.5, "image files": 0.125, "sessions": 2.0}, 12.0, 0.5)
    stages = {"text encoder": 0.25, **({"image encoder": image} if image else {}), "first step": 1.0}
    expected = {START: 0.5, "imports": 1.5, "sessions": 2.0, **stages, "other steps": 2.0, "decoder": 0.75}
    expected |= {"image files": 0.125, REST: 12.0 - sum(expected.values()) - 0.125}
    assert found == expected
    assert list(found) == list(expected)


def test_what_is_opened_several_times_says_so() -> None:
    seconds = StageSeconds(load=0.0, encode=0.25, encode_image=0.0, denoise=3.0, first_step=1.0, decode=0.75)
    result: Any = SimpleNamespace(seconds=seconds, opened=[Opened("unet", 2, 3.0), Opened("vae_decoder", 1, 0.5)])
    found = run_seconds(result, {"opening of unet": 2.5, "reading": 0.5, "opening of vae_decoder": 0.5}, 9.0, 0.5)
    assert list(found)[1:4] == ["opening of unet, 2 times", "reading", "opening of vae_decoder"]
    assert (found["opening of unet, 2 times"], sum(found.values())) == (2.5, 9.0)


def test_run_tells_where_the_time_went_if_asked_for_details(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*more: str) -> str:
        ages = iter([0.25, 1000.0])
        monkeypatch.setattr(system, "process_age", lambda: next(ages))
        command = ["run", str(tiny.onnx), "--provider", "cpu", "--prompt", "a", "--steps", "2", "--overwrite"]
        done = CliRunner().invoke(cli, [*command, "-o", str(tmp_path / "a.png"), *more], catch_exceptions=False)
        console.set_verbosity(console.SILENT)
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "Where the time went" not in said()
    assert said("-v", "--json").startswith("{")
    lines = said("-v").splitlines()
    first, last = lines.index("Where the time went"), next(at for at, line in enumerate(lines) if line[:4] == "all ")
    rows = [re.split("  +", line) for line in lines[first + 3 : last]]
    assert rows[0][:2] == [START, "0.25"]
    expected = {"imports", "comparison of files", "plan", "sessions", "tokenizers", "text encoder", "first step"}
    assert expected | {"preparation of steps", "other steps", "decoder", "image files", REST} <= {
        name for name, *_ in rows
    }
    assert re.split("  +", lines[last])[1] == "1000"
    assert sum(float(seconds) for _, seconds, _ in rows) == pytest.approx(1000, abs=1)
