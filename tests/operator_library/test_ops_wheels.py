"""One libsdort_ops.so for all distributions of ONNX Runtime: the oldest that is supported, and MIGraphX's.

The same file that the tests' own onnxruntime loads is loaded there, and every operator computes on the CPU in float16
and float32. onnxruntime-rocm has tests of its own (test_ops_rocm.py).
sdort_ops.dll, compiled with mingw, does the same in Windows' ONNX Runtime under Wine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from support import native, wheels
from support.kernel_cases import one_node_model, run
from support.row_cases import Rows
from support.rows import operators
from support.windows import wine

import sdort
from sdort.operator_library import library
from sdort.workload.samples import Sample, declared_inputs, make_inputs

if TYPE_CHECKING:
    from support.tiny_pipeline import Tiny

Array = npt.NDArray[Any]

WHEELS = {"onnxruntime==1.22.0": set[str](), "onnxruntime-migraphx==1.27.1": {"MIGraphXExecutionProvider"}}
"""What to install -> the providers that it has beside the CPU's."""

DTYPES = {"float16": np.float16, "float32": np.float32}

RUN_MODELS = """
import sys
from pathlib import Path
import numpy as np, onnxruntime

folder, library = Path(sys.argv[1]), sys.argv[2]
print(onnxruntime.__version__, *onnxruntime.get_available_providers())
for model in sorted(folder.glob("*.onnx")):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    results = session.run(None, dict(np.load(model.with_suffix(".npz"))))
    np.savez(model.with_suffix(".out.npz"), **dict(zip(names, results)))
"""


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


DOMAINS = {"": "", "com.microsoft": "", "sdort": "sdort "}
"""Domain -> how the names of its operators' cases begin."""


MORE = ("beta", "bias")
"""Optional tensors that make other operators of a case."""


@cache
def cases() -> dict[str, tuple[str, dict[str, Array | None], list[str], dict[str, Any]]]:
    """Name -> operator, inputs (in float32), outputs, attributes. Two names are of one operator in two domains."""
    norm: dict[str, Any] = {"groups": 4, "epsilon": 1e-5, "activation": 1, "channels_last": 1}
    weights: dict[str, Array | None] = {"gamma": normal(32), "beta": normal(32) / 2}
    image = normal(2, 3, 5, 32)
    rows = Rows(5, "", np.float32, 18, 40, 9, 1.0, 0.0, 1e-5, frozenset(("bias", "sum")))
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = {DOMAINS[operator.domain] + operator.name: operator.node(rows) for operator in operators()}
    gelu, gelu_inputs, gelu_outputs, _ = nodes["BiasSplitGelu"]
    [turned] = [operator for operator in operators() if operator.name == "RotaryEmbedding"]
    [modulated] = [operator for operator in operators() if operator.kernels == "modulated_norm"]
    [split] = [operator for operator in operators() if operator.kernels == "split_gate"]
    forms = [
        *(modulated.node(replace(rows, optional=frozenset(form))) for form in product(("sum", ""), ("", *MORE))),
        *(split.node(replace(rows, optional=frozenset(form))) for form in ((), MORE)),
    ]
    return {
        **nodes,
        **{f"sdort {form[0]}": form for form in forms},
        "sdort BiasSplitGelu": (gelu, gelu_inputs, gelu_outputs, {"domain": "sdort"}),
        "GroupNorm": ("GroupNorm", {"X": image, **weights}, ["Y"], norm),
        "SkipGroupNorm": (
            "SkipGroupNorm",
            {"X": image, **weights, "skip": normal(2, 1, 1, 32), "bias": normal(32)},
            ["Y", "S"],
            norm,
        ),
        "sdort GroupNorm": (
            "GroupNorm",
            {"X": normal(2, 3, 5, 24), "X2": normal(2, 3, 5, 8), **weights},
            ["Y"],
            {**norm, "domain": "sdort"},
        ),
        "sdort BiasGroupNorm": (
            "BiasGroupNorm",
            {"X": image, **weights, "bias": normal(32)},
            ["Y", "S"],
            {**norm, "domain": "sdort"},
        ),
        "sdort BiasLayerNormalization": (
            "BiasLayerNormalization",
            {"X": image, **weights, "bias": normal(32)},
            ["Y"],
            {"domain": "sdort"},
        ),
        "sdort RotaryEmbedding": turned.node(replace(rows, optional=frozenset())),
        "sdort RMSNormRotaryEmbedding": nodes["sdort RotaryEmbedding"],
        "MultiHeadAttention": ("MultiHeadAttention", {"QKV": normal(2, 7, 2, 3, 40)}, ["Y"], {"num_heads": 2}),
        "sdort MultiHeadAttention": (
            "MultiHeadAttention",
            {"query": normal(1, 5, 192), "key": normal(1, 7, 192), "value": normal(1, 7, 192)},
            ["Y"],
            {"num_heads": 1, "domain": "sdort"},
        ),
        "NhwcConv": ("NhwcConv", {"X": image, "W": normal(8, 3, 3, 32) / 16, "B": normal(8)}, ["Y"], conv),
    }


