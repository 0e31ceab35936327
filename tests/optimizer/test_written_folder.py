"""The folder that an optimization writes: which models, where, how large, and what stands beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from support.small_graphs import parse

from sdort.checkpoints.tokenizer_files import TABLES
from sdort.errors import BadModelError, UsageError
from sdort.files.disk import WritePlan
from sdort.lowering.component_report import ComponentReport
from sdort.machine.version import __version__
from sdort.onnx_io.components import Survey
from sdort.optimizer import output, result_size
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.optimizer.output import copy_configs, extend_manifest, model_file
from sdort.optimizer.report import OptimizeReport
from sdort.optimizer.selection import left_out, select_models
from sdort.pipelines.manifest import FILES
from sdort.pipelines.origin import ORIGIN

FOUND: dict[str, dict[str, Path]] = {
    "components": {"unet": Path("u"), "safety_checker": Path("s"), "vae_decoder": Path("d")},
    "misfits": {"vae_encoder": Path("m")},
    "others": {"other": Path("o")},
    "spare": {"spare": Path("p")},
}
SELECTED: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool, tuple[str, ...]]] = {
    "all": (("components",), (), False, ("unet", "safety_checker", "vae_decoder")),
    "the safety checker by name": (("components",), ("safety_checker", "unet"), False, ("unet", "safety_checker")),
    "every graph": (
        ("components", "misfits", "others", "spare"),
        (),
        True,
        ("unet", "safety_checker", "vae_decoder", "vae_encoder", "other", "spare"),
    ),
    "some graphs": (("components", "misfits", "others"), ("other", "vae_encoder"), True, ("vae_encoder", "other")),
    "one of others by name": (("components", "others"), ("other",), False, ("other",)),
    "one beside a misfit": (("components", "misfits"), ("vae_decoder",), False, ("vae_decoder",)),
    "what is spare does no harm": (("components", "spare"), (), False, ("unet", "safety_checker", "vae_decoder")),
}


def survey(kinds: tuple[str, ...]) -> Survey:
    return Survey(Path("in"), **{kind: FOUND[kind] for kind in kinds})


@pytest.mark.parametrize(("kinds", "asked", "any_graph", "chosen"), SELECTED.values(), ids=SELECTED)
def test_the_models_that_are_optimized(
    kinds: tuple[str, ...],
    asked: tuple[str, ...],
    any_graph: bool,
    chosen: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = SimpleNamespace(signature=SimpleNamespace(inputs={"clip_input"}, outputs={"has_nsfw_concepts"}))
    monkeypatch.setattr("sdort.optimizer.selection.read_component", lambda path, name: read)
    request = OptimizeRequest(Path("in"), Path("out"), components=asked, any_graph=any_graph)
    paths = {name: path for models in FOUND.values() for name, path in models.items()}
    assert list(select_models(request, survey(kinds)).items()) == [(name, paths[name]) for name in chosen]
    # One that nothing is known of is for those who ask.
    read.signature.outputs = {"probabilities"}
    alone = not asked and not any_graph
    known = [name for name in chosen if name != "safety_checker" or not alone]
    assert list(select_models(request, survey(kinds))) == known


def test_models_that_cannot_be_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kinds: tuple[str, ...], *asked: str, any_graph: bool = False) -> str:
        request = OptimizeRequest(Path("in"), Path("out"), components=asked, any_graph=any_graph)
        with pytest.raises((UsageError, BadModelError)) as raised:
            select_models(request, survey(kinds))
        return f"{raised.value.message} | {raised.value.hint}"

    monkeypatch.setattr("sdort.onnx_io.components._signature", lambda file, name: "(x)")
    monkeypatch.setattr("sdort.optimizer.selection._reads_text", lambda name, path: name == "tokenizer")
    missing = refused(("components", "others"), "unet", "unett")
    assert missing.startswith("there is no component 'unett'")
    assert missing.endswith("The model has unet, safety_checker, vae_decoder, other.")
    assert "did you mean" in missing.lower()
    assert refused((), "unet", any_graph=True).endswith("The model has none.")
    assert refused((), any_graph=True).startswith("in holds no ONNX pipeline")
    assert refused(("components", "misfits")).startswith("m is no vae_encoder")
    assert refused(("components", "misfits"), "vae_encoder", "unet").startswith("m is no vae_encoder")
    monkeypatch.setitem(FOUND, "others", {"other": Path("in/o"), "another": Path("in/b/p")})
    assert "holds models that are no component" in refused(("components", "others"))


def test_a_tokenizer_as_a_graph_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Amuse has one beside the components."""
    text = "g (string[N] text, int64[N, 77] given) => (int64[N, 77] ids) { ids = Identity (given) }"
    onnx.save(parse(text, {}, 18), tmp_path / "tokenizer.onnx")
    found = Survey(tmp_path, components={"unet": Path("u")}, others={"tokenizer": tmp_path / "tokenizer.onnx"})
    request = OptimizeRequest(tmp_path, tmp_path / "out")
    assert select_models(request, found) == {"unet": Path("u")}
    assert left_out(request, found) == {"tokenizer": "it reads text, as a tokenizer does"}
    assert "left out: tokenizer, as it reads text" in capsys.readouterr().err


