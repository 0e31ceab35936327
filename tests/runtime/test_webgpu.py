"""WebGPU's plugin really computes, on a software Vulkan: commands of a model, and the attention that is wrong there.

Commands run in as few processes as they can: each compiles its shaders anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.pipelines import locked, trace_folder
from support.webgpu import Done, run_commands, software_vulkan

from sdort.exporter.command import export
from sdort.first_use.command import run
from sdort.providers import load_target

pytestmark = pytest.mark.long
ON = ("--provider", "webgpu", "--custom-ops", "off")
DRAWN = ("--prompt", "a red circle", "--steps", "1", "--seed", "1", "--size", "64x64")
TIMED = ("--component", "text_encoder", "--repeat", "1", "--warmup", "0", "--json")
COMPARED = ("--no-torch", "--inputs", "random", "--no-images", "--component", "text_encoder")


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all processes of this run of tests share."""
    software_vulkan()
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "webgpu"
    folder.mkdir(exist_ok=True)
    with open(folder / "demo.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        traces = trace_folder(request.config)
        if not (folder / "demo").exists():
            with locked(traces):
                export("demo", folder / "demo", cache_dir=traces)
    return folder


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    fast = folder / "fast"
    commands: list[tuple[str, list[object]]] = [
        ("optimize", ["optimize", folder / "demo", fast, "--provider", "webgpu", "--json"]),
        ("run", ["run", fast, *ON, *DRAWN, "--json", "-o", folder / "image.png"]),
        ("verify", ["verify", fast, *ON, *COMPARED, "--json"]),
        ("bench", ["bench", fast, *ON, *TIMED]),
        ("warm", ["warm", fast, *ON, "--component", "text_encoder", "--json"]),
    ]
    return run_commands(commands, folder / "done.jsonl")


@pytest.fixture(scope="module")
def wrong(folder: Path) -> dict[str, Done]:
    forced = folder / "forced"
    commands: list[tuple[str, list[object]]] = [
        ("forced", ["optimize", folder / "demo", forced, "--provider", "webgpu", "--json"]),
        ("refused", ["run", forced, *ON, *DRAWN, "-o", folder / "wrong.png"]),
        ("untried", ["bench", forced, *ON, *TIMED, "--no-trials"]),
        ("bisect", ["verify", forced, *ON, *COMPARED, "--bisect"]),
    ]
    return run_commands(commands, folder / "wrong.jsonl")


def test_the_doctor_says_which_kernel_is_wrong(folder: Path) -> None:
    done = run_commands([("doctor", ["doctor", "--provider", "webgpu", "--json"])], folder / "doctor.jsonl")["doctor"]
    assert done.code == 0
    found = {each["check"]: each for each in done.document["findings"]}
    assert found["webgpu"]["status"] == "ok"
    kernels = found["webgpu kernels"]
    assert kernels["status"] == "warning"
    assert re.match(r"11 of 12 operators are right in float32; MultiHeadAttention: tried on this", kernels["message"])
    assert 0.5 < float(re.findall(r"its error is ([\d.]+) standard deviations", kernels["message"])[0]) < 2


def test_its_graphs_have_no_attention_of_its_own(done: dict[str, Done]) -> None:
    assert done["optimize"].code == 0
    unet = done["optimize"].document["components"]["unet"]
    found = {name.partition(".")[2].partition(".")[2] for name in unet["operators"] if name.startswith("com.")}
    assert found == {"BiasAdd", "BiasSplitGelu", "SkipLayerNormalization"}
    assert not {"Sin", "Cos", "GroupNormalization"} & {*unet["operators"]}
    assert {f"com.microsoft.{name}" for name in found} <= {*load_target("webgpu").conditions}


def test_its_image_is_that_of_the_cpu(done: dict[str, Done], folder: Path) -> None:
    assert done["run"].code == 0, done["run"].stderr
    assert done["run"].document["provider"] == "webgpu"
    run(
        folder / "demo", prompt="a red circle", steps=1, seed=1, size="64x64", provider="cpu", custom_ops="off",
        output=folder / "expected.png",
    )  # fmt: skip
    found, expected = (np.asarray(Image.open(folder / name), np.int16) for name in ("image.png", "expected.png"))
    assert expected.std() > 5
    assert np.abs(found - expected).max() <= 1


def test_verify_finds_it_right(done: dict[str, Done]) -> None:
    assert done["verify"].code == 0, done["verify"].stdout
    assert done["verify"].document["passed"]


def test_it_is_measured_and_warmed(done: dict[str, Done]) -> None:
    assert done["bench"].code == 0, done["bench"].stderr
    assert "webgpu" in json.dumps(done["bench"].document)
    assert done["warm"].code == 0, done["warm"].stderr
    (item,) = done["warm"].document["items"]
    assert (item["component"], item["problem"]) == ("text_encoder", None)
    assert item["before_s"] > 0


def test_a_model_with_its_attention_is_refused(wrong: dict[str, Done], folder: Path) -> None:
    assert wrong["forced"].code == 0
    unet = wrong["forced"].document["components"]["unet"]
    assert unet["operators"]["com.microsoft.MultiHeadAttention"] == 14
    assert wrong["refused"].code == 6
    assert "webgpu computes something else than it should: MultiHeadAttention (tried on" in wrong["refused"].stderr
    assert "sdort optimize ORIGINAL OUT --provider webgpu" in wrong["refused"].stderr
    assert not (folder / "wrong.png").exists()
    # Nobody is kept from running it: what bench compares first is as wrong.
    assert wrong["untried"].code == 5
    assert "by its largest error" in wrong["untried"].stderr


def test_verify_says_that_attention_is_wrong_and_names_the_node(wrong: dict[str, Done]) -> None:
    found = wrong["bisect"]
    assert found.code == 5
    assert "text_encoder: webgpu computes something else than it should: MultiHeadAttention" in found.stderr
    said = " ".join(f"{found.stdout} {found.stderr}".split())
    assert re.search(r"the graphs diverge at node_MatMul_\d+ \(MatMul\): MultiHeadAttention", said)
    assert "are right, computed one by one: the kernel of MultiHeadAttention differs" in said
