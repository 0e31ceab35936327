"""``sdort optimize``: what ends up in OUT, what is refused with which exit code, and that OUT is then untouched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import xxhash
from click.testing import CliRunner, Result
from support.small_graphs import Array, feeds_for, parse, run

import sdort
from sdort.cli import cli
from sdort.demo.tokenizer import write_tokenizer
from sdort.errors import UsageError
from sdort.lowering.steps import PIPELINE
from sdort.operator_library import library
from sdort.operator_library.library import CodeObject, Description
from sdort.optimizer.command import optimize
from sdort.pipelines.origin import has_mark

RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Array] = {
    "table": RNG.standard_normal((20, 8)).astype(np.float32),
    "width": RNG.standard_normal((8, 8)).astype(np.float32),
    "gamma": np.ones(8, np.float32),
    "beta": np.zeros(8, np.float32),
}
GELU = "c = Mul (h, a)  g = Mul (c, half)"
ENCODER = f"""g (int64[batch, sequence] input_ids) => (float[batch, sequence, 8] last_hidden_state)
<float one = {{1.0}}, float half = {{0.5}}, float root = {{1.4142135}}> {{
    e = Gather (table, input_ids)  h = MatMul (e, width)
    d = Div (h, root)  r = Erf (d)  a = Add (r, one)  {GELU}
    last_hidden_state = LayerNormalization <axis = -1> (g, gamma, beta)
}}"""
"""A text encoder as far as anybody can tell from its inputs and outputs: one Gelu, one LayerNormalization."""
CLASSIFIER = "g (float[batch, 3, 8, 8] clip_input) => (float[batch, 3, 8, 8] images) { images = Neg (clip_input) }"
OPERATORS = {"Gather": 1, "LayerNormalization": 1, "MatMul": 1, "com.microsoft.Gelu": 1}


def write_model(folder: Path, text: str = ENCODER, **changed: Array) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: values for name, values in {**WEIGHTS, **changed}.items() if name in text}
    onnx.save(parse(text, weights, 17), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A pipeline folder of two text encoders."""
    folder = tmp_path / "in"
    for name in ("text_encoder", "text_encoder_2"):
        write_model(folder / name)
    (folder / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text("{}")
    write_tokenizer(folder / "tokenizer")
    return folder


@pytest.fixture
def call(source: Path, tmp_path: Path) -> Callable[..., Result]:
    """Calls ``sdort optimize IN OUT --provider cpu ...``."""

    def invoke(*options: object, given: Path = source) -> Result:
        arguments = ["optimize", given, tmp_path / "out", "--provider", "cpu", *options]
        return CliRunner().invoke(cli, [str(argument) for argument in arguments])

    return invoke


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refused(result: Result, tmp_path: Path, code: int, *words: str) -> None:
    """It ended with this code and these words, and left no OUT and nothing half-written beside it."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert [word for word in words if word not in result.stderr] == []
    assert "Traceback" not in result.output
    assert [path for path in tmp_path.iterdir() if path.name not in ("in", "report.json", "elsewhere")] == []


# --- what is made ---


def test_a_pipeline_folder(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    result = call()
    assert result.exit_code == 0, result.output
    made = files(tmp_path / "out")
    assert {name for name in made if not name.endswith((".onnx", ".data"))} == {
        "model_index.json", "scheduler/scheduler_config.json", "sdort.json", "tokenizer/merges.txt",
        "tokenizer/special_tokens_map.json", "tokenizer/tokenizer_config.json", "tokenizer/vocab.json",
    }  # fmt: skip
    assert made["tokenizer/vocab.json"] == (source / "tokenizer" / "vocab.json").read_bytes()
    for name in ("text_encoder", "text_encoder_2"):
        proto = onnx.load(tmp_path / "out" / name / "model.onnx")
        assert [node.op_type for node in proto.graph.node] == ["Gather", "MatMul", "Gelu", "LayerNormalization"]
        assert f"{name} " in result.stdout
    feeds = feeds_for(proto, {"batch": 2, "sequence": 5})
    wanted = run(onnx.load(source / "text_encoder_2" / "model.onnx"), feeds)[0]
    assert np.abs(run(proto, feeds)[0] - wanted).max() < 1e-5
    assert result.stdout.count("1 Gelu") == 2


def test_the_manifest_adds_to_that_of_the_export(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    old = {"unet": {"nodes": 1, "xxh128": {"model.onnx": "0" * 32}}}
    (source / "sdort.json").write_text(
        json.dumps({"model": "demo", "optimized": {"from": "before"}, "components": old})
    )
    result = call("--fp16")
    assert result.exit_code == 0, result.output
    manifest = json.loads((tmp_path / "out" / "sdort.json").read_text())
    sizes = {
        n: sum(f.stat().st_size for f in (tmp_path / "out" / n).glob("*")) for n in ("text_encoder", "text_encoder_2")
    }
    stated = {name: entry.pop("bytes") for name, entry in manifest["optimized"]["components"].items()}
    half = {**OPERATORS, "Cast": 1}
    made = files(tmp_path / "out")
    assert manifest.pop("files") == {
        name: {"bytes": len(content), "xxh128": xxhash.xxh3_128_hexdigest(content)}
        for name, content in made.items()
        if name != "sdort.json"
    }
    assert has_mark(source, manifest["optimized"].pop("origin"))
    assert manifest == {
        "model": "demo",
        "components": {"unet": {"nodes": 1}},
        "optimized": {
            "sdort": sdort.__version__,
            "from": str(source.resolve()),
            "provider": "cpu",
            "fp16": True,
            "precision": "fp16",
            "components": {"text_encoder": {"operators": half}, "text_encoder_2": {"operators": half}},
        },
    }
    assert all(0 < stated[name] <= sizes[name] for name in sizes)


@pytest.mark.parametrize("content", ["{", "[1]", "\xff"])
def test_a_manifest_that_is_none(call: Callable[..., Result], source: Path, tmp_path: Path, content: str) -> None:
    (source / "sdort.json").write_bytes(content.encode("latin-1"))
    refused(call(), tmp_path, 3, "sdort.json", "JSON")


def test_one_file(call: Callable[..., Result], tmp_path: Path) -> None:
    path = write_model(tmp_path / "in" / "text_encoder")
    assert call(given=path).exit_code == 0
    assert {name for name in files(tmp_path / "out") if not name.endswith(".data")} == {"model.onnx", "sdort.json"}


@pytest.mark.parametrize("inside", [False, True], ids=["named", "as the working folder"])
def test_the_folder_of_one_component(
    call: Callable[..., Result], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """OUT is laid out as IN is."""
    (source / "text_encoder" / "config.json").write_text("{}")
    monkeypatch.chdir(source / "text_encoder")
    assert call(given=Path() if inside else source / "text_encoder").exit_code == 0
    made = {name for name in files(tmp_path / "out") if not name.endswith(".data")}
    assert made == {"config.json", "model.onnx", "sdort.json"}


def test_one_component_of_several(call: Callable[..., Result], tmp_path: Path) -> None:
    assert call("--component", "text_encoder_2").exit_code == 0
    assert (tmp_path / "out" / "text_encoder_2" / "model.onnx").is_file()
    assert not (tmp_path / "out" / "text_encoder").exists()


def test_the_safety_checker_is_for_those_who_ask(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    write_model(source / "safety_checker", CLASSIFIER)
    assert call().exit_code == 0
    assert not (tmp_path / "out" / "safety_checker").exists()
    assert call("--overwrite", "--component", "safety_checker").exit_code == 0
    assert (tmp_path / "out" / "safety_checker" / "model.onnx").is_file()


def test_links_that_lead_out_are_refused(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.json").write_text("secret")
    for name, target in (("linked.json", elsewhere / "secret.json"), ("tokenizer/more", elsewhere)):
        (source / name).symlink_to(target)
        refused(call(), tmp_path, 3, f"{source / name} is a link to {target}, outside of the model's folder")
        (source / name).unlink()


# --- what is printed ---


def test_json_is_the_report(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    result = call("--json", "--component", "text_encoder", "--report", tmp_path / "report.json")
    printed = json.loads(result.stdout)
    assert printed == json.loads((tmp_path / "report.json").read_text())
    assert result.stderr == ""
    component = printed["components"]["text_encoder"]
    assert component["fusions"]["gelu_erf"] == {"matched": 1, "candidates": 1, "left": []}
    assert component["operators"] == OPERATORS
    assert (component["nodes_before"], component["nodes_after"]) == (8, 4)
    assert component["operators_before"]["Mul"] == 2
    assert {"load", "tidy", "raise", "fuse", "write"} < set(component["seconds"])
    made = {step: count for step, count in component["changes"].items() if count}
    assert (made["raise"], made["lower"]) == (1, 1), "Gelu, and ONNX Runtime's of it"
    assert {"types", "count", "fuse", "check", "half"} & set(made) == set()
    assert set(component["changes"]) == {step.name for step in PIPELINE}
    assert (printed["source"], printed["provider"], printed["fp16"]) == (str(source), "cpu", False)
    assert printed["misses"] == []
    assert printed["peak_rss_mb"] > 10


def test_peak_memory_is_in_powers_of_ten(call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """The system counts KiB."""
    usage = SimpleNamespace(ru_maxrss=2_000_000)
    monkeypatch.setattr("resource.getrusage", lambda who: usage)
    assert json.loads(call("--json", "--component", "text_encoder").stdout)["peak_rss_mb"] == 2048


def test_quiet_says_nothing(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    write_model(source / "text_encoder", ENCODER.replace(GELU, "g = Mul (h, a)"))
    result = call("-q", "--allow-misses", "--explain")
    assert (result.exit_code, result.output) == (0, "")
    again = call("-q", "--allow-misses")
    assert (again.exit_code, again.stdout) == (7, "")
    assert again.stderr.startswith("Error: ")
    assert json.loads(call("-q", "--allow-misses", "--overwrite", "--json").stdout)["misses"] != []


BROKEN = ENCODER.replace(GELU, "g = Mul (h, a)")
"""Gelu without its half, which begins like one."""
MISS = "text_encoder 1 of 1 Erf gelu_erf Erf.3 expected Mul -> 'q', found Add at 'Add.4' (1 of 5 nodes matched)"


def lines(text: str) -> list[str]:
    """Lines without the spaces of columns."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_explain_shows_misses_and_nothing_else(call: Callable[..., Result], source: Path) -> None:
    write_model(source / "text_encoder", BROKEN)
    result = call("--explain", "--allow-misses", "--component", "text_encoder")
    assert MISS in lines(result.stdout)
    assert "But 1 place that should have fused did not." in result.stdout
    assert "restore_gelu" not in result.stdout


def test_explain_is_one_line_where_all_fused(call: Callable[..., Result]) -> None:
    plain, explained = call(), call("--explain", "--overwrite")
    assert "Fused: 2 Gelu; " in explained.stdout
    assert "Everything" not in plain.stdout + explained.stdout, "no config says what has to be there"
    assert " 2 Gelus" in plain.stdout
    assert len(explained.stdout.splitlines()) == len(plain.stdout.splitlines())


def test_places_with_one_reason_are_one_row(call: Callable[..., Result], source: Path) -> None:
    """Two Gelus lack the same part; a third one has another constant in its place."""
    others = (
        "d2 = Div (g1, root)  r2 = Erf (d2)  a2 = Add (r2, one)  g2 = Mul (g1, a2)",
        "d3 = Div (g2, root)  r3 = Erf (d3)  a3 = Add (r3, one)  c3 = Mul (g2, a3)  g = Mul (c3, root)",
    )
    write_model(source / "text_encoder", ENCODER.replace(GELU, f"g1 = Mul (h, a)  {'  '.join(others)}"))
    arguments = ("--explain", "--allow-misses", "--component", "text_encoder")
    rows = [line for line in lines(call(*arguments).stdout) if " Erf gelu_erf " in line]
    assert [row.split(" Erf ")[0] for row in rows] == ["text_encoder 2 of 3", "text_encoder 1 of 3"]
    assert "Erf.7" not in " ".join(rows)
    verbose = lines(call(*arguments, "--overwrite", "-v").stdout)
    assert "Erf.7" in verbose, "the second place of the first row has a line of its own"


@pytest.mark.parametrize("given", [["--explain", "gelu_erf"], ["--explain=gelu_erf,gelu"], ["--explain", "all"]])
def test_explain_of_a_fusion_shows_each_place(call: Callable[..., Result], source: Path, given: list[str]) -> None:
    write_model(source / "text_encoder", BROKEN)
    printed = lines(call(*given, "--allow-misses").stdout)
    at = printed.index("Places of gelu_erf")
    assert printed[at + 3] == "text_encoder 0/1 Erf.3 1/5 expected Mul -> 'q', found Add at 'Add.4'"
    assert printed[at + 4] == "text_encoder_2 1/1 nothing left"
    assert "Places of attention" not in printed, "there is nothing that it could take"


def test_explain_takes_no_folder_for_a_name(source: Path, tmp_path: Path) -> None:
    """Its value may be left out: what follows is one only if it is a fusion."""
    ends = ["--provider", "cpu"]
    result = CliRunner().invoke(cli, ["optimize", "--explain", str(source), str(tmp_path / "out"), *ends])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(cli, ["optimize", "--explain", "gelu", str(source), str(tmp_path / "two"), *ends])
    assert result.exit_code == 0, result.output
    assert "Places of gelu" in result.stdout
    result = CliRunner().invoke(cli, ["optimize", "--explain=gelu_orf", str(source), str(tmp_path / "three"), *ends])
    assert result.exit_code == 2
    assert "'gelu_orf' is no fusion. Did you mean 'gelu_erf'?" in result.stderr
    result = CliRunner().invoke(cli, ["optimize", "--explain", "gelu_orf", str(source), str(tmp_path / "three"), *ends])
    assert result.exit_code == 2
    assert "--explain 'gelu_orf' names no fusion. Did you mean 'gelu_erf'?" in result.stderr


def test_explain_is_shown_before_an_error(
    call: Callable[..., Result], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A miss, and a step that refuses the graph after the fusions: both come with what was left until then."""
    write_model(source / "text_encoder", BROKEN)
    missed = call("--explain", "--component", "text_encoder")
    assert missed.exit_code == 4
    assert "--explain" not in missed.stderr
    monkeypatch.setattr("sdort.passes.upgrade.inexpressible", lambda *_: "no kernel takes this")
    refused = call("--explain", "--component", "text_encoder")
    assert refused.exit_code == 4
    assert "no kernel takes this, and there is no rule that lowers Gather" in refused.stderr
    assert "Until the error: 1 place that should have fused did not." in refused.stdout
    for result in (missed, refused):
        assert MISS in lines(result.stdout)
    printed = json.loads(call("--explain", "--json", "--component", "text_encoder").stdout)
    assert printed["exit_code"] == 4
    (place,) = printed["report"]["components"]["text_encoder"]["fusions"]["gelu_erf"]["left"]
    assert (place["node"], place["matched"], place["of"]) == ("Erf.3", 1, 5)
    assert call("--component", "text_encoder").stdout == ""


# --- OUT that exists ---


def test_an_existing_out_is_replaced_if_asked(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    assert call().exit_code == 0
    before = files(tmp_path / "out")
    (source / "model_index.json").write_text("{}")
    result = call("--fp16")
    assert result.exit_code == 7
    assert "--overwrite" in result.stderr
    assert files(tmp_path / "out") == before
    assert call("--fp16", "--overwrite").exit_code == 0
    assert files(tmp_path / "out")["model_index.json"] == b"{}"
    assert json.loads(files(tmp_path / "out")["sdort.json"])["optimized"]["fp16"]


def test_a_failure_leaves_an_existing_out_as_it_was(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    assert call().exit_code == 0
    before = files(tmp_path / "out")
    write_model(source / "text_encoder_2", ENCODER.replace(GELU, "g = Mul (h, a)"))
    assert call("--overwrite").exit_code == 4
    assert files(tmp_path / "out") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


# --- usage ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--disable", "gelu_orf"], ["'gelu_orf' names no fusion", "Did you mean 'gelu_erf'?", "sdort fusions"]),
        (["--component", "vae"], ["no component 'vae'", "text_encoder, text_encoder_2"]),
        (["--component", "text_encodr"], ["Did you mean 'text_encoder'?"]),
        (["--expect", "Gelu"], ["is not NAME=COUNT"]),
        (["--expect", "Gelu=-1"], ["is not NAME=COUNT"]),
        (["--expect", "unet:Gelu=1"], ["--expect unet:Gelu", "no component 'unet'"]),
        (["--io-fp16"], ["Usage: ", "--io-fp16 needs --fp16"]),
        (["--provider", "vulkan"], ["'vulkan' is not one of"]),
    ],
)
def test_requests_that_name_nothing(
    call: Callable[..., Result], tmp_path: Path, options: list[str], words: list[str]
) -> None:
    refused(call(*options), tmp_path, 2, *words)


def test_an_input_that_is_not_there(call: Callable[..., Result], tmp_path: Path) -> None:
    refused(call(given=tmp_path / "nowhere"), tmp_path, 2, "nowhere does not exist")


def test_a_usage_error_is_json_too(call: Callable[..., Result]) -> None:
    result = call("--disable", "gelu_orf", "--json")
    assert json.loads(result.stdout)["exit_code"] == result.exit_code == 2


def test_a_disabled_fusion_is_left_out(call: Callable[..., Result], tmp_path: Path) -> None:
    assert call("--disable", "gelu_erf", "--component", "text_encoder").exit_code == 0
    proto = onnx.load(tmp_path / "out" / "text_encoder" / "model.onnx")
    assert "Erf" in {node.op_type for node in proto.graph.node}


# --- what should have fused ---


@pytest.mark.parametrize(
    ("expected", "found"),
    [("Gelu=2", None), ("text_encoder:Gelu=1", None), ("Gelu=1", 2), ("text_encoder_2:Gelu=0", 1)],
)
def test_expected_counts(call: Callable[..., Result], tmp_path: Path, expected: str, found: int | None) -> None:
    result = call("--expect", expected)
    if found is None:
        assert result.exit_code == 0
    else:
        refused(result, tmp_path, 4, f"--expect {expected}: found {found}")


def test_an_expected_operator_that_is_misspelt(call: Callable[..., Result], tmp_path: Path) -> None:
    refused(call("--expect", "Gelo=2"), tmp_path, 4, "--expect Gelo=2: found 0. Did you mean 'Gelu'?")


def test_what_is_expected_is_not_forgiven(call: Callable[..., Result], tmp_path: Path) -> None:
    result = call("--expect", "Gelu=7", "--allow-misses")
    refused(result, tmp_path, 4, "--expect Gelu=7: found 2")
    assert "--allow-misses" not in result.stderr


def test_a_miss_is_an_error_with_a_report(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    write_model(source / "text_encoder", ENCODER.replace(GELU, "g = Mul (h, a)"))
    result = call("--report", tmp_path / "report.json")
    refused(
        result,
        tmp_path,
        4,
        "1 place that should have fused did not",
        "gelu_erf left 1 of 1 Erf, 'Erf.3': expected Mul",
        "1 of 5 nodes",
        "--allow-misses",
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["misses"]) == 1
    assert report["misses"][0] == "text_encoder: gelu_erf left 'Erf.3': " + MISS.partition("Erf.3 ")[2]
    assert report["components"]["text_encoder"]["fusions"]["gelu_erf"]["candidates"] == 1


def test_misses_may_be_allowed(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    write_model(source / "text_encoder", ENCODER.replace(GELU, "g = Mul (h, a)"))
    result = call("--allow-misses", "--report", tmp_path / "report.json")
    assert result.exit_code == 0
    assert MISS in lines(result.stdout)
    assert "But 1 place that should have fused did not." in result.stdout
    assert (tmp_path / "out" / "text_encoder" / "model.onnx").is_file()
    assert len(json.loads((tmp_path / "report.json").read_text())["misses"]) == 1


def config(source: Path, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (source / "text_encoder" / "config.json").write_text(text)


def test_a_graph_that_is_not_what_its_config_says(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    config(source, {"num_hidden_layers": 2, "hidden_act": "gelu"})
    result = call()
    refused(
        result, tmp_path, 4,
        "text_encoder: attention: expected 2 Attention, found 0",
        "text_encoder: layer_norm: expected 5 LayerNormalization, found 1",
        "text_encoder: gelu: expected 2 Gelu, found 1",
    )  # fmt: skip
    assert "text_encoder_2" not in result.stderr
    # Who leaves a fusion out cannot have its count.
    assert call("--disable", "gelu").exit_code == 0


@pytest.mark.parametrize("content", ["{", "[]", {"num_hidden_layers": "many"}])
def test_a_broken_config(call: Callable[..., Result], source: Path, tmp_path: Path, content: Any) -> None:
    config(source, content)
    refused(call(), tmp_path, 3, "text_encoder/config.json")


@pytest.mark.parametrize("content", [{}, {"num_hidden_layers": 1, "hidden_act": "x"}])
def test_a_config_that_says_nothing(call: Callable[..., Result], source: Path, content: Any) -> None:
    config(source, content)
    result = call("-v")
    assert result.exit_code == 0
    assert "no counts can be derived from" in result.stderr


# --- bad models, full numbers ---


def test_an_overflow_names_the_weight(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    wide = WEIGHTS["width"].copy()
    wide[3, 4] = -70000
    write_model(source / "text_encoder_2", width=wide)
    refused(call("--fp16"), tmp_path, 5, "component 'text_encoder_2'", "1 weights: width", "without --fp16")
    assert call().exit_code == 0


def test_broken_models(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    path = source / "text_encoder_2" / "model.onnx"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    refused(call(), tmp_path, 3, "text_encoder_2")
    write_model(path.parent, CLASSIFIER)
    refused(call(), tmp_path, 3, "is no text_encoder_2", "clip_input")
    proto = parse(ENCODER, WEIGHTS, 17)
    onnx.save(proto, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    (path.parent / "weights.bin").unlink()
    refused(call(), tmp_path, 3, "component 'text_encoder_2'", "weights.bin")


def test_a_folder_without_models(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    for name in ("text_encoder", "text_encoder_2"):
        shutil.rmtree(source / name)
    refused(call(), tmp_path, 3, "is not exported yet", "sdort export")


def test_a_report_that_cannot_be_written(call: Callable[..., Result], tmp_path: Path) -> None:
    refused(call("--report", tmp_path / "none" / "report.json"), tmp_path, 7, "cannot write", "none")
    (tmp_path / "report.json").write_text("an earlier one")
    refused(call("--report", tmp_path / "report.json"), tmp_path, 7, "report.json exists", "--overwrite")
    assert (tmp_path / "report.json").read_text() == "an earlier one"
    assert call("--report", tmp_path / "report.json", "--overwrite").exit_code == 0
    assert json.loads((tmp_path / "report.json").read_text())["misses"] == []


def test_a_report_takes_no_models_place(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    before = files(source)
    model = source / "text_encoder" / "model.onnx"
    refused(call("--report", model, "--overwrite"), tmp_path, 7, "belongs to the input")
    refused(call("--report", tmp_path / "out" / "report.json"), tmp_path, 2, "lies in the output folder")
    assert files(source) == before


def test_out_may_not_be_the_input(source: Path) -> None:
    before = files(source)
    result = CliRunner().invoke(cli, ["optimize", str(source), str(source), "--overwrite"])
    assert result.exit_code == 2
    assert "is the input" in result.stderr
    inside = CliRunner().invoke(cli, ["optimize", str(source), str(source / "fast")])
    assert inside.exit_code == 2
    assert f"fast lies in the input ({source})" in inside.stderr
    assert files(source) == before


# --- as a library ---


def test_from_python(source: Path, tmp_path: Path) -> None:
    report = optimize(source, tmp_path / "out", provider="cuda", expect={"Gelu": 2})
    assert (report.provider, report.misses, list(report.components)) == ("cuda", [], ["text_encoder", "text_encoder_2"])
    assert report.seconds > 0
    with pytest.raises(UsageError, match="'nothing' names no fusion"):
        optimize(source, tmp_path / "other", disable=["nothing"])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("vendors", "provider", "asked", "used", "reason"),
    [
        (["nvidia"], "cuda", None, True, "the library here has kernels for cuda"),
        (["nvidia"], "rocm", None, False, "the library here has no kernels for amd GPUs"),
        (["nvidia"], "cpu", None, False, "cpu has none"),
        (None, "cuda", None, False, "the library is not built here (sdort ops build builds it)"),
        (None, "cuda", True, True, "as asked"),
        (["amd"], "rocm", False, False, "as asked"),
        (["nvidia"], "cpu", True, False, "cpu has none"),
    ],
)
def test_sdorts_operators_are_used_where_there_are_kernels(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vendors: list[str] | None,
    provider: str,
    asked: bool | None,
    used: bool,
    reason: str,
) -> None:
    built = Description((), tuple(CodeObject(vendor, "one", 1) for vendor in vendors or ()))
    monkeypatch.setattr(library, "resolve", lambda setting: tmp_path / "library.so" if vendors else None)
    monkeypatch.setattr(library, "describe_library", lambda path: built)
    gelu = """m = MatMul (x, w)  b = Add (m, bias)  hidden, gate = Split <axis = -1, num_outputs = 2> (b)
        act = Gelu (gate)  y = Mul (hidden, act)"""
    text = f"g (float[B, S, 8] x) => (float[B, S, 8] y) {{ {gelu} }}"
    model = parse(text, {"w": np.ones((8, 16), np.float32), "bias": np.ones(16, np.float32)}, 20)
    onnx.save(model, tmp_path / "one.onnx")
    words = [] if asked is None else ["--sdort-ops" if asked else "--no-sdort-ops"]
    files = [str(tmp_path / name) for name in ("one.onnx", "out")]
    arguments = ["optimize", *files, "--any-graph", "--provider", provider, *words]
    report = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)
    assert (report["sdort_ops"], report["sdort_ops_reason"]) == (used, reason)
    (component,) = report["components"].values()
    assert component["operators"].get("sdort.BiasSplitGelu", 0) == used
    shown = CliRunner().invoke(cli, [*arguments, "--overwrite"])
    printed = f"sdort's own operators: {'used' if used else 'not used'}, {reason}"
    assert (printed in shown.stdout) == (provider != "cpu")
    assert ("--sdort-ops changes nothing" in shown.stderr) == (provider == "cpu" and asked is True)
