"""Every operator's file: it states what it has to, and its definition computes what its rule infers.

The operators of ``com.microsoft`` are held to ONNX Runtime: to its schemas, and to its kernels where the CPU has some.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi import _pybind_state
from support.fusion_models import before_model
from support.small_graphs import evaluate

from sdort import operators
from sdort.graph.domains import IN_DEFAULT_DOMAIN, MICROSOFT, MICROSOFT_OPERATORS, OWN_DOMAIN, file_domain
from sdort.graph.fact import Fact
from sdort.graph.operator import REQUIRED, Call, Category, Example, Operator, Required
from sdort.graph.symbolic import symbol
from sdort.onnx_io.load import from_proto
from sdort.onnx_io.operator_examples import example_call, example_feeds, example_model
from sdort.onnx_io.own_functions import function_of, own_function
from sdort.onnx_io.save import save_model
from sdort.onnx_io.standard_operators import expand, parse_function
from sdort.operators import find_operator, load_operators
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.rewrite.apply import apply_fusion
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import Fusion, load_fusions

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[2]
OPERATORS = list(load_operators().values())
KNOWN_TO_ONNX_RUNTIME = [each for each in OPERATORS if each.domain == MICROSOFT]
CASES = [(each, index) for each in OPERATORS for index in range(len(each.examples))]
FLOAT = np.dtype(np.float32)


def label(value: object) -> str:
    return value.qualified_name if isinstance(value, Operator) else str(value)


def call_of(operator: Operator, example: Example) -> Call:
    return example_call(operator, example, FLOAT)


def lacking(operator: Operator, example: Example) -> list[str]:
    """What one of its examples shows to be missing."""
    given = {*example.inputs, *example.integers, *example.bytes}
    unknown = given - {*operator.inputs} | {*example.outputs} - {*operator.outputs}
    unset = {name for name, default in operator.attributes.items() if default is REQUIRED} - {*example.attributes}
    if wrong := unknown | unset | {*example.attributes} - {*operator.attributes}:
        return [f"examples: {', '.join(sorted(wrong))} is unknown, or not set where it is required"]
    call, lacks = call_of(operator, example), []
    if operator.definition(call) is None:
        lacks.append("definition: it does not know the form")
    if [fact.shape for fact in operator.infer(call)][:1] in ([], [None]):
        lacks.append("infer: it tells no shape of the first output")
    return lacks


def missing(operator: Operator) -> list[str]:
    """What an operator's file lacks, or states of a thing that there is not."""
    lacks = []
    if not operator.examples:
        lacks.append("examples: there is none")
    if operator.category in (Category.CONVOLUTION, Category.PRODUCT) and operator.channels_axis is None:
        lacks.append(f"channels_axis: a {operator.category.value} has a weight")
    if operator.category is Category.ATTENTION and operator.heads is None:
        lacks.append("heads: an attention has them")
    for name in {*operator.float32_inputs, *operator.factors} - {*operator.inputs}:
        lacks.append(f"float32_inputs, factors: there is no input {name}")
    for name in {*operator.kernels} - {*PROVIDER_NAMES}:
        lacks.append(f"kernels: there is no provider {name}")
    for name in {*operator.unserved.get(operator.name, ())} - {*operator.inputs, *operator.outputs}:
        lacks.append(f"unserved: there is no input or output {name}")
    for index, example in enumerate((*operator.examples, *operator.trials)):
        lacks += [f"{lack} (example {index})" for lack in lacking(operator, example)]
    return lacks


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.qualified_name)
def test_an_operator_s_file_states_all_that_it_has_to(operator: Operator) -> None:
    assert missing(operator) == []
    if operator.domain == MICROSOFT:
        assert operator.name in MICROSOFT_OPERATORS | IN_DEFAULT_DOMAIN
    else:
        assert operator.domain == OWN_DOMAIN


