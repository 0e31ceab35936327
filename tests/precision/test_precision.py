"""``--fp16 auto``: what fp16 cannot hold is found, told by structure, and kept in fp32."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from click.testing import CliRunner, Result
from support import fragile
from support.exports import DYNAMO, Case
from support.fragile import COMPONENTS, Fragile
from support.parity import Parity, compare
from support.small_models import write

from sdort.cli import cli
from sdort.errors import ParityError, UsageError
from sdort.graph.weights import as_weight
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import PIPELINE, OptimizeOptions, PipelineRun
from sdort.onnx_io.load import load_model
from sdort.optimizer.command import optimize
from sdort.precision import cost
from sdort.precision.cost import name_by_owner, share, timed_run
from sdort.precision.fp32_selection import describe_result
from sdort.precision.plan import PLAN, make_rules, read_plan, select, write_plan
from sdort.precision.positions import find_positions, source, with_views
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.rewrite.editor import Editor
from sdort.workload.samples import Sample

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

Exported = Callable[[Case], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Fragile:
    return fragile.build(tmp_path_factory.mktemp("fragile"))


def as_on_a_gpu(original: Path, optimized: Path, component: str) -> Parity:
    """Parity of an fp16 model whose every result is stored in fp16."""
    path = optimized / component / "model.onnx"
    samples = (Sample(2, 16, 16), Sample(1, 8, 24))
    return compare(original / component / "model.onnx", path, component=component, samples=samples)


# --- fragile models ---


@pytest.mark.parametrize("component", ["unet", "vae_decoder"])
@pytest.mark.parametrize("provider", ["rocm", "cpu"])
def test_plain_fp16_overflows_in_the_fragile_models(models: Fragile, provider: str, component: str) -> None:
    with pytest.raises(ParityError, match="NaN or infinite"):
        as_on_a_gpu(models.onnx, models.optimized(provider, auto=False)[0], component)


@pytest.mark.parametrize("component", ["unet", "vae_decoder"])
@pytest.mark.parametrize("provider", ["rocm", "cpu"])
def test_auto_passes_parity(models: Fragile, provider: str, component: str) -> None:
    folder, _ = models.optimized(provider, auto=True)
    found = as_on_a_gpu(models.onnx, folder, component)
    found.check()
    assert found.worst.mean > 1e-5, "nothing was rounded, so nothing was emulated"


def test_the_islands_are_what_was_made_fragile(models: Fragile) -> None:
    folder, report = models.optimized("rocm", auto=True)
    plan = read_plan(folder / PLAN)
    (attention,) = plan["unet"]
    assert (attention.kind.operator, attention.blocks) == ("com.microsoft.MultiHeadAttention", None)
    assert attention.kind.reads == ("MatMul",), "cross-attention reads queries and keys apart, and is sound"
    assert plan["text_encoder"] == []
    operators = sorted(rule.kind.operator.rpartition(".")[2] for rule in plan["vae_decoder"])
    # post_quant_conv, conv_in, the last block's first convolution, and the normalization that reads it.
    assert operators == ["GroupNorm", "NhwcConv", "NhwcConv", "NhwcConv"]
    assert [rule.blocks for rule in plan["vae_decoder"] if rule.blocks] == [{"up 2": "every"}, {"up 2": [1]}]
    unet, decoder = (report.components[name].precision for name in ("unet", "vae_decoder"))
    assert unet is not None
    assert decoder is not None
    assert unet.measured == "recorded while generating"
    assert "the bound on its scores reaches 8e+04" in unet.rules[0].why
    vae = models.pipeline.vae
    convolutions = vae.post_quant_conv, vae.decoder.conv_in, vae.decoder.up_blocks[-1].resnets[0].conv1
    assert decoder.bytes == 2 * sum(p.numel() for each in convolutions for p in each.parameters())
    assert decoder.nodes == 4
    assert 0 < (decoder.share_of_time or 0) < 1
    assert decoder.without == "sample has NaN or infinite values (100 % of it)"
    assert re.fullmatch(r"sample is off by \d\.\de-0[34] of its standard deviation in the mean", decoder.within)


def test_a_sound_model_has_no_islands(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    source = Path(shutil.copy(exported(Case("sd1", "ts17")), tmp_path / "unet" / "model.onnx"))
    outs = []
    for auto in (False, True):
        out = tmp_path / f"auto {auto}"
        report = optimize(source, out, provider="cpu", fp16="auto" if auto else True, allow_misses=True)
        outs.append((out / "model.onnx").read_bytes())
    assert outs[0] == outs[1]
    selection = report.components["unet"].precision
    assert selection is not None
    assert (selection.rules, selection.measured) == ([], "random")


# --- what it costs ---

FUSED = """g (float[1, 8, 8, 32] x) => (float[1, 8, 8, 32] z) {
    a = Relu (x)
    b = com.microsoft.GroupNorm <epsilon = 0.00001, groups = 4, activation = 1, channels_last = 1> (a, gamma, beta)
    y = Tanh (b)
    z = Mul (y, b)
}"""


def test_a_node_that_is_expanded_is_timed_as_one(tmp_path: Path) -> None:
    ones = np.ones(32, np.float32)
    path = write(tmp_path, FUSED, {"gamma": ones, "beta": ones})
    proto = onnx.load(path, load_external_data=False)
    for node in proto.graph.node:
        node.name = f"the {node.op_type}"
    feed = {"x": np.random.default_rng(0).normal(size=(1, 8, 8, 32)).astype(np.float32)}
    outputs, times = timed_run(proto, feed, tmp_path, "unet")
    assert set(times) == {"the Relu", "the GroupNorm", "the Tanh", "the Mul"}
    normal = feed["x"].clip(0).reshape(1, 64, 4, 8)
    normal = (normal - normal.mean((1, 3), keepdims=True)) / np.sqrt(normal.var((1, 3), keepdims=True) + 1e-5) + 1
    silu = (normal / (1 + np.exp(-normal))).reshape(1, 8, 8, 32)
    np.testing.assert_allclose(outputs["z"], np.tanh(silu) * silu, rtol=1e-4, atol=1e-5)
    assert [each.name for each in tmp_path.iterdir() if "profile" in each.name] == []


def test_all_parts_of_an_expanded_node_take_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel of this run takes 7 us: the expanded GroupNorm has more than one, the others one each."""
    path = write(tmp_path, FUSED, {"gamma": np.ones(32, np.float32), "beta": np.ones(32, np.float32)})
    proto = onnx.load(path, load_external_data=False)
    for node in proto.graph.node:
        node.name = f"the {node.op_type}"
    kernels: list[str] = []

    def equal_times(text: str) -> list[dict[str, Any]]:
        events = json.loads(text)
        # ONNX Runtime may add a Cast of its own.
        kernels.extend(name for event in events if (name := event["name"]).startswith("timed_"))
        return [{**event, "dur": 7} for event in events]

    monkeypatch.setattr(cost, "json", SimpleNamespace(loads=equal_times))
    _, times = timed_run(proto, {"x": np.ones((1, 8, 8, 32), np.float32)}, tmp_path, "unet")
    assert len(kernels) > 6
    assert times == {"the Relu": 7, "the Tanh": 7, "the Mul": 7, "the GroupNorm": 7 * (len(kernels) - 3)}


