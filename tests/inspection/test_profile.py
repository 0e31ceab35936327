"""Placement: nodes and milliseconds per execution provider and operator."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image
from support.tiny_pipeline import Tiny

from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.measure import measure_pipeline
from sdort.benchmark.row_table import as_text
from sdort.cli import cli
from sdort.console import to_json
from sdort.errors import MemoryShortageError
from sdort.inspection.profile import Placement, Share, measure_placement, placement_table, remarks, summarize_placement
from sdort.lowering.component_report import count_operators
from sdort.onnx_io.load import load_model
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.workload.cases import Case

CPU_EP, ROCM_EP = CPU.ep, ROCM.ep


def node(operator: str, provider: str, microseconds: int, part: str = "kernel_time") -> dict[str, Any]:
    arguments = {"op_name": operator, "provider": provider}
    return {"cat": "Node", "name": f"some_{part}", "dur": microseconds, "args": arguments}


def kernel(operator: str, microseconds: int) -> dict[str, Any]:
    return {"cat": "Kernel", "name": "void f()", "dur": microseconds, "args": {"op_name": operator}}


PLACED = {
    ROCM_EP: Counter({"NhwcConv": 2, "MemcpyToHost": 1, "MatMul": 1}),
    CPU_EP: Counter({"Gather": 3, "Softmax": 1}),
}
HOST = [
    node("NhwcConv", ROCM_EP, 30),
    node("NhwcConv", ROCM_EP, 20),
    node("NhwcConv", ROCM_EP, 999, "fence_before"),
    node("MatMul", ROCM_EP, 60),
    node("Gather", CPU_EP, 5),
]


def test_times_of_the_host_where_the_provider_has_no_profiler() -> None:
    found = summarize_placement("unet", ROCM, PLACED, HOST)
    assert not found.kernel_times
    assert found.shares == (
        Share(ROCM_EP, "MatMul", 1, 0.06),
        Share(ROCM_EP, "NhwcConv", 2, 0.05),
        Share(CPU_EP, "Gather", 3, 0.005),
        Share(ROCM_EP, "MemcpyToHost", 1, 0.0),
        Share(CPU_EP, "Softmax", 1, 0.0),
    )
    nodes, milliseconds = found.total(ROCM_EP)
    assert nodes == 4
    assert milliseconds == pytest.approx(0.11)
    assert found.fallen == {"Softmax": 1}
    assert found.copies == {"MemcpyToHost": 1}
    assert remarks([found], ROCM) == ["unet: 1 Softmax on the CPU, 1 MemcpyToHost copies between host and device"]


def test_times_of_kernels_where_it_has_one() -> None:
    found = summarize_placement(
        "unet", ROCM, PLACED, [*HOST, kernel("NhwcConv", 400), kernel("NhwcConv", 100), kernel("", 7)]
    )
    assert found.kernel_times
    times = {(share.provider, share.operator): share.milliseconds for share in found.shares}
    assert times[ROCM_EP, "NhwcConv"] == 0.5
    assert times[ROCM_EP, "MatMul"] == 0  # none of its own was seen
    assert times[CPU_EP, "Gather"] == 0.005


def test_one_provider_with_all_nodes_is_counted_by_its_profile() -> None:
    found = summarize_placement("unet", ROCM, {ROCM_EP: Counter({"": 7})}, HOST)
    assert {share.operator: share.nodes for share in found.shares} == {"NhwcConv": 2, "MatMul": 1}
    silent = summarize_placement("unet", ROCM, {ROCM_EP: Counter({"": 7})}, [])
    assert silent.shares == (Share(ROCM_EP, "", 7, None),)
    assert remarks([silent], ROCM) == ["rocm runs all of unet but arithmetic on sizes; no copies to the host."]


def test_every_node_of_a_model_is_seen(tiny: Tiny, capfd: pytest.CaptureFixture[str]) -> None:
    """One provider has them all, so the log does not tell them apart; and nothing of it reaches the terminal."""
    path = tiny.onnx / "text_encoder" / "model.onnx"
    found = measure_placement(path, "text_encoder", CPU, RuntimeOptions("cpu"))
    assert [(share.provider, share.operator) for share in found.shares] == [(CPU_EP, "")]
    assert 0 < found.shares[0].nodes <= sum(count_operators(load_model(path)).values())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("split", [True, False])
def test_bench_shows_it(split: bool, tiny: Tiny) -> None:
    runtime = RuntimeOptions("cpu", split=split)
    options = BenchOptions(runtime=runtime, components=("unet",), warmup=0, repeat=1, placement=True)
    [row] = measure_pipeline(tiny.onnx, options).rows
    assert isinstance(row.placement, Placement)
    nodes, milliseconds = row.placement.total(CPU_EP)
    assert nodes == sum(share.nodes for share in row.placement.shares)
    assert milliseconds is not None
    assert milliseconds > 0
    counts = {share.operator: share.nodes for share in row.placement.shares}
    original = count_operators(load_model(tiny.onnx / "unet" / "model.onnx"))
    assert counts["Conv"] + counts.get("FusedConv", 0) == original["Conv"]
    assert to_json(row)["placement"]["component"] == "unet"
    assert "Conv" not in as_text([row], "csv")
    table = placement_table([row.placement], most=2)
    assert table.row_count == 4  # the sum, two operators, the rest
    assert ("of a step alone" in table.title) == (row.placement.untimed > 0) == split
    assert to_json(row)["placement"]["untimed"] == row.placement.untimed


def invoke(*args: str) -> Any:
    return CliRunner().invoke(cli, list(args))


def test_run_and_inspect_show_it(tiny: Tiny, tmp_path: Path) -> None:
    drawn = invoke(
        "run", str(tiny.onnx), "--provider", "cpu", "--prompt", "x", "--steps", "1", "--placement", "-o",
        str(tmp_path / "x.png"),
    )  # fmt: skip
    assert drawn.exit_code == 0, drawn.output
    assert all(text in drawn.stdout for text in ("unet", "text_encoder", "unet on cpu", "vae_decoder on cpu", "Conv"))
    seen = invoke("inspect", str(tiny.onnx / "unet"), "--provider", "cpu", "--placement", "--json")
    assert seen.exit_code == 0, seen.output
    [found] = json.loads(seen.stdout)["placement"]
    assert found["shares"][0]["provider"] == "CPUExecutionProvider"
    assert found["shares"][0]["milliseconds"] is None


@pytest.mark.parametrize(("images", "most", "decoded"), [(2, 12 * 8, 1), (5, 2 * 12 * 8, 1), (2, 2 * 12 * 8, 2)])
def test_the_decoder_is_measured_as_it_decoded_in_the_end(
    images: int, most: int, decoded: int, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory ran out, and of the last images where there are more than are drawn at once."""
    from sdort.generation import command as module
    from sdort.runtime.session import Session

    asked: list[Case] = []
    real = Session.run

    def short(session: Session, feeds: dict[str, Any]) -> Any:
        if session.component == "vae_decoder" and next(iter(feeds.values()))[:, 0].size > most:
            raise MemoryShortageError("out of memory")
        return real(session, feeds)

    def measure(models: object, todo: list[Case], *_: object) -> list[Placement]:
        asked.extend(todo)
        return []

    monkeypatch.setattr(Session, "run", short)
    monkeypatch.setattr(module, "measure_cases", measure)
    factor = open_folder(tiny.onnx).vae_factor
    place = tmp_path / "x.png"
    drawn = invoke(
        "run", str(tiny.onnx), "--provider", "cpu", "--prompt", "x", "--steps", "1", "--height", str(12 * factor),
        "--width", str(8 * factor), "--num-images", str(images), "--placement", "--json", "-o", str(place),
    )  # fmt: skip
    assert drawn.exit_code == 0, drawn.output
    record = json.loads(drawn.stdout)
    assert record["decoded"] == {"slicing": images > decoded and images < 5, "tile": None}
    with Image.open(place.with_stem("x-1")) as image:
        assert json.loads(image.text["sdort"])["decoded"] is None  # type: ignore[attr-defined]
    [case] = [case for case in asked if case.component == "vae_decoder"]
    assert case == Case("vae_decoder", decoded, 12 * factor, 8 * factor)


