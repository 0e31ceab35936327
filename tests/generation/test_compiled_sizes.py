"""Sizes on a provider that compiles programs: said before a run, compiled if asked, or replaced by the nearest one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from PIL import Image
from support.compiling import compiling, keep_seconds
from support.tiny_pipeline import Tiny

import sdort
from sdort.cli import cli
from sdort.errors import ProviderError
from sdort.tuning.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

Compiled = list[tuple[str, tuple[int, ...]]]


@pytest.fixture(autouse=True)
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiled]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with compiling() as found:
        yield found


def run(tiny: Tiny, output: Path, *options: str, size: str = "16x16", prompt: str = "a star") -> Result:
    words = ["run", str(tiny.onnx), "--provider", "migraphx", "--prompt", prompt, "--steps", "2", "--seed", "1"]
    return CliRunner().invoke(cli, [*words, "--size", size, "-o", str(output), *options])


def size_of(file: Path) -> tuple[int, int]:
    with Image.open(file) as image:
        return image.size


def test_a_size_that_is_not_compiled_is_said_before_anything_runs(
    tiny: Tiny, tmp_path: Path, compiled: Compiled
) -> None:
    result = run(tiny, tmp_path / "a.png")
    assert result.exit_code == 6, result.output
    error = result.stderr[result.stderr.index("Error") :]
    for part in ("text_encoder, batch 1", "unet, batch 2, 16x16", "vae_decoder, batch 1, 16x16", "--compile"):
        assert part in error
    assert "nearest" not in error
    assert not compiled
    assert not (tmp_path / "a.png").exists()


def test_with_compile_the_run_goes_on_and_the_next_one_finds_it(tiny: Tiny, tmp_path: Path, compiled: Compiled) -> None:
    assert run(tiny, tmp_path / "a.png", "--compile").exit_code == 0
    # What was said is what was compiled, and the rest of the pipeline runs on nothing else.
    assert sorted(name for name, _ in compiled) == ["text_encoder", "unet", "vae_decoder"]
    count = len(compiled)
    assert run(tiny, tmp_path / "b.png").exit_code == 0
    assert len(compiled) == count
    assert (tmp_path / "a.png").read_bytes()[-64:] == (tmp_path / "b.png").read_bytes()[-64:]
    keep_seconds(1805.0)
    refused = run(tiny, tmp_path / "c.png", size="24x16")
    assert refused.exit_code == 6
    assert "unet, batch 2, 24x16 (it took 0:30:05 last time" in refused.stderr
    assert "--nearest-size takes 16x16, which is compiled" in refused.stderr
    assert "text_encoder" not in refused.stderr


def test_the_nearest_size_is_taken_if_asked(tiny: Tiny, tmp_path: Path, compiled: Compiled) -> None:
    for size in ("16x16", "32x16"):
        assert run(tiny, tmp_path / f"{size}.png", "--compile", size=size).exit_code == 0
    count = len(compiled)
    result = run(tiny, tmp_path / "a.png", "--nearest-size", size="24x8")
    assert result.exit_code == 0, result.output
    assert "24x8 is not compiled for migraphx; generating 32x16" in result.stderr
    assert size_of(tmp_path / "a.png") == (32, 16)
    assert run(tiny, tmp_path / "b.png", "--nearest-size", size="16x16").exit_code == 0
    assert size_of(tmp_path / "b.png") == (16, 16)
    assert len(compiled) == count


def test_what_no_plan_foresees_is_looked_at_when_it_runs(tiny: Tiny, tmp_path: Path, compiled: Compiled) -> None:
    assert run(tiny, tmp_path / "a.png", "--compile").exit_code == 0
    prompt = "star " * 90  # two chunks
    refused = run(tiny, tmp_path / "b.png", prompt=prompt)
    assert refused.exit_code == 6
    assert "migraphx has no program yet for unet with sample 2x4x" in refused.stderr
    assert run(tiny, tmp_path / "b.png", "--compile", prompt=prompt).exit_code == 0


def test_an_open_pipeline_refuses_too(tiny: Tiny, compiled: Compiled) -> None:
    options: Any = {"steps": 2, "seed": 1, "size": "16x16"}
    refused = pytest.raises(ProviderError, match="migraphx has no program yet for")
    with sdort.load(tiny.onnx, provider="migraphx") as pipeline, refused:
        pipeline.generate("a star", **options)
    with sdort.load(tiny.onnx, provider="migraphx", compile=True) as pipeline:
        assert pipeline.generate("a star", **options).images[0].pixels.shape == (16, 16, 3)
    with sdort.load(tiny.onnx, provider="migraphx", nearest_size=True) as pipeline:
        assert pipeline.generate("a star", **{**options, "size": "24x16"}).images[0].pixels.shape == (16, 16, 3)


def test_what_was_warmed_runs(tiny: Tiny, tmp_path: Path, compiled: Compiled) -> None:
    warmed = sdort.warm(tiny.onnx, provider="migraphx", sizes=[(16, 16)])
    assert {item.status for item in warmed.items} == {"new"}
    assert all(item.before_s for item in warmed.items)
    count = len(compiled)
    assert count == len(Store().names())
    assert {item.status for item in sdort.warm(tiny.onnx, provider="migraphx", sizes=[(16, 16)]).items} == {"kept"}
    assert run(tiny, tmp_path / "a.png").exit_code == 0
    assert len(compiled) == count
