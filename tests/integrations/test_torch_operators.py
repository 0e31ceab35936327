"""``torch.ops.sdort.*``: kernels on tensors, what torch asks of an operator, and where torch's own run."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import native, rocm_stub
from support.operator_cases import Call, calls, results
from support.problems import struct_type
from torch import Tensor

from sdort.errors import ProviderError, UsageError
from sdort.integrations.torch_operators import definitions, launching
from sdort.operator_library.pointer_kernels import Place, load_kernels

NAMES = list(calls(torch.float32))
OPERATORS = [schema.partition("(")[0] for schema in definitions.SCHEMAS]
each_call = pytest.mark.parametrize("name", NAMES)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])

pytestmark = pytest.mark.usefixtures("operator_kernels")


def by_formula(call: Call) -> tuple[Tensor, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definitions, "serves", lambda _: False)
        return call()


def assert_near(actual: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    """But for float32 arithmetic in another order: eight units of the largest value in the last place, of fp16 one."""
    for a, b in zip(actual, wanted, strict=True):
        assert a.dtype == b.dtype
        assert a.stride() == b.stride()
        limit = (2.0**-10 if a.dtype == torch.float16 else 2.0**-20) * b.abs().max()
        assert (a.double() - b.double()).abs().max() <= limit


def test_every_operator_has_a_call() -> None:
    assert {call.operator for call in calls(torch.float32).values()} == set(OPERATORS)


@dtypes
@pytest.mark.parametrize("width", [40, 12], ids=["vectors", "narrow"])
@each_call
def test_the_cpu_computes_what_onnxruntime_does_with_the_library(
    name: str, width: int, dtype: torch.dtype, told: list[str]
) -> None:
    """To the last bit: shapes, strides and attributes reach the same code."""
    call = calls(dtype, width)[name]
    for actual, wanted in zip(call(), call.node(*call.arguments), strict=True):
        np.testing.assert_array_equal(actual.numpy(), wanted)
    assert told == []


@pytest.fixture
def hip_on_cpu_tensors(operator_kernels: None) -> Iterator[None]:
    """CPU tensors are launched as if they were on a GPU of HIP, by a stub of its driver."""
    rocm_stub.load_driver()
    kernels, _ = launching.loaded()
    assert kernels is not None
    kernels.serve_torch(cpu=Place.HIP, gpu=Place.HIP)
    yield
    kernels.serve_torch(cpu=Place.CPU, gpu=Place.CUDA)


@dtypes
def test_gpu_kernels_compute_it_too(
    dtype: torch.dtype, told: list[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels' source as CPU code behind a HIP driver, with the workspaces of a GPU."""
    everything = [small_group_norm(dtype), *calls(dtype).values(), *wide_attention(dtype), *typed_weights(dtype)]
    on_cpu = [call() for call in everything]
    request.getfixturevalue("hip_on_cpu_tensors")
    monkeypatch.setenv("SDORT_STUB_BODIES", str(native.build_folder() / "libsdort_simulated_wmma_gfx11.so"))
    for call, wanted in zip(everything, on_cpu, strict=True):
        assert_near(call(), wanted)
    assert told == []


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[dict[str, Any]]]:
    """The launches of what is called; they do nothing."""

    def noted(act: Callable[[], object]) -> list[dict[str, Any]]:
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        monkeypatch.setenv("SDORT_STUB_LOG", str(log))
        act()
        return [line for line in rocm_stub.read_log(log) if line["call"] == "hipModuleLaunchKernel"]

    return noted


def workspace_of(launch: dict[str, Any]) -> int:
    given = struct_type("group_norm", "Args").from_buffer_copy(bytes.fromhex(launch["args"]))
    address: int = given.workspace
    return address


def cleared(address: int, count: int) -> bool:
    return not any((ctypes.c_ubyte * count).from_address(address))