def test_the_decoder_is_measured_in_the_parts_that_were_decoded(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdort.generation import command as module
    from sdort.generation.latents import decode

    asked: list[Case] = []

    def measure(models: object, todo: list[Case], *_: object) -> list[Placement]:
        asked.extend(todo)
        return []

    monkeypatch.setattr(module, "measure_cases", measure)
    monkeypatch.setattr(decode, "TILE_LATENTS", 8)
    drawn = invoke(
        "run", str(tiny.onnx), "--provider", "cpu", "--prompt", "x", "--steps", "1", "--height", "96", "--width", "64",
        "--num-images", "2", "--vae-tiling", "--vae-slicing", "--placement", "-o", str(tmp_path / "x.png"),
    )  # fmt: skip
    assert drawn.exit_code == 0, drawn.output
    factor = open_folder(tiny.onnx).vae_factor
    assert [case for case in asked if case.component == "vae_decoder"] == [
        Case("vae_decoder", 1, 8 * factor, 8 * factor)
    ]
    assert Case("unet", 4, 96, 64) in asked


@pytest.mark.parametrize("args", [(), ("--provider", "cpu", "--provider", "rocm"), ("--provider", "cpu", "--diff")])
def test_inspect_wants_one_provider(tiny: Tiny, args: tuple[str, ...]) -> None:
    paths = [str(tiny.onnx)] * (2 if "--diff" in args else 1)
    result = invoke("inspect", *paths, "--placement", *args)
    assert result.exit_code == 2
    assert "--placement wants one --provider" in result.stderr