def inputs_of(name: str, dtype: str) -> dict[str, Array | None]:
    """GroupNorm's gamma and beta are float32 always."""
    _, inputs, _, _ = cases()[name]
    kept = {"gamma", "beta"} if "GroupNorm" in name else set()
    return {
        key: value if value is None or key in kept else value.astype(DTYPES[dtype]) for key, value in inputs.items()
    }


def write_models(folder: Path) -> None:
    for name, (operator, _, outputs, attributes) in cases().items():
        for dtype in DTYPES:
            inputs = inputs_of(name, dtype)
            (folder / f"{name} {dtype}.onnx").write_bytes(one_node_model(operator, inputs, outputs, **attributes))
            feeds: dict[str, Any] = {key: value for key, value in inputs.items() if value is not None}
            np.savez(folder / f"{name} {dtype}.npz", **feeds)


def test_every_operator_is_tried() -> None:
    operators = library.describe_library(native.library()).operators
    assert {DOMAINS[each.domain] + each.name for each in operators} == set(cases())


@pytest.mark.parametrize("wheel", WHEELS)
def test_the_same_library_computes_the_same(wheel: str, tmp_path: Path) -> None:
    """To the bit, but for NhwcConv, whose sums are the wheel's own Conv's: its order of additions is its own."""
    write_models(tmp_path)
    with wheels.environment(wheel, "numpy", "--no-deps") as folder:
        done = wheels.run_script(folder, RUN_MODELS, str(tmp_path), str(native.library()))
    assert done.returncode == 0, done.stderr[-2000:]
    version, *providers = done.stdout.split()
    assert version == wheel.partition("==")[2]
    assert set(providers) - {"AzureExecutionProvider"} == WHEELS[wheel] | {"CPUExecutionProvider"}
    compare(lambda name: np.load(tmp_path / f"{name}.out.npz"), {"NhwcConv"})


def compare(there: Callable[[str], Mapping[str, Array]], rounded: Collection[str]) -> None:
    """Hold the outputs of all models against those of the library here, which other tests hold against float64.

    Args:
        there: the outputs of a model, by its name.
        rounded: cases whose sums are added up in another order, or with other instructions; the others are the same
            to the bit.
    """
    for name, (operator, _, outputs, attributes) in cases().items():
        for dtype in DTYPES:
            here = run(operator, inputs_of(name, dtype), outputs, **attributes)
            found = there(f"{name} {dtype}")
            for output, expected in zip([o for o in outputs if o], here, strict=True):
                # 288 products of about 1/16 sum up to about one: a rounding to float16, and float32's errors.
                slack = np.finfo(expected.dtype).eps + 288 * 2.0**-24 if name in rounded else 0.0
                np.testing.assert_allclose(found[output], expected, rtol=slack, atol=slack, err_msg=f"{name} {dtype}")


def write_unet(source: Path, folder: Path) -> dict[str, Array]:
    """A UNet as it is lowered for a GPU, its weights in a file beside it, and inputs; returns what it gives here."""
    sdort.optimize(source, folder / "fast", provider="rocm", components=["unet"], allow_misses=True)
    for path in (folder / "fast" / "unet").glob("model.onnx*"):
        path.rename(folder / path.name)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    assert {"GroupNorm", "NhwcConv", "MultiHeadAttention"} <= {node.op_type for node in model.graph.node}
    feeds = make_inputs(declared_inputs(model, "unet"), Sample(2, 8, 8), "unet", seed=0)
    np.savez(folder / "model.npz", **cast("dict[str, Any]", feeds))
    options = onnxruntime.SessionOptions()
    library.register(options, native.library(), "cpu")
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


def test_the_windows_library_computes_the_same(tiny: Tiny, tmp_path: Path) -> None:
    """But for rounding: it has no fused multiply-adds."""
    write_models(tmp_path)
    expected = write_unet(tiny.onnx, tmp_path)
    for path in tmp_path.glob("*.npz"):
        wine.write_tensors(path.with_suffix(".in"), dict(np.load(path)))
    version, description, count = wine.run_models(tmp_path)
    assert version == wine.VERSION
    operators = [asdict(each) for each in library.describe_library(native.library()).operators]
    assert json.loads(description) == {"operators": operators, "code_objects": []}
    assert count == f"{2 * len(cases()) + 1} models"
    compare(lambda name: wine.read_tensors(tmp_path / f"{name}.out"), cases())
    for name, values in wine.read_tensors(tmp_path / "model.out").items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-4 * np.abs(expected[name]).max())