@pytest.fixture
def filled() -> Iterator[None]:
    """New memory is never zero."""
    tune = ctypes.CDLL(None).mallopt
    perturb = -6  # M_PERTURB of malloc.h
    assert tune(perturb, 0x55)
    yield
    tune(perturb, 0)


def group_norm_of(images: int) -> Call:
    """With a workspace of 1024 bytes an image and 128 more: 64 groups have 16 each."""
    x, one = torch.zeros(images, 64, 1, 1).to(memory_format=torch.channels_last), torch.ones(64)
    return Call("group_norm", (x, 64, one, one), lambda *_: [])


@pytest.mark.usefixtures("hip_on_cpu_tensors", "filled")
def test_a_workspace_that_is_outgrown_gives_way_to_a_cleared_one(launches: Any) -> None:
    first, *_ = launches(small_group_norm(torch.float32))
    again, *_ = launches(small_group_norm(torch.float32))
    assert workspace_of(first) == workspace_of(again)
    grown, *_ = launches(group_norm_of(128))
    assert workspace_of(grown) != workspace_of(first)
    assert cleared(workspace_of(grown), 1 << 17)
    small, *_ = launches(small_group_norm(torch.float32))
    assert workspace_of(small) == workspace_of(grown)


@pytest.mark.usefixtures("hip_on_cpu_tensors")
def test_a_kept_workspace_is_in_no_pool_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is kept from the run that torch.compile records a graph in would be; the driver is asked instead."""
    monkeypatch.setenv("SDORT_STUB_FAIL", "hipMalloc:2")
    with pytest.raises(ProviderError, match=r"allocating \d+ bytes failed: hipErrorOutOfMemory"):
        group_norm_of(512)()


@pytest.mark.usefixtures("hip_on_cpu_tensors", "filled")
def test_a_captured_graph_has_a_workspace_of_its_own(launches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, *_ = launches(small_group_norm(torch.float32))
    monkeypatch.setenv("SDORT_STUB_CAPTURING", "1")
    captured, *_ = launches(small_group_norm(torch.float32))
    assert workspace_of(captured) not in (0, workspace_of(kept))  # gone by now, but in a graph's own memory
    monkeypatch.delenv("SDORT_STUB_CAPTURING")
    after, *_ = launches(small_group_norm(torch.float32))
    assert workspace_of(after) == workspace_of(kept)


@pytest.mark.usefixtures("hip_on_cpu_tensors")
def test_what_the_driver_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    monkeypatch.setenv("SDORT_STUB_FAIL", "hipModuleLaunchKernel:719")
    with pytest.raises(ProviderError, match=r"torch\.ops\.sdort\.bias_add: launching bias_add_f32_.* failed"):
        calls(torch.float32)["bias_add"]()
    assert told == []


@pytest.mark.parametrize(("hip", "place"), [("6.4", Place.HIP), (None, Place.CUDA)], ids=["hip", "cuda"])
def test_a_gpus_kernels_are_of_torchs_vendor(hip: str | None, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    asked: list[tuple[Any, ...]] = []
    kernels: Any = SimpleNamespace(why_not=lambda *given: asked.append(given))
    monkeypatch.setattr(launching, "loaded", lambda: (kernels, ""))
    launching.serves.cache_clear()
    assert launching.serves(2)
    assert launching.serves(launching.CPU)
    launching.serves.cache_clear()
    assert asked == [(place, 2), (Place.CPU, 0)]


def small_group_norm(dtype: torch.dtype) -> Call:
    """With less of a workspace than the others."""
    x, one = torch.randn(1, 8, 1, 1, generator=torch.Generator().manual_seed(0)).to(dtype), torch.ones(8)
    return Call("group_norm", (x, 1, one, one, 1.0, False, None), lambda *_: [])


def typed_weights(dtype: torch.dtype) -> list[Call]:
    """Group normalizations, of whole vectors and not, whose weights are of the tensors' type."""
    found = [call for width in (40, 12) for call in calls(dtype, width).values() if "group_norm" in call.operator]
    return [
        Call(call.operator, tuple(x.to(dtype) if isinstance(x, Tensor) else x for x in call.arguments), call.node)
        for call in found
    ]