PLACES: dict[str, tuple[str, str, str, bool, str]] = {
    "a file": ("in.onnx", "in.onnx", "unet", True, "model.onnx"),
    "a file of any graph": ("in.onnx", "in.onnx", "in", False, "model.onnx"),
    "a component's folder": ("in", "in/other.onnx", "unet", True, "model.onnx"),
    "a pipeline's component": ("in", "in/unet/weird.onnx", "unet", True, "unet/model.onnx"),
    "one that is called otherwise": ("in", "in/denoiser/weird.onnx", "unet", True, "unet/model.onnx"),
    "any graph": ("in", "in/deep/er/weird.onnx", "weird", False, "deep/er/weird.onnx"),
    "any graph on top": ("in", "in/weird.onnx", "weird", False, "weird.onnx"),
}


@pytest.mark.parametrize(("source", "path", "name", "known", "place"), PLACES.values(), ids=PLACES)
def test_the_place_of_a_written_model(
    source: str, path: str, name: str, known: bool, place: str, tmp_path: Path
) -> None:
    if source == "in":
        (tmp_path / "in").mkdir()
    request = OptimizeRequest(tmp_path / source, tmp_path / "out")
    stage = tmp_path / "stage"
    assert model_file(request, name, tmp_path / path, stage, known=known) == stage / place


