"""bf16: which targets have it, how a model says so, what is made of that when it is opened, and how it is emulated."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from support import fragile
from support.fragile import Fragile
from support.small_models import evaluate, write
from support.tiny_pipeline import Tiny

from sdort.cli import cli
from sdort.engines.rounding import emulate, emulate_graph, narrow_tensors
from sdort.errors import BadModelError, ProviderError, UsageError
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.precision_mark import BF16, PRECISION_KEY, made_for_bf16, stored_dtype
from sdort.onnx_io.standard_operators import expand
from sdort.passes.widen import names_of_dtype
from sdort.providers import CPU
from sdort.providers.bf16 import check_bf16, refuse_bf16, with_bf16
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.provider import Provider
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import session as session_module
from sdort.runtime.session import open_session
from sdort.runtime.step.prepared_tensors import split_file
from sdort.tuning import key as key_module
from sdort.tuning.device import Machine
from sdort.tuning.key import make_key
from sdort.verification.runners import RunConfiguration, open_component
from sdort.workload.samples import Sample, declared_inputs, make_inputs

ENABLED = {"migraphx_bf16_enable": "1"}
CHAIN = "g (float[B, 4] x) => (float[B, 4] y) { s = Add (x, w)  y = Mul (s, s) }"
WEIGHT = np.array([1.001, -3.3, 0.0007, 255.6], np.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Fragile:
    return fragile.build(tmp_path_factory.mktemp("fragile"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small fp32 model that was made for bf16."""
    made = write(tmp_path, CHAIN, {"w": WEIGHT})
    proto = onnx.load(made, load_external_data=False)
    proto.metadata_props.add(key=PRECISION_KEY, value=BF16)
    onnx.save(proto, made)
    return made


