"""A model opens with the library of sdort's operators as it opens without it, and computes the same."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper, parser
from support import native
from support.parity import open_raw as open_for_verify
from support.small_graphs import Array

from sdort.cli import cli
from sdort.operator_library import library, opening
from sdort.providers import CPU, PROVIDERS
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import session
from sdort.runtime.session import open_session

FUNCTION = """<ir_version: 10, opset_import: ["": 18, "sdort": 1]>
g (float[N] x) => (float[N] y) { y = sdort.Twice (x) }
<domain: "sdort", opset_import: ["": 18]> Twice (x) => (y) { y = Add (x, x) }"""
SIGNATURE = "g (float[N, S, 8] x, float[N, S, 8] w) => (float[N, S, K] y)"
BODIES = {
    # What ONNX Runtime makes of them is behind each.
    "a transposed product": "t = Transpose <perm = [0, 2, 1]> (w)  y = MatMul (x, t)",  # FusedMatMul
    "a scaled product": "t = Transpose <perm = [0, 2, 1]> (w)  m = MatMul (x, t)  y = Mul (m, half)",  # FusedMatMul
    "SiLU": "s = Sigmoid (x)  y = Mul (x, s)",  # QuickGelu
    "Gelu": "d = Div (x, root)  r = Erf (d)  a = Add (r, one)  c = Mul (x, a)  y = Mul (c, half)",  # Gelu
    "a convolution and Relu": "i = Unsqueeze (x, zero)  c = Conv (i, filters)  r = Relu (c)  y = Squeeze (r, zero)",
    "a skip": "a = Add (x, w)  y = LayerNormalization <axis = -1> (a, gamma)",  # SkipLayerNormalization
    "a skip and its mean": "a = Add (x, w)  n, m = LayerNormalization <axis = -1> (a, gamma)  y = Add (n, m)",
    "a skip and outputs that nobody reads": "a = Add (x, w)  y, mean, deviation = LayerNormalization (a, gamma)",
    "a norm in float64": """d = Cast <to = 11> (x)  s = Cast <to = 11> (gamma)
        n = LayerNormalization (d, s)  y = Cast <to = 1> (n)""",
    "a norm of a scale whose type nobody tells": "s = Identity (gamma)  y = LayerNormalization (x, s)",
    "a norm whose scale is broadcast": "y = LayerNormalization <axis = -2> (x, gamma)",
    "a norm in single operators and two types": """c = Cast <to = 1> (x)  m = ReduceMean <keepdims = 1> (c, last)
        d = Sub (c, m)  q = Mul (d, d)  v = ReduceMean <keepdims = 1> (q, last)  e = Add (v, half)  r = Sqrt (e)
        n = Div (d, r)  y = Mul (n, gamma)""",
}
FUSED = {
    "a masked attention": "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, w, w, , , mask)",
    "an attention": "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, w, w)",
}
IMPORT = ', "com.microsoft" : 1'


def write(folder: Path, body: str, imports: str = "", *, external: bool = False) -> Path:
    rng = np.random.default_rng(1)
    weights: dict[str, Array] = {
        "gamma": rng.standard_normal(8).astype(np.float32),
        "gammas": rng.standard_normal(16).astype(np.float32),
        "mask": rng.standard_normal((1, 1, 3, 3)).astype(np.float32),
        "filters": rng.standard_normal((2, 2, 1, 1)).astype(np.float32),
        "one": np.array(1, np.float32),
        "half": np.array(0.5, np.float32),
        "root": np.array(np.sqrt(2), np.float32),
        "zero": np.array([0]),
        "last": np.array([-1]),
    }
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18{imports}]> {SIGNATURE} {{ {body} }}')
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(weights[n]), n) for n in sorted(used & {*weights})
    )
    folder.mkdir(exist_ok=True)
    onnx.save(proto, folder / "model.onnx", save_as_external_data=external, size_threshold=48, location="weights.bin")
    return folder / "model.onnx"


def feeds() -> dict[str, Array]:
    rng = np.random.default_rng(2)
    return {name: rng.standard_normal((2, 3, 8)).astype(np.float32) for name in ("x", "w")}


def outputs(path: Path, custom_ops: str) -> Array:
    """What the product's session computes."""
    session = open_session(path, "unet", CPU, RuntimeOptions("cpu", custom_ops=custom_ops))
    return next(iter(session.run(feeds()).values()))


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
@pytest.mark.parametrize("name", [*BODIES, *FUSED])
def test_a_model_opens_as_without_the_library(name: str, external: bool, tmp_path: Path) -> None:
    body, imports = (BODIES[name], "") if name in BODIES else (FUSED[name], IMPORT)
    path = write(tmp_path / "m", body, imports, external=external)
    before = path.read_bytes()
    # Both in fp32; the library adds up in another order.
    np.testing.assert_allclose(outputs(path, str(native.library())), outputs(path, "off"), rtol=1e-5, atol=1e-6)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", BODIES)