def wide_attention(dtype: torch.dtype) -> list[Call]:
    """With a workspace in fp16."""
    x = torch.randn(1, 1, 20, 192, generator=torch.Generator().manual_seed(0)).to(dtype)
    return [Call("attention", (x, x, x), lambda *_: [])]


@each_call
def test_formulas_compute_it_too(name: str) -> None:
    call = calls(torch.float32)[name]
    assert_near(by_formula(call), call())


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_formulas_mask_whatever_the_scale(scale: float) -> None:
    query, key, value, *_ = calls(torch.float32)["attention"].arguments
    call = Call("attention", (query, key, value, scale, True), lambda *_: [])
    assert_near(by_formula(call), call())


def test_formulas_normalize_one_element() -> None:
    x, one = torch.randn(1, 8, 1, 1, generator=torch.Generator().manual_seed(0)), torch.ones(8)
    call = Call("group_norm", (x, 8, one, one, 1.0), lambda *_: [])
    assert_near(by_formula(call), call())


def test_formulas_leave_results_where_kernels_do() -> None:
    """Which torch's own group norm does not in three dimensions."""
    x, *rest = calls(torch.float32)["group_norm"].arguments
    call = Call("group_norm", (x.flatten(2), *rest), lambda *_: [])
    assert_near(by_formula(call), call())


def changed(change: Callable[[Tensor], Tensor], call: Call) -> Call:
    """Every tensor of several dimensions in another place of memory, with the same values."""
    arguments = (change(x) if isinstance(x, Tensor) and x.dim() > 2 else x for x in call.arguments)
    return Call(call.operator, tuple(arguments), call.node)


def every_second(x: Tensor) -> Tensor:
    room = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
    room[..., ::2] = x
    return room[..., ::2]


def askew(x: Tensor) -> Tensor:
    """As dense as before, from an address that is no multiple of 16 bytes."""
    room = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].as_strided(x.shape, x.stride())
    return room.copy_(x)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (every_second, r"(is not contiguous|is not channels-last|last dimension is not contiguous) \("),
        (askew, r"a tensor does not lie at a multiple of 16 bytes \(clone\(\) moves it\)$"),
        (lambda x: x.to(torch.bfloat16), "there are kernels for float32 and float16 alone$"),
    ],
    ids=["strides", "address", "type"],
)
@pytest.mark.parametrize("name", ["bias_add", "bias_split_gelu", "skip_layer_norm", "skip_group_norm", "attention"])
def test_what_kernels_cannot_read_runs_as_torchs_own(
    name: str, change: Callable[[Tensor], Tensor], reason: str, told: list[str]
) -> None:
    call = changed(change, calls(torch.float32)[name])
    for _ in range(2):
        assert_near(call(), by_formula(call))
    (message,) = told
    assert message.startswith(f"torch.ops.sdort.{name} runs as torch's own operators: ")
    assert re.search(reason, message), message


def test_a_contiguous_image_stays_so_and_is_told(told: list[str]) -> None:
    x, *rest = calls(torch.float32)["group_norm"].arguments
    y = torch.ops.sdort.group_norm(x.contiguous(), *rest)
    assert y.is_contiguous()
    assert_near((y,), (torch.ops.sdort.group_norm(x, *rest).contiguous(),))
    assert told == [
        "torch.ops.sdort.group_norm runs as torch's own operators: x is not channels-last"
        " (model.to(memory_format=torch.channels_last) makes it so)"
    ]