def narrow(values: Any) -> Any:
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def test_optimize_writes_fp32_that_says_bf16(models: Fragile, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = models.onnx / "vae_decoder" / "model.onnx"
    args = ["optimize", str(source), str(out), "--provider", "migraphx", "--bf16"]
    assert CliRunner().invoke(cli, args).exit_code == 0
    assert json.loads((out / "sdort.json").read_text())["optimized"]["precision"] == "bf16"
    proto = onnx.load(out / "model.onnx", load_external_data=False)
    kinds = {tensor.data_type for tensor in proto.graph.initializer}
    assert onnx.TensorProto.FLOAT in kinds
    assert not kinds & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    assert stored_dtype(proto) == "bfloat16"
    told = CliRunner().invoke(cli, ["inspect", str(out / "model.onnx"), "--json"])
    assert json.loads(told.stdout)["components"][0]["computed_in"] == "bf16"
    assert not made_for_bf16(source)


def test_what_is_not_made_for_bf16_does_not_say_so(models: Fragile, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = str(models.onnx / "vae_decoder" / "model.onnx")
    assert CliRunner().invoke(cli, ["optimize", source, str(out), "--provider", "migraphx"]).exit_code == 0
    assert json.loads((out / "sdort.json").read_text())["optimized"]["precision"] == "fp32"
    assert not made_for_bf16(out / "model.onnx")


def test_one_precision_at_a_time(models: Fragile, tmp_path: Path) -> None:
    source = str(models.onnx / "vae_decoder" / "model.onnx")
    args = ["optimize", source, str(tmp_path / "out"), "--provider", "migraphx", "--bf16", "--fp16"]
    done = CliRunner().invoke(cli, args)
    assert (done.exit_code, "exclude each other" in done.output) == (2, True), done.output


def test_only_migraphx_has_it() -> None:
    refuse_bf16(MIGRAPHX)
    assert [each.name for each in (ROCM, MIGRAPHX, CUDA, CPU) if each.bf16] == ["migraphx"]


def test_its_option_is_set_where_a_model_asks_for_it(path: Path, tmp_path: Path) -> None:
    asked = RuntimeOptions("migraphx", provider_options={"migraphx_fp8_enable": "0"})
    found = with_bf16(path, "unet", MIGRAPHX, asked)
    assert found.provider_options == {"migraphx_fp8_enable": "0", **ENABLED}
    assert with_bf16(path, "unet", MIGRAPHX, found) == found
    assert with_bf16(path, "unet", CPU, asked) is asked
    (tmp_path / "plain").mkdir()
    assert with_bf16(write(tmp_path / "plain", CHAIN, {"w": WEIGHT}), "unet", MIGRAPHX, asked) is asked


def test_a_model_tells_what_it_was_made_for_before_or_behind_its_graph(path: Path, tmp_path: Path) -> None:
    """What cannot be read was made for nothing; who opens it says why."""
    metadata = onnx.ModelProto()
    metadata.metadata_props.add(key="other", value="x" * 2000)
    metadata.metadata_props.add(key=PRECISION_KEY, value=BF16)
    graph = onnx.ModelProto(graph=onnx.GraphProto(doc_string="d" * 2**21)).SerializeToString()
    file = tmp_path / "some.onnx"
    told = metadata.SerializeToString()
    for content, made in ((graph + told, True), (told + graph, True), (graph, False), (told + graph[:-1], False)):
        file.write_bytes(content)
        assert made_for_bf16(file) is made
    assert made_for_bf16(path)
    assert not made_for_bf16(tmp_path / "absent.onnx")


@pytest.mark.parametrize(("name", "value"), [("migraphx_fp16_enable", "1"), ("migraphx_bf16_enable", "0")])
def test_another_precision_is_refused(path: Path, name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name}={value}: .* was made for bf16"):
        with_bf16(path, "unet", MIGRAPHX, RuntimeOptions(provider_options={name: value}))


@pytest.mark.parametrize("provider", [ROCM, CUDA])
def test_a_gpu_s_provider_without_bf16_is_refused(path: Path, provider: Provider) -> None:
    with pytest.raises(ProviderError, match=f"in which {provider.name} does not compute"):
        open_session(path, "unet", provider, RuntimeOptions(provider.name))


def test_a_release_without_the_option_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (release, known), *_ = MIGRAPHX.releases.items()
    older = {name: option for name, option in known.items() if name not in ENABLED}
    monkeypatch.setitem(MIGRAPHX.releases, release, older)
    with pytest.raises(ProviderError, match="has no migraphx_bf16_enable"):
        with_bf16(path, "unet", MIGRAPHX, RuntimeOptions())


def opened(path: Path, monkeypatch: pytest.MonkeyPatch, says: dict[str, str]) -> list[RuntimeOptions]:
    """What sessions are made with by ``open_session``, on a provider that says ``says`` of its options."""
    made: list[RuntimeOptions] = []

    def create(file: str, provider: Provider, options: RuntimeOptions, **settings: Any) -> Any:
        made.append(options)
        return SimpleNamespace(
            get_providers=lambda: [provider.ep], get_provider_options=lambda: {provider.ep: says},
            get_inputs=list, get_outputs=list,
        )  # fmt: skip

    monkeypatch.setattr(session_module, "create_session", create)
    open_session(path, "unet", MIGRAPHX, RuntimeOptions("migraphx"))
    return made


def test_a_session_is_opened_in_bf16(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [options] = opened(path, monkeypatch, ENABLED)
    assert options.provider_options == ENABLED


def test_a_session_that_left_the_option_off_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProviderError, match="has 0: this is not bf16"):
        opened(path, monkeypatch, {"migraphx_bf16_enable": "0"})
    # A model in fp32 is asked nothing.
    check_bf16(SimpleNamespace(), "unet", MIGRAPHX, RuntimeOptions("migraphx"))


def test_tuning_results_are_kept_apart(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Machine("gfx1100", 48, "7.0", MIGRAPHX.ep, "2.14", "onnxruntime-migraphx 1.27.1")
    monkeypatch.setattr(key_module, "this_machine", lambda *_: here)
    found = make_key(path, "unet", MIGRAPHX, RuntimeOptions("migraphx", custom_ops="off"), {})
    assert ("migraphx_bf16_enable", "1") in found.options


def test_emulated_results_are_those_of_bf16(path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    [y] = evaluate(emulate(path, "unet"), path.parent, {"x": x})
    added = narrow(narrow(x) + narrow(WEIGHT))
    np.testing.assert_array_equal(y, narrow(added * added))
    assert not np.array_equal(y, (x + WEIGHT) ** 2)


def test_verify_emulates_it_on_the_cpu(path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    found = open_component(path, "unet", RunConfiguration(CPU, RuntimeOptions("cpu"))).run({"x": x})["y"]
    np.testing.assert_array_equal(found, narrow(found))


def test_verify_says_which_limits_hold(models: Fragile, tmp_path: Path) -> None:
    source = models.onnx / "vae_decoder" / "model.onnx"
    assert CliRunner().invoke(
        cli, ["optimize", str(source), str(tmp_path / "out"), "--provider", "migraphx", "--bf16"]
    ).exit_code == 0  # fmt: skip
    args = ["verify", str(tmp_path / "out" / "model.onnx"), "--against", str(source), "--provider", "cpu"]
    done = CliRunner().invoke(cli, [*args, "--component", "vae_decoder", "--inputs", "random", "--json"])
    record = json.loads(done.stdout)
    assert {each["precision"] for each in record["components"]} == {"bfloat16"}
    assert record["passed"], record
    # Rounded to bf16, and not to fp16, whose limit this exceeds.
    assert all(each["mean_share"] > 3e-3 for each in record["components"]), record


@pytest.mark.parametrize(
    ("provider", "also"), [(ROCM, " For an AMD GPU also: --provider migraphx."), (CUDA, ""), (CPU, "")]
)
def test_the_refusal_names_a_provider_for_the_same_gpu(provider: Provider, also: str) -> None:
    with pytest.raises(UsageError, match=f"--bf16 is not possible for {provider.name}: ") as caught:
        refuse_bf16(provider)
    assert caught.value.message.endswith(provider.no_bf16)
    assert caught.value.hint == f"Take --fp16 auto: it keeps in fp32 what fp16 cannot hold.{also}"


@pytest.mark.parametrize("value", ["0", "1", "true", "false", "True", "False"])
@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp8", "int8"])
def test_a_precision_that_is_asked_for_has_to_be_the_models(path: Path, kind: str, value: str) -> None:
    name, on = f"migraphx_{kind}_enable", value in ("1", "true", "True")
    options = RuntimeOptions(provider_options={"migraphx_exhaustive_tune": "1", name: value})
    if on == (kind == "bf16"):
        found = with_bf16(path, "unet", MIGRAPHX, options)
        assert found.provider_options == {**options.provider_options, **ENABLED}
    else:
        with pytest.raises(UsageError, match=f"{name}={value}: .* was made for bf16"):
            with_bf16(path, "unet", MIGRAPHX, options)


def test_who_knows_what_a_model_was_made_for_need_not_ask_its_file(path: Path, tmp_path: Path) -> None:
    asked = RuntimeOptions("migraphx")
    assert with_bf16(path, "unet", MIGRAPHX, asked, made=False) is asked
    found = with_bf16(tmp_path / "absent.onnx", "unet", MIGRAPHX, asked, made=True)
    assert found.provider_options == ENABLED
    assert with_bf16(path, "unet", CPU, asked, made=True) is asked
    with pytest.raises(ProviderError, match="in which cuda does not compute") as caught:
        with_bf16(tmp_path / "absent.onnx", "unet", CUDA, asked, made=True)
    assert "Run it on migraphx, or" in str(caught.value.hint)
    assert "--provider cuda" in str(caught.value.hint)


@pytest.mark.parametrize("value", [None, "0", "false", "1", "true", "True"])
def test_a_session_has_to_say_that_it_computes_in_bf16(value: str | None) -> None:
    told = {MIGRAPHX.ep: {} if value is None else {"migraphx_bf16_enable": value}, CPU.ep: ENABLED}
    session = SimpleNamespace(get_provider_options=lambda: told)
    asked = RuntimeOptions("migraphx", provider_options={"migraphx_fp8_enable": "0", **ENABLED})
    if value in ("1", "true", "True"):
        check_bf16(session, "unet", MIGRAPHX, asked)
    else:
        with pytest.raises(ProviderError, match=f"has {value or 'no such option'}: this is not bf16"):
            check_bf16(session, "unet", MIGRAPHX, asked)


@pytest.mark.parametrize(("name", "value", "fits"), [("BF16", "0", False), ("FP16", "1", False), ("BF16", "1", True)])
def test_a_variable_in_the_place_of_the_option_is_refused(
    name: str, value: str, fits: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ORT_MIGRAPHX_{name}_ENABLE", value)
    if fits:
        assert with_bf16(path, "unet", MIGRAPHX, RuntimeOptions("migraphx")).provider_options == MIGRAPHX.bf16
        return
    with pytest.raises(ProviderError, match=f"ORT_MIGRAPHX_{name}_ENABLE={value} in the environment takes the place"):
        with_bf16(path, "unet", MIGRAPHX, RuntimeOptions("migraphx"))


def error_of(emulated: onnx.ModelProto, unet: Path) -> float:
    """The root mean square error of an emulation, relative to the standard deviation of the fp32 result."""
    feeds = make_inputs(declared_inputs(onnx.load(unet), "unet"), Sample(2, 8, 8, 77), "unet", 0)
    feeds |= {name: np.full(np.shape(feeds[name]), 981, feeds[name].dtype) for name in ("timestep",)}
    exact = onnx.load(unet)
    expand(exact)
    [wanted], [found] = (evaluate(proto, unet.parent, feeds) for proto in (exact, emulated))
    return float(np.sqrt(np.square(found - wanted).mean()) / wanted.std())


def test_what_runs_before_the_steps_stays_in_fp32(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["optimize", str(tiny.onnx / "unet" / "model.onnx"), str(tmp_path / "out"), "--provider", "migraphx"]
    assert CliRunner().invoke(cli, [*args, "--bf16"]).exit_code == 0
    unet = tmp_path / "out" / "model.onnx"
    waves = {name for node in onnx.load(unet).graph.node if node.op_type in ("Sin", "Cos") for name in node.output}
    split = split_file(read_component(unet, "unet"))
    assert waves
    assert split is not None
    assert not waves & narrow_tensors(unet, "unet")
    assert {info.name for info in split.step.graph.output} <= narrow_tensors(unet, "unet")
    assert error_of(emulate(unet, "unet"), unet) < 0.03
    everything = names_of_dtype(unet, "unet", np.dtype(np.float32))
    assert error_of(emulate_graph(read_component(unet, "unet").copy(), everything), unet) > 0.05
    made: list[tuple[set[str], dict[str, str]]] = []

    def create(model: bytes, provider: Provider, options: RuntimeOptions, **_: Any) -> Any:
        operators = {node.op_type for node in onnx.load_from_string(model).graph.node}
        made.append((operators, dict(options.provider_options)))
        raise RuntimeError("far enough")

    monkeypatch.setattr(session_module, "create_session", create)
    with pytest.raises(BadModelError, match="far enough"):
        open_session(unet, "unet", MIGRAPHX, RuntimeOptions("migraphx"))
    enabled = {"Conv" in operators: "migraphx_bf16_enable" in given for operators, given in made}
    assert enabled == {True: True, False: False}


@pytest.mark.parametrize("places", [True, False])
def test_a_component_that_computes_with_places_gets_a_warning(places: bool, tmp_path: Path) -> None:
    angle = "r = Range (zero, count, one)  f = Cast <to = 1> (r)  a = Mul (f, rate)  wave = Cos (a)"
    body = f"n = Shape <start = 1> (x)  count = Squeeze (n)  {angle}  y = Add (x, wave)" if places else "y = Neg (x)"
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[B, L] x) => (float[B, L] y)
        <float rate = {{0.7}}, int64 zero = {{0}}, int64 one = {{1}}> {{ {body} }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    args = ["optimize", str(tmp_path / "model.onnx"), str(tmp_path / "out"), "--provider", "migraphx", "--any-graph"]
    done = CliRunner().invoke(cli, [*args, "--bf16"])
    assert done.exit_code == 0, done.output
    assert ("has too few bits" in " ".join(done.stderr.split())) is places
