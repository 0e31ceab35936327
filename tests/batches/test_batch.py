"""Batches: what is drawn is in the journal once, however often they are ended; lines that are bad are set aside."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from pyarrow import parquet
from support.tiny_pipeline import Tiny

import sdort
from sdort.batches import archive
from sdort.batches import command as module
from sdort.batches.journal import IMAGES, SET_ASIDE, open_journal
from sdort.cli import cli
from sdort.errors import BadModelError, MissingPackageError, OutputError, ProviderError, UsageError
from sdort.generation.command import Pipeline, load_folder
from sdort.providers.runtime_options import RuntimeOptions

SETTINGS: Mapping[str, Any] = {"provider": "cpu", "steps": 1, "guidance_scale": 1.5, "height": 64, "width": 64}
LINES: tuple[dict[str, Any], ...] = (
    {"prompt": "a", "seed": 7, "id": "seven"},
    {"prompt": "b", "negative_prompt": "fog"},
    {"prompt": "c", "num_images": 2, "id": "pair"},
    {"prompt": "d", "steps": 2},
    {"prompt": "e", "seed": "8-9", "id": "seeds"},
    {"prompt": "f"},
)
FILES = (
    "seven.png",
    "000002.png",
    "pair-0.png",
    "pair-1.png",
    "000004.png",
    "seeds-0.png",
    "seeds-1.png",
    "000006.png",
)


@pytest.fixture(autouse=True, scope="module")
def _loaded_once(tiny: Tiny) -> Iterator[None]:
    opened: dict[Any, Pipeline] = {}
    load, close = load_folder, Pipeline.close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_folder", lambda path, runtime: opened.setdefault(path, load(path, runtime)))
        patch.setattr(Pipeline, "close", lambda self: None)
        yield
    for pipeline in opened.values():
        close(pipeline)


def written(folder: Path, lines: Sequence[Any]) -> Path:
    path = folder / "q.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def entries(out: Path, name: str = IMAGES) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def pixels(path: Path) -> Any:
    return np.asarray(Image.open(path))


def test_each_image_is_what_a_run_draws_and_stands_in_the_journal(tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = sdort.batch(tiny.onnx, written(tmp_path, LINES), out, **SETTINGS)
    assert (report.images, report.done_before, report.set_aside, report.withheld) == (8, 0, 0, 0)
    assert report.provider == "cpu"
    assert not (out / SET_ASIDE).exists()
    found = {entry["file"]: entry for entry in entries(out)}
    assert sorted(found) == sorted(FILES) == sorted(path.name for path in out.glob("*.png"))
    for name, entry in found.items():
        content = (out / name).read_bytes()
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
        assert entry["bytes"] == len(content)
        assert entry["id"] == name.partition(".")[0].partition("-")[0]
    assert (found["seven.png"]["seed"], found["seeds-1.png"]["seed"], found["pair-1.png"]["index"]) == (7, 9, 1)
    assert found["pair-1.png"]["seed"] == found["pair-0.png"]["seed"] + 1
    pipeline = load_folder(tiny.onnx, RuntimeOptions("cpu"))
    more = {name: value for name, value in SETTINGS.items() if name != "provider"}
    for name, prompt, own in (
        ("seven.png", "a", {}),
        ("000002.png", "b", {"negative_prompt": "fog"}),
        ("pair-1.png", "c", {}),
        ("000004.png", "d", {"steps": 2}),
    ):
        alone = pipeline.generate(prompt, **{**more, **own, "seed": found[name]["seed"]}).images[0].pixels
        np.testing.assert_allclose(pixels(out / name).astype(int), alone.astype(int), atol=1)


def test_lines_of_one_setting_are_drawn_together_wherever_they_stand(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[list[int]] = []
    own = Pipeline.generate_job

    def generate(self: Pipeline, job: Any, *rest: Any) -> Any:
        jobs.append(list(job.lines))
        return own(self, job, *rest)

    monkeypatch.setattr(Pipeline, "generate_job", generate)
    sdort.batch(tiny.onnx, written(tmp_path, LINES), tmp_path / "out", **SETTINGS, images_at_once=4)
    assert sorted(jobs) == [[1, 2, 5, 5, 6], [3, 3], [4]]


def test_a_seed_for_all_lines_is_that_of_lines_without_one(tiny: Tiny, tmp_path: Path) -> None:
    sdort.batch(tiny.onnx, written(tmp_path, LINES[:2]), tmp_path / "out", **SETTINGS, seed=5)
    assert [entry["seed"] for entry in entries(tmp_path / "out")] == [7, 5]


@pytest.mark.parametrize(("text", "seeds"), [("5", [7, 5]), ("5,8-9", [7, 5, 8, 9])])
def test_the_command_takes_seeds_as_a_run_does(tiny: Tiny, tmp_path: Path, text: str, seeds: list[int]) -> None:
    command = ["batch", str(tiny.onnx), "--prompts", str(written(tmp_path, LINES[:2])), "--out", str(tmp_path / "out")]
    options = ["--provider", "cpu", "--steps", "1", "--size", "64x64"]
    done = CliRunner().invoke(cli, [*command, *options, "--seed", text], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [entry["seed"] for entry in entries(tmp_path / "out")] == seeds
    done = CliRunner().invoke(cli, [*command, *options, "--seed", "some"])
    assert (done.exit_code, "--seed 'some' is not a whole number" in done.output) == (2, True)


def test_a_second_run_draws_what_is_missing_alone(tiny: Tiny, tmp_path: Path) -> None:
    path, out = written(tmp_path, LINES), tmp_path / "out"
    sdort.batch(tiny.onnx, path, out, **SETTINGS)
    before = {name: (out / name).read_bytes() for name in FILES}
    (out / "pair-1.png").unlink()
    (out / "seven.png").write_bytes(b"cut off")
    report = sdort.batch(tiny.onnx, path, out, **SETTINGS)
    assert (report.images, report.done_before) == (2, 6)
    assert {name: (out / name).read_bytes() for name in FILES} == before
    assert len(entries(out)) == 10
    nothing = sdort.batch(tiny.onnx, path, out, **SETTINGS)
    assert (nothing.images, nothing.done_before, nothing.provider, nothing.images_per_second) == (0, 8, None, None)


def test_more_lines_go_on_and_changed_ones_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sdort.batch(tiny.onnx, written(tmp_path, LINES[:2]), out, **SETTINGS)
    assert sdort.batch(tiny.onnx, written(tmp_path, LINES), out, **SETTINGS).done_before == 2
    for lines, more in (([{**LINES[0], "prompt": "z"}], {}), (LINES, {"steps": 3}), (LINES, {"lora_folder": tmp_path})):
        with pytest.raises(OutputError, match="has images of seven that were drawn with another model"):
            sdort.batch(tiny.onnx, written(tmp_path, lines), out, **{**SETTINGS, **more})


def test_a_line_that_was_cut_off_is_taken_away(tiny: Tiny, tmp_path: Path) -> None:
    path, out = written(tmp_path, LINES), tmp_path / "out"
    sdort.batch(tiny.onnx, path, out, **SETTINGS)
    whole = (out / IMAGES).read_bytes()
    for cut in (1, 30, len(whole.splitlines()[-1])):
        (out / IMAGES).write_bytes(whole[:-cut])
        report = sdort.batch(tiny.onnx, path, out, **SETTINGS)
        assert (report.images, report.done_before) == (1, 7)
        assert [entry["file"] for entry in entries(out)] == [
            entry["file"] for entry in map(json.loads, whole.splitlines())
        ]


@pytest.mark.parametrize(
    "line", ["{}", "nonsense", '{"id": "a", "line": 1, "index": 0, "seed": 1, "prompt": "", "file": "../x", "key": ""}']
)
def test_a_journal_of_something_else_is_refused(line: str, tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / IMAGES).write_text(line + "\n")
    with pytest.raises(BadModelError, match=r"line 1 of .*images\.jsonl is none of a journal of sdort batch"):
        sdort.batch(tiny.onnx, written(tmp_path, LINES), tmp_path, **SETTINGS)
    assert (tmp_path / IMAGES).read_text() == line + "\n"


def test_bad_lines_are_set_aside(tiny: Tiny, tmp_path: Path) -> None:
    bad: list[Any] = [
        "nonsense",
        {"prompt": "a", "steps": 0},
        {"prompt": "a", "size": "63x64"},
        {"prompt": "a", "scheduler": "no"},
        {"prompt": "[a:b"},
        {"prompt": "a", "seed": "x"},
        {"prompt": "a", "mask_blur": 4},
    ]
    out = tmp_path / "out"
    mixed = [line for pair in zip(LINES, bad, strict=False) for line in pair] + bad[len(LINES) :]
    report = sdort.batch(tiny.onnx, written(tmp_path, mixed), out, **SETTINGS)
    aside = {entry["line"]: entry["problem"] for entry in entries(out, SET_ASIDE)}
    wanted = {2 * number: bad[number - 1] for number in range(1, len(LINES) + 1)} | {len(mixed): bad[-1]}
    missed = {number: wanted[number] for number in wanted.keys() - aside.keys()}
    assert missed in ({}, {10: {"prompt": "[a:b"}})  # a bracket that does not close is a text
    assert aside.keys() <= wanted.keys()
    assert all(f"line {number} of" in problem for number, problem in aside.items())
    assert report.images == 8 + len(missed)
    assert report.set_aside == len(aside)


def test_a_line_whose_image_shows_nothing_is_set_aside(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Pipeline.generate_job

    def generate(self: Pipeline, job: Any, paths: Any, on_image: Any) -> Any:
        return own(self, job, paths, lambda number, image: on_image(number, None if job.lines[number] == 3 else image))

    monkeypatch.setattr(Pipeline, "generate_job", generate)
    report = sdort.batch(tiny.onnx, written(tmp_path, LINES), tmp_path / "out", **SETTINGS)
    assert (report.images, report.set_aside) == (6, 1)
    assert entries(tmp_path / "out", SET_ASIDE) == [{"id": "pair", "line": 3, "problem": "its image shows nothing"}]


def test_what_is_no_lines_fault_ends_the_batch_and_what_is_drawn_stays(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, calls = Pipeline.generate_job, list[int]()

    def generate(self: Pipeline, job: Any, *rest: Any) -> Any:
        calls.append(job.images)
        if len(calls) == 2:
            raise ProviderError("the GPU is gone")
        return own(self, job, *rest)

    path, out = written(tmp_path, LINES), tmp_path / "out"
    monkeypatch.setattr(Pipeline, "generate_job", generate)
    with pytest.raises(ProviderError, match="the GPU is gone"):
        sdort.batch(tiny.onnx, path, out, **SETTINGS)
    assert len(entries(out)) == calls[0]
    assert f"{calls[0]} images were drawn; the same command goes on behind them" in " ".join(
        capsys.readouterr().err.split()
    )
    assert sdort.batch(tiny.onnx, path, out, **SETTINGS).done_before == calls[0]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_a_file_without_lines(text: str, tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UsageError, match="has no prompts"):
        sdort.batch(tiny.onnx, tmp_path / "a.txt", tmp_path / "out", **SETTINGS)


def test_an_unknown_option(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="there is no option output of a batch"):
        sdort.batch(tiny.onnx, written(tmp_path, LINES), tmp_path / "out", output="a.png")  # type: ignore[call-arg]


def test_an_option_for_all_lines_is_checked_before_anything_is_written(tiny: Tiny, tmp_path: Path) -> None:
    for wrong in ({"steps": 0}, {"scheduler": "none"}, {"lora": [3]}, {"image_format": "gif"}):
        with pytest.raises(UsageError):
            sdort.batch(tiny.onnx, written(tmp_path, LINES), tmp_path / "out", **{**SETTINGS, **wrong})
    assert not (tmp_path / "out").exists()


def test_all_images_in_one_parquet_file(tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for lines, count in ((LINES[:2], 2), (LINES, 8)):  # the second time it is replaced
        report = sdort.batch(tiny.onnx, written(tmp_path, lines), out, **SETTINGS, archive="parquet")
        assert report.archive == [out / "images.parquet"]
        rows = parquet.read_table(out / "images.parquet").to_pylist()
        assert len(rows) == count
    assert [row["file"] for row in rows] == list(FILES)
    for row, entry in zip(rows, sorted(entries(out), key=lambda each: (each["line"], each["index"])), strict=True):
        assert row == {**entry, "image": (out / row["file"]).read_bytes()}


def test_all_images_in_tar_files(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, path = tmp_path / "out", written(tmp_path, [{**LINES[0], "id": "v1.5"}, *LINES[1:]])
    sdort.batch(tiny.onnx, path, out, **SETTINGS)
    (out / "v1.5.png").unlink()  # drawn again: of two entries the last counts
    sizes = [path.stat().st_size for path in out.glob("*.png")]
    monkeypatch.setattr(archive, "SHARD_BYTES", 3 * max(sizes))
    report = sdort.batch(tiny.onnx, path, out, **SETTINGS, archive="webdataset")
    assert [path.name for path in report.archive] == [
        f"images-{number:06}.tar" for number in range(len(report.archive))
    ]
    assert len(report.archive) >= 3
    samples: dict[str, dict[str, bytes]] = {}
    for shard in report.archive:
        with tarfile.open(shard) as tar:
            for member in tar:
                key, _, suffix = member.name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                samples.setdefault(key, {})[suffix] = file.read()
    assert len(samples) == 8
    for key, sample in samples.items():
        assert json.loads(sample["json"])["sha256"] == hashlib.sha256(sample["png"]).hexdigest(), key
    assert json.loads(samples["v1%2E5"]["json"])["id"] == "v1.5"


def test_an_archive_of_images_that_were_changed_is_not_written(tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sdort.batch(tiny.onnx, written(tmp_path, LINES[:2]), out, **SETTINGS)
    (out / "seven.png").write_bytes(b"shorter")
    with pytest.raises(BadModelError, match=r"seven\.png is not as images\.jsonl says"):
        archive.write_archive("webdataset", out)
    assert not list(out.glob("*.tar"))


def test_a_parquet_file_without_its_package_is_refused_first(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match="pyarrow is not installed"):
        sdort.batch(tiny.onnx, written(tmp_path, LINES), tmp_path / "out", **SETTINGS, archive="parquet")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("first", [True, False])
def test_two_lines_never_have_one_file(first: bool, tiny: Tiny, tmp_path: Path) -> None:
    """The second image of ``pair`` is ``pair-1``, which another line may be called."""
    lines: list[dict[str, Any]] = [{"prompt": "a", "num_images": 2, "id": "pair"}, {"prompt": "b", "id": "pair-1"}]
    path, out = written(tmp_path, lines if first else lines[::-1]), tmp_path / "out"
    for done_before in (0, 2):
        report = sdort.batch(tiny.onnx, path, out, **SETTINGS)
        assert (report.images, report.done_before, report.set_aside) == (2 - done_before, done_before, 1)
        assert sorted(entry["file"] for entry in entries(out)) == ["pair-0.png", "pair-1.png"]
        for entry in entries(out):
            assert entry["sha256"] == hashlib.sha256((out / entry["file"]).read_bytes()).hexdigest()
    assert entries(out, SET_ASIDE)[0]["problem"] == f"pair-1.png is an image of {'pair' if first else 'pair-1'}"


def test_an_archive_has_images_whose_lines_have_moved(tiny: Tiny, tmp_path: Path) -> None:
    out, moved = tmp_path / "out", {"prompt": "z", "id": "new"}
    sdort.batch(tiny.onnx, written(tmp_path, LINES[:1]), out, **SETTINGS)
    sdort.batch(tiny.onnx, written(tmp_path, [moved, LINES[0]]), out, **SETTINGS, archive="parquet")
    assert parquet.read_table(out / "images.parquet")["id"].to_pylist() == ["new", "seven"]


@pytest.mark.parametrize("theirs", [b"a photograph", b""])
def test_a_file_of_somebody_elses_is_not_replaced(theirs: bytes, tiny: Tiny, tmp_path: Path) -> None:
    out, path = tmp_path / "out", written(tmp_path, LINES)
    out.mkdir()
    (out / "pair-1.png").write_bytes(theirs)
    with pytest.raises(OutputError, match=r"pair-1\.png exists and is no image of sdort's"):
        sdort.batch(tiny.onnx, path, out, **SETTINGS)
    assert (out / "pair-1.png").read_bytes() == theirs
    (out / "pair-1.png").unlink()
    sdort.batch(tiny.onnx, path, out, **SETTINGS)
    lines = (out / IMAGES).read_bytes().splitlines(keepends=True)
    (out / IMAGES).write_bytes(b"".join(lines[:-1]))  # as if it was killed behind the last image
    assert sdort.batch(tiny.onnx, path, out, **SETTINGS).images == 1


@pytest.mark.parametrize("wrong", ["prompts", "pipeline", "lines"])
def test_what_fails_before_the_first_image_leaves_nothing(wrong: str, tiny: Tiny, tmp_path: Path) -> None:
    path, pipeline = written(tmp_path, [] if wrong == "lines" else LINES), tiny.onnx
    if wrong == "prompts":
        path = tmp_path / "none.jsonl"
    if wrong == "pipeline":
        pipeline = tmp_path / "none"
    with pytest.raises((UsageError, BadModelError)):
        sdort.batch(pipeline, path, tmp_path / "out" / "deep", **SETTINGS)
    assert not (tmp_path / "out" / "deep").exists()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "note.txt").write_text("kept")
    with pytest.raises((UsageError, BadModelError)):
        sdort.batch(pipeline, path, tmp_path / "theirs", **SETTINGS)
    assert [each.name for each in (tmp_path / "theirs").iterdir()] == ["note.txt"]


def test_one_process_has_a_folder_at_a_time(tiny: Tiny, tmp_path: Path) -> None:
    path = written(tmp_path, LINES[:1])
    with open_journal(tmp_path / "out"), pytest.raises(OutputError, match="another sdort batch writes to"):
        sdort.batch(tiny.onnx, path, tmp_path / "out", **SETTINGS)
    assert sdort.batch(tiny.onnx, path, tmp_path / "out", **SETTINGS).images == 1


@pytest.mark.parametrize("name", ["a folder that is a file", "a journal that is a folder"])
def test_a_folder_that_cannot_be_written(name: str, tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if "file" in name:
        out.write_text("")
    else:
        (out / IMAGES).mkdir(parents=True)
    with pytest.raises(OutputError, match="cannot write"):
        sdort.batch(tiny.onnx, written(tmp_path, LINES), out, **SETTINGS)


def test_the_command_says_what_was_drawn_and_what_not(tiny: Tiny, tmp_path: Path) -> None:
    path, out = written(tmp_path, [*LINES[:2], "nonsense"]), tmp_path / "out"
    arguments = ["batch", str(tiny.onnx), "--prompts", str(path), "--out", str(out), "--provider", "cpu"]
    arguments += ["--steps", "1", "--size", "64x64", "--format", "webp"]
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, sorted(path.name for path in out.glob("*.webp"))) == (1, ["000002.webp", "seven.webp"])
    said = " ".join(result.output.split())
    assert "2 images in" in said
    assert "nothing was drawn of 1 line of" in said
    again = CliRunner().invoke(cli, [*arguments, "--json"])
    assert again.exit_code == 1
    record = json.loads(again.stdout)
    assert (record["schema"], record["images"], record["done_before"]) == ("sdort-batch-1", 0, 2)


def test_a_killed_batch_loses_nothing_and_doubles_what_was_under_way_alone(tiny: Tiny, tmp_path: Path) -> None:
    """Killed at drawn times, it goes on until all is there; as if it had not been killed."""
    lines = [{"prompt": f"number {number}", "num_images": 1 + number % 2} for number in range(16)]
    path, out, whole = written(tmp_path, lines), tmp_path / "out", tmp_path / "whole"
    sdort.batch(tiny.onnx, path, whole, **SETTINGS)
    words = [sys.executable, "-m", "sdort", "batch", tiny.onnx, "--prompts", path, "--out", out, "--provider", "cpu"]
    words += ["--steps", "1", "--guidance-scale", "1.5", "--size", "64x64"]

    def drawn() -> int:
        return len((out / IMAGES).read_bytes().splitlines()) if (out / IMAGES).exists() else 0

    rng, kills = random.Random(5), 0
    for most in (3, 9, 15):
        process = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and drawn() < most:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    before = drawn()
    report = sdort.batch(tiny.onnx, path, out, **SETTINGS)
    assert kills >= 2
    assert report.done_before >= before - 1  # but a line that was cut off
    found = [(entry["id"], entry["index"], entry["sha256"]) for entry in entries(out)]
    assert len(found) == len(set(found)) == 24
    assert sorted(found) == sorted((entry["id"], entry["index"], entry["sha256"]) for entry in entries(whole))
    left = {entry.name for entry in os.scandir(out)} - {IMAGES, *(entry["file"] for entry in entries(out))}
    assert len(left) <= kills  # a file that was being written