def test_verify_opens_it_too(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m", BODIES[name], external=True)
    proto = onnx.load(path, load_external_data=False)
    session = open_for_verify(proto, path.parent, "unet", "cpu", native.library())
    np.testing.assert_allclose(session.run(None, feeds())[0], outputs(path, "off"), rtol=1e-5, atol=1e-6)


def test_the_commands_open_it_with_the_library_that_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--custom-ops auto``, the default, finds it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native.install(library.built_library())
    path = write(tmp_path / "m", BODIES["a transposed product"])
    result = CliRunner().invoke(cli, ["inspect", str(path), "--placement", "--provider", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.output)["placement"]
    assert [share["provider"] for share in found["shares"]] == ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("a skip and its mean", "SkipLayerNormalization LayerNormalization"),
        ("a skip and outputs that nobody reads", "SkipLayerNormalization LayerNormalization"),
        ("a masked attention", "MultiHeadAttention"),
        ("a norm in float64", "LayerNormalization"),
        ("a norm of a scale whose type nobody tells", "LayerNormalization"),
        ("a norm whose scale is broadcast", "LayerNormalization"),
        ("a norm in single operators and two types", "LayerNormalization"),
        ("a skip", ""),
        ("an attention", ""),
    ],
)
def test_what_the_library_has_no_kernel_for_is_left_to_onnx_runtime_and_told(
    name: str, operators: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opening._tell.cache_clear()
    path = write(tmp_path / "m", {**BODIES, **FUSED}[name], IMPORT)
    assert set(opening.unserved(onnx.load(path))) == set(operators.split())
    said = capsys.readouterr().err
    assert said.count("ONNX Runtime's own") == len(operators.split())
    assert all(f"ONNX Runtime's own {operator} runs" in said for operator in operators.split())
    assert ("has attention_bias (mask)" in said) == (name == "a masked attention"), "an input is told by its name"
    opening.unserved(onnx.load(path))
    assert capsys.readouterr().err == ""  # once


@pytest.mark.parametrize("asked", [None, "MultiHeadAttention,BiasSplitGelu", "all"])
def test_the_others_stay_registered(asked: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU provider has no BiasSplitGelu of its own, so that it runs only with the library."""
    monkeypatch.delenv("SDORT_OPS", raising=False)
    if asked:
        monkeypatch.setenv("SDORT_OPS", asked)
    body = (
        "a = com.microsoft.MultiHeadAttention <num_heads = 2> (x, w, w, , , mask)"
        "t = Concat <axis = -1> (a, a)  y = com.microsoft.BiasSplitGelu (t, gammas)"
    )
    path = write(tmp_path / "m", body, IMPORT)
    assert outputs(path, str(native.library())).shape == (2, 3, 8)
    assert os.environ.get("SDORT_OPS") == asked


@pytest.mark.parametrize(
    ("provider", "ops", "told"), [("rocm", "auto", 1), ("cuda", "auto", 1), ("rocm", "off", 0), ("cpu", "auto", 0)]
)
def test_a_gpu_without_the_library_that_a_model_was_made_for_is_told(
    provider: str, ops: str, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(parser.parse_model(FUNCTION), tmp_path / "model.onnx")
    monkeypatch.setattr(session, "resolve", lambda setting: None)
    said: list[str] = []
    monkeypatch.setattr(session, "warn", said.append)
    session._tell_of_bodies(
        tmp_path / "model.onnx", "unet", PROVIDERS[provider], RuntimeOptions(provider, custom_ops=ops)
    )
    assert [message for message in said if "Twice" in message and "sdort ops build" in message] == said
    assert len(said) == told