@pytest.mark.parametrize("name", [each.name for each in fields(Operator) if each.default is MISSING])
def test_a_field_that_is_left_out_is_named(name: str) -> None:
    operator = load_operators()[MICROSOFT, "BiasAdd"]
    stated = {each.name: getattr(operator, each.name) for each in fields(Operator) if each.name != name}
    with pytest.raises(TypeError, match=f"'{name}'"):
        Operator(**stated)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("NhwcConv", {"channels_axis": None}, "channels_axis: a convolution has a weight"),
        ("Attention", {"heads": None}, "heads: an attention has them"),
        ("GroupNorm", {"float32_inputs": ("gama",)}, "float32_inputs, factors: there is no input gama"),
        ("Gelu", {"kernels": {"cdua": None}}, "kernels: there is no provider cdua"),
        ("Gelu", {"examples": ()}, "examples: there is none"),
        ("Gelu", {"definition": lambda call: None}, "definition: it does not know the form"),
        ("Gelu", {"infer": lambda call: [Fact()]}, "infer: it tells no shape of the first output"),
        ("GroupNorm", {"attributes": {}}, "examples: activation, groups is unknown, or not set where it is required"),
        ("SkipGroupNorm", {"unserved": {"SkipGroupNorm": ("M",)}}, "unserved: there is no input or output M"),
    ],
)
def test_what_is_missing_is_named(name: str, change: dict[str, Any], message: str) -> None:
    broken = replace(load_operators()[MICROSOFT, name], **change)
    assert message in "\n".join(missing(broken))


@contextmanager
def also_from(folder: Path) -> Iterator[None]:
    """Operators are found in a folder more."""
    before = list(operators.__path__)
    operators.__path__.append(str(folder))
    operators.load_operators.cache_clear()
    try:
        yield
    finally:
        operators.__path__[:] = before
        operators.load_operators.cache_clear()


def test_two_files_of_one_operator_are_refused(tmp_path: Path) -> None:
    (tmp_path / "twin.py").write_text((Path(operators.__file__).parent / "gelu.py").read_text())
    with also_from(tmp_path), pytest.raises(ValueError, match=r"com\.microsoft\.Gelu has a second file, twin\.py"):
        load_operators()


def test_the_page_on_adding_one_is_all_that_it_takes(tmp_path: Path) -> None:
    """Its operator and its fusion, as they stand there, rewrite a graph that ONNX Runtime then runs."""
    page = (ROOT / "docs" / "add-an-operator.md").read_text()
    operator_text, fusion_text = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    (tmp_path / "swish.py").write_text(operator_text)
    module = ModuleType("swish_fusion")
    exec(fusion_text, vars(module))
    with also_from(tmp_path):
        assert missing(load_operators()[OWN_DOMAIN, "Swish"]) == []
        before = before_model(Fusion(module), 0, np.random.default_rng(0))
        feeds = {"x": np.linspace(-3, 3, 48, dtype=np.float32).reshape(2, 3, 8)}
        model = from_proto(onnx.ModelProto.FromString(before.SerializeToString()), None, "test")
        assert apply_fusion(Fusion(module), Editor(model)).matched == 1
        assert [(node.domain, node.op) for node in model.graph.nodes] == [(OWN_DOMAIN, "Swish")]
        save_model(model, tmp_path / "model.onnx")
    expected, result = (run(each, feeds)[0] for each in (before, onnx.load(tmp_path / "model.onnx")))
    np.testing.assert_allclose(result, expected, rtol=1e-6)


# --- the definition ---


def feeds_of(operator: Operator, example: Example) -> dict[str, Array]:
    return example_feeds(operator, example, FLOAT)


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    return list(
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    )