def folder_of(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_configs_are_copied_and_what_is_not_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = {"model_index.json": "{}", "unet/config.json": '{"a": 1}', "words/merges.txt": "a b\n"}
    copied |= {"words/chat.jinja": "{{ a }}", "words/deep/spiece.model": "pieces"}
    beside = {"unet/model.onnx": "graph", "unet/model.onnx.data": "weights", "unet/other.bin": "beside a model"}
    number = output.MOST_FILES + 2
    left = {f"odd/{index}.bin": "no config" for index in range(number)}
    source = folder_of(tmp_path / "in", {**copied, **beside, **left})
    stage = tmp_path / "stage"
    stage.mkdir()
    copy_configs(OptimizeRequest(source, tmp_path / "out"), stage)
    found = {str(path.relative_to(stage)): path.read_text() for path in stage.rglob("*") if path.is_file()}
    assert found == copied
    said = " ".join(capsys.readouterr().err.split())
    assert "not copied, as only configs and tokenizers are: odd/" in said
    assert said.endswith("and 2 more")
    assert "unet" not in said


def test_only_as_many_files_as_are_named_are_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder_of(tmp_path / "in", {f"odd/{index}.bin": "" for index in range(output.MOST_FILES)})
    copy_configs(OptimizeRequest(source, tmp_path / "out"), tmp_path)
    said = capsys.readouterr().err
    assert "more" not in said
    assert all(f"{index}.bin" in said for index in range(output.MOST_FILES))


@pytest.mark.parametrize("tokenizer", ["tokenizer", "tokenizer_2"])
def test_each_tokenizer_is_checked_as_such_and_for_what_it_names(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[tuple[str, Path]] = []
    source = folder_of(tmp_path / "in", {f"{tokenizer}/vocab.json": "{}"})
    monkeypatch.setattr(output, "is_clip_tokenizer", lambda folder: folder.name == tokenizer)
    monkeypatch.setattr(output, "check_tokenizer", lambda folder: checked.append(("tokenizer", folder)))

    def processor(folder: Path, *, besides: Any) -> None:
        checked.append(("processor", folder))
        assert besides == TABLES

    monkeypatch.setattr(output, "check_processor", processor)
    copy_configs(OptimizeRequest(source, tmp_path / "out"), tmp_path)
    assert checked == [("tokenizer", source / tokenizer), ("processor", source / tokenizer)]


@pytest.mark.parametrize(
    ("options", "fp16", "precision"),
    [({}, False, "fp32"), ({"fp16": True}, True, "fp16"), ({"bf16": True}, False, "bf16")],
    ids=["fp32", "fp16", "bf16"],
)
def test_a_manifest_has_the_source_s_history_and_what_was_made(
    options: dict[str, Any], fp16: bool, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[Path, dict[str, Any], Mapping[Path, str]]] = []
    monkeypatch.setattr(output, "write_listed_files", lambda *arguments: written.append(arguments))
    monkeypatch.setattr(output, "origin_mark", lambda folder: {"mark": folder.name})
    history = {
        "exported": {"from": "x"},
        FILES: {"unet/model.onnx": "old"},
        "components": {"unet": {"xxh128": "old", "bytes": 3}, "vae_decoder": {"bytes": 4}},
    }
    source = folder_of(tmp_path / "in", {"sdort.json": json.dumps(history)})
    report = OptimizeReport("in", "out", "cuda", fp16)
    report.components = {
        "unet": ComponentReport("unet", operators={"Conv": 2}, bytes=77),
        "vae_decoder": ComponentReport("vae_decoder", operators={"MatMul": 1}, bytes=88),
    }
    request = OptimizeRequest(source, tmp_path / "out", provider="cuda", **options)
    hashes = {Path("unet/model.onnx"): "new"}
    extend_manifest(request, report, tmp_path / "stage", hashes)
    ((stage, content, given),) = written
    assert (stage, given) == (tmp_path / "stage", hashes)
    assert content.pop("optimized") == {
        "sdort": __version__,
        "from": str(source),
        ORIGIN: {"mark": "in"},
        "provider": "cuda",
        "fp16": fp16,
        "precision": precision,
        "components": {
            "unet": {"operators": {"Conv": 2}, "bytes": 77},
            "vae_decoder": {"operators": {"MatMul": 1}, "bytes": 88},
        },
    }
    # The hashes of the source's files say nothing of these.
    assert content == {
        "exported": {"from": "x"},
        "components": {"unet": {"bytes": 3}, "vae_decoder": {"bytes": 4}},
    }
    written.clear()
    # Commands are given relative paths, and the record is read elsewhere.
    monkeypatch.chdir(tmp_path)
    extend_manifest(OptimizeRequest(Path("one.onnx"), Path("out")), report, tmp_path, {})
    assert written[0][1]["optimized"][ORIGIN] is None
    assert written[0][1]["optimized"]["from"] == str(tmp_path.resolve() / "one.onnx")


UPSAMPLED = """g (float[1, 4, 5, 6] x) => (float[1, a, b, c] y) {{
    u = {0} (x, {1}sizes)
    a = Conv <pads = [1, 1, 1, 1]> (u, first, bias)
    b = Conv <pads = [1, 1, 1, 1]> (a, second)
    y = Mul (b, halves) }}"""


def weights_of(dtype: Any) -> dict[str, Any]:
    return {
        "sizes": np.array([1, 1, 2, 2], np.float32),
        "bias": np.ones(4, dtype),
        "first": np.ones((4, 4, 3, 3), dtype),
        "second": np.ones((6, 4, 3, 3), dtype),
        "halves": np.ones((6, 1, 1), np.float16 if dtype is np.float32 else np.float32),
    }


def planned(
    monkeypatch: pytest.MonkeyPatch, request: OptimizeRequest, chosen: Mapping[str, Path]
) -> tuple[dict[str, tuple[int, str]], dict[str, int]]:
    plans: list[tuple[Any, ...]] = []

    def plan(writes: Any, scratch: int = 0, peak_memory: int = 0) -> WritePlan:
        plans.append((writes, scratch, peak_memory))
        return WritePlan([], 0, 0, None, [])

    monkeypatch.setattr(result_size, "plan_writes", plan)
    result_size.plan_space(request, chosen)
    ((writes, scratch, peak),) = plans
    assert all(write.folder == request.out for write in writes)
    return {w.name: (w.bytes, w.note) for w in writes}, {"scratch": scratch, "peak": peak}


@pytest.mark.parametrize("fp16", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("upsampling", ["Resize", "Expand"])
def test_the_planned_size_counts_filters_that_become_phases(
    upsampling: str, fp16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3x3 filters directly behind an upsampling become four of 2x2; in fp16, what is fp32 is halved."""
    single, half = tmp_path / "unet.onnx", tmp_path / "vae.onnx"
    text = UPSAMPLED.format(upsampling, "sizes, " if upsampling == "Resize" else "")
    for path, dtype in ((single, np.float32), (half, np.float16)):
        proto = parse(text, weights_of(dtype), 18)
        onnx.save(proto, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    graphs = {path: onnx.load(path, load_external_data=False).ByteSize() for path in (single, half)}
    grown = upsampling != "Expand"
    floats = 4 * (4 + 4 + 4 * 4 * 9 + 6 * 4 * 9 + grown * 4 * 4 * 7)
    halves = 2 * (4 + 4 * 4 * 9 + 6 * 4 * 9 + grown * 4 * 4 * 7)
    wanted = {
        "unet": (floats // (1 + fp16) + 2 * 6 + graphs[single], "fp32 to fp16" if fp16 else "as it is"),
        "vae": ((4 * 4 + 4 * 6) // (1 + fp16) + halves + graphs[half], "fp32 to fp16" if fp16 else "as it is"),
    }
    request = OptimizeRequest(single, tmp_path / "out", fp16=fp16)
    writes, space = planned(monkeypatch, request, {"unet": single, "vae": half})
    assert writes == wanted
    assert space == {"scratch": 0, "peak": 250_000_000}
    if not fp16:
        return
    auto = OptimizeRequest(single, tmp_path / "out", fp16="auto")
    first, second = floats + 2 * 6, 4 * 4 + 4 * 6 + halves
    for order, beside in ((("unet", "vae"), 0), (("vae", "unet"), 1)):
        writes, space = planned(monkeypatch, auto, {name: {"unet": single, "vae": half}[name] for name in order})
        assert writes == wanted
        done, last = wanted[order[0]][0], (second, first)[beside]
        before = (first, second)[beside]
        most = max(2 * before, done + 2 * last) - sum(size for size, _ in wanted.values())
        assert space == {"scratch": max(0, most), "peak": 500_000_000 + max(first, second)}


def test_configs_are_planned_by_what_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder_of(tmp_path / "in", {"a/config.json": "12345", "merges.txt": "123", "x.bin": "1234567"})
    request = OptimizeRequest(source, tmp_path / "out")
    assert planned(monkeypatch, request, {})[0] == {"configs": (8, "copied")}
    assert planned(monkeypatch, OptimizeRequest(source / "x.onnx", tmp_path / "out"), {})[0] == {}
    assert planned(monkeypatch, OptimizeRequest(folder_of(tmp_path / "b", {"x.bin": "1"}), tmp_path), {})[0] == {}