@pytest.mark.usefixtures("hip_on_cpu_tensors")
def test_a_channels_last_image_is_read_where_it_is(launches: Any) -> None:
    """Of three dimensions too, as diffusers' attention has it."""
    x, *rest = calls(torch.float32)["group_norm"].arguments
    for image in (x, x.flatten(2)):
        (launch, *_) = launches(Call("group_norm", (image, *rest), lambda *_: []))
        given = struct_type("group_norm", "Args").from_buffer_copy(bytes.fromhex(launch["args"]))
        assert given.x == x.data_ptr()
        assert torch.ops.sdort.group_norm(image, *rest).stride() == image.stride()


def test_heads_are_read_where_they_lie(told: list[str]) -> None:
    """Query, key and value as views of one tensor."""
    packed = torch.randn(2, 6, 3, 3, 40, generator=torch.Generator().manual_seed(1)).half()
    views = [packed[:, :, :, i].transpose(1, 2) for i in range(3)]
    apart = [view.contiguous() for view in views]
    assert torch.equal(torch.ops.sdort.attention(*views), torch.ops.sdort.attention(*apart))
    assert told == []


@pytest.mark.parametrize("name", ["group_norm", "layer_norm"])
def test_weights_of_another_type_are_converted(name: str) -> None:
    x, *rest = calls(torch.float16)[name].arguments
    other = [
        v.to(torch.float16 if v.dtype == torch.float32 else torch.float32) if isinstance(v, Tensor) else v for v in rest
    ]
    back = [v.to(w.dtype) if isinstance(w, Tensor) else v for v, w in zip(other, rest, strict=True)]
    operator = getattr(torch.ops.sdort, name)
    assert torch.equal(operator(x, *other), operator(x, *back))
    for values in (*other, *back):  # as an EMA of weights does, which no version counter tells
        if isinstance(values, Tensor):
            values.data.mul_(2)
    assert torch.equal(operator(x, *other), operator(x, *back))


def test_without_the_library_torchs_own_run_and_that_is_told_once(
    told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_kernels.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "loaded", _loaded)
        for name in ("bias_add", "layer_norm", "bias_add"):
            calls(torch.float32)[name]()
    _loaded.cache_clear()
    load_kernels.cache_clear()
    assert told == [
        "torch.ops.sdort.* run as torch's own operators: the library is not built here. Build it: sdort ops build"
    ]


_loaded = launching.loaded
"""Before the fixture."""


def test_without_machine_code_torchs_own_run_and_that_is_told_once(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "CPU", -2)  # so that these tensors are on a GPU
    for name in ("bias_add", "layer_norm"):
        call = calls(torch.float32)[name]
        assert_near(call(), by_formula(call))
    assert told == ["torch.ops.sdort.* run as torch's own operators: no cuda driver can be loaded here"]