def defined(operator: Operator, call: Call, example: Example) -> onnx.ModelProto:
    """The same model with the operator's definition in the place of the operator."""
    model, body = example_model(operator, call, example), operator.definition(call)
    assert body is not None
    model.functions.append(parse_function("test", "Defined", call.signature, body, 18))
    model.opset_import.append(helper.make_opsetid("test", 1))
    node = model.graph.node[0]
    node.domain, node.op_type = "test", "Defined"
    del node.attribute[:]
    for names, present in ((node.input, call.inputs), (node.output, call.outputs)):
        del names[:]
        names.extend(present)
    model = onnx.inliner.inline_local_functions(model)
    expand(model)  # the other operators that it is made of
    return model


@pytest.mark.parametrize(("operator", "index"), CASES, ids=label)
def test_the_definition_has_the_shapes_that_are_inferred(operator: Operator, index: int) -> None:
    example = operator.examples[index]
    call = call_of(operator, example)
    inferred = dict(zip(operator.outputs, operator.infer(call), strict=False))
    results = run(defined(operator, call, example), feeds_of(operator, example))
    for name, result in zip(call.outputs, results, strict=True):
        assert (inferred[name].dtype, inferred[name].shape) in ((result.dtype, result.shape), (None, None)), name


@pytest.mark.parametrize(("operator", "index"), CASES, ids=label)
def test_a_batch_without_a_number_is_inferred_like_one(operator: Operator, index: int) -> None:
    example = operator.examples[index]
    batch = next(iter(example.inputs.values()))[0]
    call = call_of(operator, example)
    named = {
        name: Fact(
            fact.dtype, tuple(symbol("B") if axis == 0 and dim == batch else dim for axis, dim in enumerate(shape))
        )
        for name, fact in call.inputs.items()
        if (shape := fact.shape) is not None
    }
    for fact, expected in zip(operator.infer(replace(call, inputs=named)), operator.infer(call), strict=True):
        assert (fact.dtype, fact.shape is None) == (expected.dtype, expected.shape is None)
        assert [evaluate(dim, {"B": batch}) for dim in fact.shape or ()] == [*(expected.shape or ())]
    whole = operator.infer(replace(call, inputs=named))[0].shape
    assert whole is not None
    assert whole[0] == symbol("B")


@pytest.mark.parametrize(("operator", "index"), [case for case in CASES if case[0] in KNOWN_TO_ONNX_RUNTIME], ids=label)
def test_the_definition_computes_what_the_cpu_provider_does(operator: Operator, index: int) -> None:
    """Its own kernel, or what stands for it there."""
    example = operator.examples[index]
    call, feeds = call_of(operator, example), feeds_of(operator, example)
    model = example_model(operator, call, example)
    assert expand(model) == (operator.on_cpu(call) is not None)
    for expected, result in zip(run(model, feeds), run(defined(operator, call, example), feeds), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("operator", "index"), CASES, ids=label)
def test_what_the_cpu_target_takes_needs_no_stand_in(operator: Operator, index: int) -> None:
    call = call_of(operator, operator.examples[index])
    if "cpu" in operator.kernels and operator.kernels["cpu"](call) is None:
        assert operator.on_cpu(call) is None


@pytest.mark.parametrize(("operator", "index"), CASES, ids=label)
def test_arithmetic_is_counted(operator: Operator, index: int) -> None:
    example = operator.examples[index]
    shapes = [fact.shape for fact in operator.infer(call_of(operator, example)) if fact.shape]
    outputs = [tuple(map(int, shape)) for shape in shapes]  # type: ignore[arg-type]
    if callable(operator.operations):
        count = operator.operations(list(example.inputs.values()), outputs)
        assert isinstance(count, int)
        assert count >= 2 * math.prod(outputs[0])
    else:
        assert operator.operations > 0


# --- against ONNX Runtime ---

SCHEMAS = {
    each.name: each
    for each in _pybind_state.get_all_operator_schema()
    if each.domain == (file_domain(MICROSOFT, each.name))
}