def test_nodes_have_the_time_of_what_came_of_them() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[4] x) => (float[4] p, float[4] q) {
        a = Neg (x)
        b, c = Split <axis = 0, num_outputs = 2> (a)
        p = Concat <axis = 0> (b, c)
        q = Abs (p)
    }"""
    inlined = list(onnx.parser.parse_model(text).graph.node)
    # As if the second had been a call that gave p, and named one output that nobody reads.
    owners = name_by_owner([("first", ["a"]), ("call", ["p", ""]), ("last", ["q"])], inlined)
    assert [owners[node.name] for node in inlined] == ["first", "call", "call", "last"]
    assert len(owners) == 4
    assert share({"first": 10, "call": 60, "last": 30}, {"call", "first", "other"}) == 0.7
    assert share({}, {"call"}) == 0


# --- plans ---


@cache
def prepared(path: Path, component: str, target: str = "rocm") -> Editor:
    """The graph as it is before it is converted; nobody changes it."""
    model = load_model(path, component)
    run = PipelineRun(Editor(model), OptimizeOptions(load_target(target)), ComponentReport(component))
    for step in PIPELINE:
        if step.name == "half":
            break
        step.run(run)
    return run.editor


def weights_of(editor: Editor, names: set[str]) -> Counter[str]:
    """The parameters of the named nodes and of those that they read: random, so they tell which is which."""
    nodes = [node for node in editor.graph.nodes if node.name in names]
    before = [made for node in nodes for t in node.inputs if (made := source(t)) is not None]
    tensors = (t for node in (*nodes, *before) for t in node.inputs if isinstance(t, gs.Constant))
    values = (np.ascontiguousarray(as_weight(t._values).load()) for t in tensors if int(np.prod(t.shape)) > 1)
    return Counter(hashlib.sha256(each.tobytes()).hexdigest() for each in values if each.dtype == np.float32)


CHOICES: dict[str, tuple[str, Callable[[gs.Node, Any], bool]]] = {
    "attention of every block": ("sd1", lambda node, place: node.op == "MultiHeadAttention"),
    "what projects queries and keys": ("sd1", lambda node, place: "MultiHeadAttention.0" in place.kind.feeds),
    "the last up block's convolutions": ("sd1", lambda node, place: "Conv" in node.op and place.block == "up 1"),
    "the second of its equals": ("sd1", lambda node, place: "Conv" in node.op and place.number == 1),
    "the decoder's last block": ("vae_decoder", lambda node, place: place.block == "up 2"),
    "the feed-forward of a text encoder": ("clip", lambda node, place: "QuickGelu.0" in place.kind.feeds),
}


@pytest.mark.parametrize("target", ["rocm", "cpu"])
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_a_plan_of_one_exporter_holds_for_another(
    exported: Exported, tmp_path: Path, choice: tuple[str, Any], target: str
) -> None:
    family, wanted = choice
    component = {"sd1": "unet", "clip": "text_encoder"}.get(family, family)
    other = next(case for case in DYNAMO if case.family == family and case.dynamic)
    script, dynamo = (prepared(exported(case), component, target) for case in (Case(family, "ts14"), other))
    found = find_positions(script)
    chosen = {node.name for node in script.graph.nodes if node.name in found and wanted(node, found[node.name])}
    assert chosen
    write_plan(tmp_path / PLAN, {component: make_rules(found, dict.fromkeys(chosen, "why"))}, target)
    rules = read_plan(tmp_path / PLAN)[component]
    assert set(select(rules, found, component)) == chosen, "the plan says more or less than what it was made from"
    there = set(select(rules, find_positions(dynamo), component))
    assert len(there) == len(chosen)
    assert len(weights_of(script, chosen)) > len(chosen) / 2, "nothing tells the nodes apart"
    assert weights_of(dynamo, there) == weights_of(script, chosen)


@pytest.mark.parametrize(
    ("family", "blocks"),
    [
        ("sd1_wide", {"down 0", "down 1", "middle", "up 1", "up 2"}),
        ("vae_decoder", {"middle", "up 1", "up 2"}),
        ("vae_encoder", {"down 0", "down 1", "middle"}),
        ("clip", {"all"}),
    ],
)
def test_blocks_are_told_by_the_resolution(exported: Exported, family: str, blocks: set[str]) -> None:
    component = {"sd1_wide": "unet", "clip": "text_encoder"}.get(family, family)
    case = Case(family, "ts17" if component == "unet" else "dy23")
    assert {place.block for place in find_positions(prepared(exported(case), component)).values()} == blocks


def test_what_only_shows_a_tensor_stays_with_it(exported: Exported) -> None:
    editor = prepared(exported(Case("vae_decoder", "ts17")), "vae_decoder", "cpu")
    norms = {node.name for node in editor.graph.nodes if node.op == "InstanceNormalization"}
    after = {node.name for node in editor.graph.nodes if node.op == "Mul"}
    assert with_views(editor, norms) == norms
    kept = with_views(editor, norms | after)
    assert {node.op for node in editor.graph.nodes if node.name in kept - norms - after} == {"Reshape"}


def test_a_plan_is_followed_without_measuring(models: Fragile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = models.optimized("rocm", auto=True)

    def never(*_: Any) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("sdort.precision.fp32_selection.measure_ranges", never)
    report = optimize(
        models.onnx, tmp_path / "out", provider="rocm", fp16=True, fp16_plan=made / PLAN, allow_misses=True
    )
    for component in COMPONENTS:
        model = Path(component) / "model.onnx"
        assert (tmp_path / "out" / model).read_bytes() == (made / model).read_bytes()
    selection = report.components["unet"].precision
    assert selection is not None
    assert selection.rules[0].why.startswith("the bound on its scores")
    assert (tmp_path / "out" / PLAN).read_bytes() == (made / PLAN).read_bytes()


def test_a_plan_for_another_provider_is_refused(models: Fragile, tmp_path: Path) -> None:
    plan = models.optimized("rocm", auto=True)[0] / PLAN
    with pytest.raises(
        UsageError, match="rule for MultiHeadAttention from MatMul to MatMul, everywhere fits no node"
    ) as caught:
        optimize(models.onnx, tmp_path / "out", provider="cpu", fp16=True, fp16_plan=plan, allow_misses=True)
    assert caught.value.component == "unet"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"fp16-plan": 1}', '{"fp16-plan": 1, "components": {"unet": [{}]}}'])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UsageError, match="no plan of what stays in fp32"):
        read_plan(tmp_path / "plan.json")


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"fp16-plan": 2, "components": {}}')
    with pytest.raises(UsageError, match="another version, 2"):
        read_plan(tmp_path / "plan.json")


# --- the command ---


def call(*args: str) -> Result:
    return CliRunner().invoke(cli, ["optimize", *args, "--provider", "cpu", "--allow-misses"])


@pytest.fixture(scope="module")
def one(models: Fragile) -> str:
    return str(models.onnx / "vae_decoder" / "model.onnx")


def test_fp16_may_stand_anywhere_with_and_without_a_value(one: str, tmp_path: Path) -> None:
    out = [str(tmp_path / str(index)) for index in range(4)]
    assert call("--fp16", one, out[0]).exit_code == 0
    assert call(one, "--fp16", out[1]).exit_code == 0
    told = call("--fp16", "auto", one, out[2], "--explain")
    assert call("--fp16=auto", one, out[3]).exit_code == 0
    # The scan of random inputs finds the same.
    assert "vae_decoder: in fp32: 5 nodes" in told.output
    assert "Conv from input to Conv, everywhere: its output" in told.output
    assert "in fp16 alone sample has NaN or infinite values (100 % of it); like this sample is off by" in told.output
    assert "has no effect" not in told.output, "it warned of its own prompt"
    assert [Path(each, PLAN).exists() for each in out] == [False, False, True, True]
    casts = [len(load_model(Path(each) / "model.onnx").graph.nodes) for each in out]
    assert casts[0] == casts[1] < casts[2] == casts[3]


def test_json_tells_the_islands(one: str, tmp_path: Path) -> None:
    result = call(one, str(tmp_path / "out"), "--fp16", "auto", "--json", "-q")
    precision = json.loads(result.stdout)["components"]["vae_decoder"]["precision"]
    assert precision["measured"] == "random"
    assert all("reaches" in island["why"] for island in precision["islands"])


@pytest.mark.parametrize("provider", [name for name in PROVIDER_NAMES if name != "migraphx"])
def test_bf16_is_refused_with_a_reason(one: str, tmp_path: Path, provider: str) -> None:
    result = CliRunner().invoke(cli, ["optimize", one, str(tmp_path / "out"), "--bf16", "--provider", provider])
    assert result.exit_code == UsageError.exit_code, result.output
    assert f"--bf16 is not possible for {provider}: " in result.stderr
    # What stands in its way on the GPUs are operators that sdort makes for them and that no kernel takes in bf16.
    missing = {"NhwcConv", "GroupNorm", "BiasAdd"} if provider in ("rocm", "cuda") else set()
    assert missing <= {name.rpartition(".")[2] for name in load_target(provider).conditions}
    assert all(name in result.stderr for name in missing)
    assert not (tmp_path / "out").exists()


def test_the_outcome_in_words() -> None:
    y = np.array([1.0, 3.0])
    assert describe_result({"y": y}, {"y": y + 0.5}) == "y is off by 5.0e-01 of its standard deviation in the mean"
    assert describe_result({"y": y * np.nan}, {"y": y}) == "y has NaN or infinite values (100 % of it)"
    assert describe_result({"y": np.ones(2)}, {"y": y}) == "y is constant"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--fp16-plan", "PLAN"), "--fp16-plan needs --fp16"),
        (("--fp16", "auto", "--fp16-plan", "PLAN"), "auto makes its own plan"),
        (("--fp16=half",), "'half' is not one of"),
    ],
)
def test_what_makes_no_sense_together(one: str, tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    result = call(one, str(tmp_path / "out"), *(str(plan) if each == "PLAN" else each for each in args))
    assert (result.exit_code, message in result.output) == (2, True), result.output
