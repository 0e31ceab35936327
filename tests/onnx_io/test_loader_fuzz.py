"""The loader against thousands of damaged files: a clear error or a model that saves and loads, nothing else.

The cases run in a process of their own, with bounded address space and a time limit a case, because what is looked
for includes crashes of C++ code, allocations that a file's numbers ask for, and endless loops.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from sdort.errors import SdortError
from sdort.model.model import Model
from sdort.model.weights import Weight
from sdort.onnx_io.graph_import import tensors_of
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model

CASES = 1500
MEMORY = 3 * 2**30
"""Address space of the process. Importing onnx and numpy takes most of it; the models are a few KB."""
SECONDS_PER_CASE = 20
"""Of the processor's time: no damage of a few KB may take that long, however busy the machine is."""

NUMBERS = [0, 1, 2, 3, 7, 255, -1, -2, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]
TEXTS = ["", "x", "y", "w", "h", "../x", "/etc/passwd", "0", "-1", "99999999999999999999", " 4", "1e3", "é", "\0", "."]


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_models_are_refused_or_loaded(seed: int) -> None:
    command = [sys.executable, __file__, str(seed), str(CASES)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    outcome = json.loads(process.stdout.splitlines()[-1])
    assert outcome["failures"] == []
    # Both ends are reached: damage that is refused at many places, and damage that does not matter.
    assert outcome["loaded"] > CASES // 20
    assert outcome["refused"] > CASES // 3
    assert outcome["reasons"] > 40


# ------------------------------------------------------------------------------------------------ the seed models

MLP = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "fuzz", metadata_props: ["k": "v"]>
mlp (float[N, 4] x, int64[2] size) => (float[N, 2] y, int64[2] size_out)
<float[4, 8] w = {WEIGHTS}, float[8] b = {1,2,3,4,5,6,7,8}, int64[2] target = {-1, 8}, float[M, 8] hidden> {
  half = Constant <value_float = 0.5> ()
  ones = Constant <value = float[1] {1.0}> ()
  size_out = Identity (size)
  hidden = MatMul (x, w)
  biased = Add (hidden, b)
  act = Relu (biased)
  scaled = Mul (act, half)
  moved = Add (scaled, ones)
  flat = Reshape (moved, target)
  left, right = Split <axis = 1> (flat)
  summed = Add (left, right)
  y = ReduceMean <axes = [1], keepdims = 1> (summed)
}
""".replace("WEIGHTS", ",".join(str(i / 8) for i in range(32)))

FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 18, "local" : 1, "sdort" : 1, "com.microsoft" : 1]>
calls (float16[2, 8] x) => (float16[2, 8] y) {
  a = local.twice <factor = 3.0> (x)
  b = sdort.keep (a)
  c = com.microsoft.QuickGelu <alpha = 1.702> (b)
  y = com.microsoft.FastGelu (c)
}
<domain: "local", opset_import: ["" : 18, "local" : 1]>
twice <factor, sign: int = 1> (t) => (r) {
  s = local.once (t)
  f = Constant <value_float : float = @factor> ()
  g = CastLike (f, s)
  r = Mul (s, g)
}
<domain: "local", opset_import: ["" : 18]>
once (t) => (r) { r = Neg (t) }
<domain: "sdort", opset_import: ["" : 18]>
keep (t) => (r) { r = Abs (t) }
"""


def mlp() -> onnx.ModelProto:
    return parser.parse_model(MLP)


def functions() -> onnx.ModelProto:
    return parser.parse_model(FUNCTIONS)


def conv() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((16, 4, 3, 3), np.float32), "w")
    bias = numpy_helper.from_array(rng.standard_normal(16, np.float32).astype(np.float16), "b")
    half = helper.make_tensor("c", TensorProto.BFLOAT16, [3], [1.0, 2.0, 3.0])
    big = numpy_helper.from_array(rng.standard_normal((16, 40), np.float32), "value")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["b"], ["b32"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["b32", "shape"], ["b4"]),
        helper.make_node("Add", ["h", "b4"], ["s"]),
        helper.make_node("Constant", [], ["big"], value=big),
        helper.make_node("Resize", ["s", "", "scales"], ["r"], mode="nearest"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Squeeze", ["g", "axes"], ["q"]),
        helper.make_node("MatMul", ["q", "big"], ["y"]),
        helper.make_node("Identity", ["c"], ["z"]),
    ]
    initializers = [weight, bias, half]
    initializers.append(helper.make_tensor("shape", TensorProto.INT64, [4], [1, 16, 1, 1]))
    initializers.append(helper.make_tensor("scales", TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0]))
    initializers.append(helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3]))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "conv",
        [info("x", TensorProto.FLOAT, [1, 4, "H", "W"])],
        [info("y", TensorProto.FLOAT, [1, 40]), info("z", TensorProto.BFLOAT16, [3])],
        initializers,
        value_info=[info("h", TensorProto.FLOAT, [1, 16, "H", "W"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def write_seeds(folder: Path) -> list[bytes]:
    """Four models, one of them with its weights in ``weights.bin`` of ``folder``."""
    external = conv()
    onnx.save(external, folder / "seed.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    models = [mlp(), functions(), conv(), onnx.load(folder / "seed.onnx", load_external_data=False)]
    return [model.SerializeToString() for model in models]


# ------------------------------------------------------------------------------------------------------- the damage


def damage(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.35:
        return damage_bytes(data, rng)
    model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        damage_message(model, rng)
    return bytes(model.SerializeToString())


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    kind = rng.choice(["flip", "flip", "cut", "repeat", "remove", "noise"])
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice([1, 2, 8, 64, 512]))
    if kind == "flip":
        out = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 8])):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        return bytes(out)
    middle = {"cut": b"", "repeat": data[start:end] * 2, "remove": b"", "noise": rng.randbytes(end - start)}[kind]
    return data[:start] + middle + (b"" if kind == "cut" else data[end:])


def damage_message(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change one field of one message of the model, chosen evenly over kinds of fields: rare ones get a turn."""
    places: dict[str, list[tuple[Any, Any]]] = {}
    texts: list[str] = list(TEXTS)
    collect(model, places, texts)
    if not places:  # nothing is left to damage
        return
    message, field = rng.choice(places[rng.choice(sorted(places))])
    if field.is_repeated:
        damage_list(message, field, rng, texts)
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.type != field.TYPE_MESSAGE:
        set_scalar(message, field, rng, texts)


def collect(message: Any, places: dict[str, list[tuple[Any, Any]]], texts: list[str]) -> None:
    for field, value in message.ListFields():
        places.setdefault(field.full_name, []).append((message, field))
        values = value if field.is_repeated else [value]
        if field.type == field.TYPE_MESSAGE:
            for child in values:
                collect(child, places, texts)
        elif field.type == field.TYPE_STRING:
            texts.extend(values)


def damage_list(message: Any, field: Any, rng: random.Random, texts: list[str]) -> None:
    values = getattr(message, field.name)
    i, j = rng.randrange(len(values)), rng.randrange(len(values))
    kind = rng.choice(["remove", "repeat", "swap", "change"])
    if kind == "remove":
        del values[i]
    elif field.type == field.TYPE_MESSAGE:
        first, second = type(values[i]).FromString(values[i].SerializeToString()), values[j].SerializeToString()
        if kind == "swap":
            values[i].ParseFromString(second)
            values[j].CopyFrom(first)
        else:
            values.append(first)
    elif kind == "swap":
        values[i], values[j] = values[j], values[i]
    else:
        value = values[i] if kind == "repeat" else scalar(field, values[i], rng, texts)
        values.append(value)
        if kind == "change":
            values[i] = values.pop()


def set_scalar(message: Any, field: Any, rng: random.Random, texts: list[str]) -> None:
    setattr(message, field.name, scalar(field, getattr(message, field.name), rng, texts))


def scalar(field: Any, old: Any, rng: random.Random, texts: list[str]) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice([rng.choice(texts), old + "x", old * 2, old[:-1]])
    if field.type == field.TYPE_BYTES:
        return rng.choice([b"", old[:-1], old + b"\0", old * 2, b"\xff\xfe"])
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30])
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    low, high = (-(2**31), 2**31) if field.type == field.TYPE_INT32 else (-(2**63), 2**63)
    numbers = [n for n in (*NUMBERS, old + 1, old - 1, old * 2) if low <= n < high]
    return rng.choice(numbers if field.type != field.TYPE_UINT64 else [abs(n) for n in numbers])


# --------------------------------------------------------------------------------------------------------- the cases


def run_cases(seed: int, count: int, folder: Path) -> dict[str, Any]:
    rng = random.Random(seed)
    seeds = write_seeds(folder)
    outcome: Counter[str] = Counter()
    reasons: set[str] = set()
    failures: list[str] = []
    for case in range(count):
        data = damage(rng.choice(seeds), rng)
        (folder / "case.onnx").write_bytes(data)
        signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_CASE)
        try:
            outcome[try_case(folder, reasons)] += 1
        except BaseException as error:  # MemoryError and the alarm too: the case is to be named
            failures.append(f"case {case}: {type(error).__name__}: {error}"[:500])
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {**outcome, "reasons": len(reasons), "failures": failures[:10]}


def try_case(folder: Path, reasons: set[str]) -> str:
    try:
        model = load_model(folder / "case.onnx")
    except SdortError as error:
        if not error.component:
            raise AssertionError(f"no component: {error}") from error
        reasons.add(str(error.message)[:25])
        return "refused"
    save_model(model, folder / "saved.onnx")
    # ONNX Runtime takes inputs and outputs of unknown rank, and so does sdort; the checker does not.
    if all(tensor.shape is not None for tensor in (*model.graph.inputs, *model.graph.outputs)):
        onnx.checker.check_model(str(folder / "saved.onnx"))
    again = load_model(folder / "saved.onnx", model.component)
    assert content(again) == content(model)
    return "loaded"


def content(model: Model) -> list[Any]:
    """Operators with their attributes, and the bytes of all constants."""
    nodes = [(node.domain, node.op, sorted(node.attrs), len(node.inputs)) for node in model.graph.nodes]
    constants = set()
    for tensor in tensors_of(model.graph):
        if hasattr(tensor, "_values"):
            values = tensor._values.load() if isinstance(tensor._values, Weight) else tensor._values
            constants.add((values.dtype.name, values.shape, values.tobytes()))
    return [nodes, constants]


def on_alarm(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS_PER_CASE} s")


def main(seed: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, on_alarm)
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(run_cases(seed, count, Path(folder))) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