def schema_default(attribute: Any) -> Any:
    if attribute.required:
        return REQUIRED
    proto = onnx.AttributeProto.FromString(attribute._default_value)
    value = onnx.helper.get_attribute_value(proto) if proto.type else None
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("operator", KNOWN_TO_ONNX_RUNTIME, ids=lambda each: each.name)
def test_parameters_and_defaults_are_those_of_onnx_runtime(operator: Operator) -> None:
    schema = SCHEMAS[operator.name]
    assert operator.inputs == tuple(each.name for each in schema.inputs)
    assert operator.outputs == tuple(each.name for each in schema.outputs)
    assert {*operator.attributes} == {*schema.attributes}
    for name, default in operator.attributes.items():
        expected = schema_default(schema.attributes[name])
        assert default == (pytest.approx(expected, rel=1e-6) if isinstance(expected, float) else expected), name
        assert isinstance(default, Required) == (expected is REQUIRED)


# --- who makes operators ---


def made_by_passes() -> Iterator[tuple[str, str]]:
    """Domain and name of what a pass makes by name: ``editor.node("NhwcConv", ..., domain=MICROSOFT)``."""
    domains = {"MICROSOFT": MICROSOFT, "OWN_DOMAIN": OWN_DOMAIN}
    for path in sorted([*(ROOT / "sdort").rglob("*.py"), *(ROOT / "fusions").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            domain = next((each.value for each in node.keywords if each.arg == "domain"), None)
            if isinstance(domain, ast.Name):
                yield domains.get(domain.id, domain.id), str(node.args[0].value)
            elif isinstance(domain, ast.Constant):
                yield str(domain.value), str(node.args[0].value)


def made() -> set[tuple[str, str]]:
    afters = [after for fusion in load_fusions().values() for _, after in fusion.variants]
    fused = {(node.domain, node.op) for after in afters for node in after.nodes if node.domain}
    passes = {each for each in made_by_passes() if each[0] in (MICROSOFT, OWN_DOMAIN)}
    assert {(MICROSOFT, "NhwcConv"), (MICROSOFT, "GroupNorm")} <= passes, "no pass makes them by name any more"
    return fused | passes


def test_all_that_fusions_and_passes_make_has_a_file() -> None:
    assert made() - {*load_operators()} == set(), "these have no file in sdort/operators"


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
def test_a_provider_s_kernels_are_stated_once_and_of_known_operators(provider: str) -> None:
    target = load_target(provider)
    stated = {each.qualified_name for each in OPERATORS if provider in each.kernels}
    assert stated & {*target.kernels} == set(), "stated by the operator's file and by the provider's"
    assert {*target.kernels} <= {each.qualified_name for each in OPERATORS}, "of no file in sdort/operators"
    assert {*target.conditions} == (stated | {*target.kernels}) - {*target.doubted}
    assert {*target.doubted} <= stated


def test_a_provider_may_add_a_kernel() -> None:
    target = replace(load_target("cpu"), kernels={"com.microsoft.BiasAdd": lambda call: "not today"})
    node = onnx_node("BiasAdd")
    assert load_target("cpu").unsupported(node) == "cpu has no kernel for BiasAdd"
    assert target.unsupported(node) is None
    assert "--disable" in str(target.without("com.microsoft.BiasAdd").unsupported(node))


def onnx_node(op: str) -> Any:
    import onnx_graphsurgeon as gs

    return gs.Node(op, op, domain=MICROSOFT)


# --- functions ---


def test_a_function_of_an_operator_without_attributes_can_be_read() -> None:
    operator = load_operators()[MICROSOFT, "BiasAdd"]
    function = function_of(operator, frozenset(operator.inputs), 18)
    assert (list(function.attribute), list(function.attribute_proto)) == ([], [])
    assert [node.op_type for node in function.node] == ["Add", "Add"]


def test_there_is_no_function_of_an_operator_without_a_file() -> None:
    assert find_operator(OWN_DOMAIN, "Norm") is None
    with pytest.raises(LookupError, match=r"no file of sdort/operators/ is sdort\.Norm"):
        own_function("Norm", frozenset(), 18)