def floats(*shape: int) -> Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("bias_add", (floats(2, 8), floats(7), floats(2, 8)), "bias must have the shape (8), it has (7)"),
        ("bias_add", (floats(2, 8), floats(8), floats(8)), "skip must have the shape of x, (2, 8), it has (8)"),
        (
            "bias_add",
            (floats(2, 8), floats(8), floats(2, 8).half()),
            "skip must have the type of x, torch.float32, it is torch.float16",
        ),
        ("bias_add", (floats(), floats(1), floats()), "x must have 1 dimensions or more, it has the shape ()"),
        (
            "bias_add",
            (floats(2, 8), floats(8).to("meta"), floats(2, 8)),
            "bias is on meta, x on cpu\n  Move it: bias.to(x.device)",
        ),
        (
            "bias_add",
            (floats(2, 8).int(), floats(8), floats(2, 8).int()),
            "x must be of a floating type, it is torch.int32\n  Convert it: x.to(torch.float16)",
        ),
        (
            "bias_split_gelu",
            (floats(2, 7), floats(7)),
            "x must have an even number of columns, it has the shape (2, 7)",
        ),
        ("layer_norm", (floats(2, 8), floats(8), floats(1, 8)), "bias must have the shape (8), it has (1, 8)"),
        ("layer_norm", (floats(2, 8), floats(8), None, -1.0), "eps must not be negative, it is -1.0"),
        (
            "skip_layer_norm",
            (floats(2, 8), floats(2, 8), floats(8), None, 1e-5, floats(2, 8)),
            "shift must have the shape (8), it has (2, 8)",
        ),
        (
            "group_norm",
            (floats(1, 8, 2), 3, floats(8), floats(8)),
            "groups must divide the 8 channels of x, it is 3",
        ),
        (
            "group_norm",
            (floats(1, 8), 2, floats(8), floats(8)),
            "x must have 3 dimensions or more, it has the shape (1, 8)",
        ),
        (
            "group_norm",
            (floats(2, 8, 2), 2, floats(8), floats(8), 1e-5, False, floats(1, 8)),
            "shift must have the shape (8) or (2, 8), it has (1, 8)",
        ),
        (
            "skip_group_norm",
            (floats(2, 8, 2), floats(2, 8, 3), 2, floats(8), floats(8)),
            "skip must have the shape of x, (2, 8, 2), it has (2, 8, 3)",
        ),
        (
            "attention",
            (floats(1, 2, 3, 4), floats(1, 2, 3, 5), floats(1, 2, 3, 4)),
            "the shapes must be (N, h, S, d), (N, h, L, d) and (N, h, L, e),"
            " they are query (1, 2, 3, 4), key (1, 2, 3, 5), value (1, 2, 3, 4)",
        ),
        (
            "attention",
            (floats(1, 2, 3, 4), floats(1, 2, 3, 4), floats(1, 2, 2, 4)),
            "the shapes must be (N, h, S, d), (N, h, L, d) and (N, h, L, e),"
            " they are query (1, 2, 3, 4), key (1, 2, 3, 4), value (1, 2, 2, 4)",
        ),
        (
            "attention",
            (floats(1, 2, 3, 4), floats(1, 2, 0, 4), floats(1, 2, 0, 4)),
            "there must be a key, and heads of a size, key has the shape (1, 2, 0, 4)",
        ),
        (
            "attention",
            (floats(1, 1, 2, 3, 4), floats(1, 2, 3, 4), floats(1, 2, 3, 4)),
            "query must have four dimensions, it has the shape (1, 1, 2, 3, 4)",
        ),
        (
            "attention",
            (floats(1, 2, 3, 4), floats(1, 2, 3, 4), floats(1, 2, 3, 4), float("nan")),
            "scale must be a finite number, it is nan\n  Leave it out for 1 / sqrt(d).",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "(" not in value and " " not in value else "",
)
def test_malformed_calls_are_refused_in_words_before_anything_runs(
    name: str, arguments: tuple[Any, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "serves", pytest.fail)
    with pytest.raises(UsageError) as error:
        getattr(torch.ops.sdort, name)(*arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bias_add", (floats(0, 8), floats(8), floats(0, 8))),
        ("bias_split_gelu", (floats(2, 0), floats(0))),
        ("layer_norm", (floats(0, 8), floats(8))),
        ("group_norm", (floats(0, 8, 2, 2), 2, floats(8), floats(8))),
        ("attention", (floats(1, 2, 0, 4), floats(1, 2, 3, 4), floats(1, 2, 3, 4))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_empty_stays_so(name: str, arguments: tuple[Any, ...]) -> None:
    assert getattr(torch.ops.sdort, name)(*arguments).numel() == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch 2.15's own
@pytest.mark.parametrize("name", OPERATORS)
def test_torch_checks_the_registration(name: str) -> None:
    """Schema, autograd, fake tensors, and tracing with sizes that change."""
    call = next(call for call in calls(torch.float32).values() if call.operator == name)
    arguments = tuple(
        x.detach().clone(memory_format=torch.preserve_format).requires_grad_() if isinstance(x, Tensor) else x
        for x in call.arguments
    )
    torch.library.opcheck(getattr(torch.ops.sdort, name).default, arguments)


@each_call
def test_gradients_are_those_of_the_function(name: str) -> None:
    call = calls(torch.float32, width=8)[name]
    assert torch.autograd.gradcheck(getattr(torch.ops.sdort, call.operator), call.in_float64(), fast_mode=True)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, when it first decomposes
@each_call
def test_torch_func_and_forward_mode_differentiate_the_function(name: str) -> None:
    """In float32, in which kernels compute, as autograd does."""
    call = calls(torch.float32, width=8)[name]
    places = [index for index, x in enumerate(call.arguments) if isinstance(x, Tensor)]
    primals = tuple(call.arguments[index] for index in places)
    draw = torch.Generator().manual_seed(0)
    tangents = tuple(torch.randn(x.shape, generator=draw) for x in primals)

    def function(*tensors: Tensor) -> Tensor:
        given = list(call.arguments)
        for index, x in zip(places, tensors, strict=True):
            given[index] = x
        made = results(getattr(torch.ops.sdort, call.operator)(*given))
        return sum(y.square().sum() for y in made)

    _, slope = torch.func.jvp(function, primals, tangents)
    gradients = torch.func.grad(function, tuple(range(len(primals))))(*primals)
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in primals]
    wanted = torch.autograd.grad(function(*leaves), leaves)
    for gradient, expected in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=2e-4, atol=2e-4 * float(expected.abs().max()))
    along = sum((g * t).sum() for g, t in zip(wanted, tangents, strict=True))
    torch.testing.assert_close(slope, along, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_all_of_them_compile_to_one_graph(backend: str) -> None:
    arguments = {name: call.arguments for name, call in calls(torch.float32).items()}
    operators = {name: getattr(torch.ops.sdort, call.operator) for name, call in calls(torch.float32).items()}
    leaf = torch.ones((), requires_grad=True)

    def model(factor: Tensor) -> list[Tensor]:
        made = []
        for name, (x, *rest) in arguments.items():
            made += [y * 2 for y in results(operators[name](x * factor, *rest))]
        return made

    wanted = model(leaf)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)(leaf)
    for actual, expected in zip(compiled, wanted, strict=True):
        assert torch.equal(actual, expected)
    (gradient,) = torch.autograd.grad(sum(y.square().sum() for y in compiled), leaf)
    (expected,) = torch.autograd.grad(sum(y.square().sum() for y in wanted), leaf)
    assert torch.equal(gradient, expected)


WITHOUT_CUDA_GRAPHS = """
import torch
from support.operator_cases import calls, results
from sdort.integrations import torch_operators
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

def traced(call):
    operator = getattr(torch.ops.sdort, call.operator)
    def function(*tensors):
        given = iter(tensors)
        return results(operator(*(next(given) if torch.is_tensor(x) else x for x in call.arguments)))
    tensors = [x for x in call.arguments if torch.is_tensor(x)]
    graph = make_fx(function, select_decomp_table(), tracing_mode="fake")(*tensors)
    own = any("sdort" in str(node.target) for node in graph.graph.nodes)
    return own, graph(*tensors), function(*tensors)

with torch.no_grad():
    every = calls(torch.float32)
    traced(next(iter(every.values())))  # which offers the formulas
    for recorded in (False, True):
        with config.patch({"triton.cudagraphs": recorded}):
            for name, call in every.items():
                own, found, wanted = traced(call)
                assert own == recorded, name
                for actual, expected in zip(found, wanted, strict=True):
                    assert actual.stride() == expected.stride(), name
                    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4)
"""


def test_inductor_compiles_their_formulas_where_no_cuda_graph_replays_a_call() -> None:
    """In a process of its own: what Inductor imports changes Python's standard library."""
    places = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CUDA_GRAPHS],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_profiler_names_them() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        calls(torch.float32)["group_norm"]()
    assert "sdort::group_norm" in {event.name for event in profile.events()}
