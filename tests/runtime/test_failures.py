"""What ONNX Runtime's exceptions mean, sign by sign; what is announced; and why a provider is refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.errors import BadModelError, MemoryShortageError, ProviderError, SdortError
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.provider import Provider
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import environment, memory, provider_message
from sdort.runtime.availability import Problem
from sdort.runtime.failures import load_error, run_error
from sdort.runtime.memory import DeviceGrowth, peak_resident
from sdort.runtime.placement import parse_placement, refuse_fallback
from sdort.runtime.probe import explain_refusal

PATH = Path("/models/opset of mine/model.onnx")

SHORT = ("Failed to allocate memory for requested buffer of size 9", "std::bad_alloc", "CUDA out of memory",
         "hipErrorOutOfMemory", "bad allocation", "CUBLAS_STATUS_ALLOC_FAILED",
         "Available memory of 0 is smaller than requested bytes of 5")  # fmt: skip
LOST = ("an illegal memory access was encountered", "hipErrorIllegalAddress", "unspecified launch failure",
        "hipErrorLaunchFailure", "the launch timed out and was terminated", "hipErrorDeviceLost",
        "the device lost power", "GPU device is lost", "uncorrectable ECC error encountered", "hipErrorNoDevice",
        "the device is no longer available")  # fmt: skip


@pytest.mark.parametrize("sign", [*SHORT, *(sign.upper() for sign in SHORT)])
def test_every_sign_of_exhausted_memory(sign: str) -> None:
    ran, loaded = run_error(RuntimeError(sign), "unet", ROCM), load_error(RuntimeError(sign), PATH, "unet", ROCM)
    for found in (ran, loaded):
        assert isinstance(found, MemoryShortageError)
        assert found.component == "unet"
    assert ran.message.startswith("rocm ran out of memory: ")
    assert loaded.message == "no memory left on rocm to load the model"
    assert "--offload" in str(loaded.hint)


@pytest.mark.parametrize("sign", [*LOST, *(sign.upper() for sign in LOST)])
def test_every_sign_of_a_lost_device(sign: str) -> None:
    for found in (run_error(RuntimeError(sign), "unet", CUDA), load_error(RuntimeError(sign), PATH, "unet", CUDA)):
        assert (type(found), found.component) == (ProviderError, "unet")
        assert found.message == f"cuda lost the GPU: {sign}"
        assert "dmesg" in str(found.hint)


@pytest.mark.parametrize(
    ("said", "kind", "words", "node"),
    [
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no kernel", ProviderError, "cpu cannot run", None),
        ("Fatal error: my:Op(-1) is not a registered function/op", ProviderError, "cpu cannot run", None),
        ("No Op registered for Foo with domain_version of 17", ProviderError, "cpu cannot run", None),
        ("ONNX Runtime only guarantees opset 21", ProviderError, "this ONNX Runtime is too old for", None),
        ("Unsupported model IR version: 99", ProviderError, "this ONNX Runtime is too old for", None),
        ("unsupported OPSET", ProviderError, "this ONNX Runtime is too old for", None),
        (f"Load model from {PATH} failed: Protobuf parsing failed.", BadModelError, ": Protobuf parsing failed.", None),
        ("This is an invalid model. Error in Node: (conv_1) : no input", BadModelError, "cannot load", "conv_1"),
        ("Exception in node (add) of it", BadModelError, "cannot load", "add"),
        ("irversion and opsets", BadModelError, "cannot load", None),
    ],
)
def test_a_model_that_does_not_load_is_refused_by_its_reason(
    said: str, kind: type[SdortError], words: str, node: str | None
) -> None:
    found = load_error(RuntimeError(said), PATH, "unet", CPU)
    assert (type(found), found.component) == (kind, "unet")
    assert words in found.message
    assert getattr(found, "node", None) == node


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got 3",
            BadModelError,
            "the model does not take this input: Got 3",
        ),
        ("[ONNXRuntimeError] : 1 : FAIL : odd", ProviderError, "the run on cpu failed: odd"),
    ],
)
def test_a_run_that_fails_is_told_by_its_reason(said: str, kind: type[SdortError], words: str) -> None:
    found = run_error(RuntimeError(said), "unet", CPU)
    assert (type(found), found.message, found.component) == (kind, words, "unet")


# Placement

LOG = """[V] Node(s) placed on [ROCMExecutionProvider]. Number of nodes: 3
[V] VerifyEachNodeIsAssignedToAnEp]  Conv (a)
[V] VerifyEachNodeIsAssignedToAnEp]  Conv (b)
[V] VerifyEachNodeIsAssignedToAnEp]  Shape (c)
[V] Node(s) placed on [CPUExecutionProvider]. Number of nodes: 4
[V] VerifyEachNodeIsAssignedToAnEp]  Shape (d)
[V] VerifyEachNodeIsAssignedToAnEp]  Softmax (e)
[V] VerifyEachNodeIsAssignedToAnEp]  Einsum (f)
[V] VerifyEachNodeIsAssignedToAnEp]  Einsum (g)
"""


def test_what_fell_back_is_counted_by_operator() -> None:
    assert parse_placement(LOG) == {
        "ROCMExecutionProvider": {"Conv": 2, "Shape": 1},
        "CPUExecutionProvider": {"Shape": 1, "Softmax": 1, "Einsum": 2},
    }
    with pytest.raises(ProviderError, match="2 Einsum, 1 Softmax would run on the CPU, not on rocm") as refused:
        refuse_fallback(LOG, ROCM, "unet")
    assert refused.value.component == "unet"
    refuse_fallback(LOG, CPU, "unet")
    whole = "All nodes placed on [CPUExecutionProvider]. Number of nodes: 12"
    with pytest.raises(ProviderError, match="all 12 nodes would run on the CPU"):
        refuse_fallback(whole, ROCM, "unet")
    refuse_fallback(whole.replace("CPU", "ROCM"), ROCM, "unet")
    refuse_fallback("", ROCM, "unet")


# fmt: off
SIZES = [
    "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Expand",
    "Floor", "Gather", "Greater", "Identity", "Less", "Max", "MemcpyFromHost", "MemcpyToHost", "Min", "Mod", "Mul",
    "Neg", "Not", "Or", "Range", "ReduceProd", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Sub",
    "Unsqueeze", "Where",
]
# fmt: on
"""What exporters write to compute a shape, whose numbers the processor needs."""


@pytest.mark.parametrize("operator", [*SIZES, "Conv", "Softmax", "Resize", "Transpose", "ReduceMean", "Sqrt", "Tile"])
def test_only_what_computes_sizes_may_be_left_on_the_processor(operator: str) -> None:
    log = "\n".join([*LOG.splitlines()[:6], f"[V] VerifyEachNodeIsAssignedToAnEp]  {operator} (h)"])
    with nullcontext() if operator in SIZES else pytest.raises(ProviderError, match=f"1 {operator} would run"):
        refuse_fallback(log, ROCM, "unet")


# Why a provider is refused

LIBRARIES = Problem("libraries", "shared libraries are not found: liba.so.1 (a), libb.so.2 (b)", "Install them.")
DRIVER = Problem("driver", "the driver is too old", "Update:\nnow")


@pytest.mark.parametrize(
    ("reason", "problems", "words"),
    [
        ("it failed", [], "it failed. NEEDS"),
        ("it failed", [DRIVER], "it failed; the driver is too old. Update:\nnow"),
        ("it failed", [LIBRARIES], "it failed. NEEDS"),  # found in whatever way
        ("liba.so.1: cannot open", [LIBRARIES], f"{LIBRARIES.message}. Install them."),
        ("liba.so.1: cannot open", [LIBRARIES, DRIVER], f"{LIBRARIES.message}; the driver is too old. Install them. "),
        ("cudnn is unavailable", [LIBRARIES], f"cudnn is unavailable; {LIBRARIES.message}. Install them."),
        ("CUDNN_STATUS", [LIBRARIES], f"CUDNN_STATUS; {LIBRARIES.message}. Install them."),
    ],
)
def test_a_refusal_says_what_is_wrong_once(reason: str, problems: list[Problem], words: str) -> None:
    provider: Any = SimpleNamespace(opened=("libcudnn.so.9",), needs="NEEDS")
    assert explain_refusal(provider, reason, problems).startswith(words)


@pytest.mark.parametrize(
    ("asked", "fallback", "told"),
    [("auto", None, ["running on rocm"]), ("rocm", None, []), ("rocm", "why", ["why", "running on rocm"]),
     ("auto", "why", ["why", "running on rocm"])],
)  # fmt: skip
@pytest.mark.parametrize("tuning", [False, True])
@pytest.mark.parametrize("library", [None, "lib.so"])
def test_what_runs_is_announced_where_it_was_not_named(
    asked: str, fallback: str | None, told: list[str], tuning: bool, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    for name in ("say", "warn", "detail"):
        monkeypatch.setattr(provider_message, name, lambda text, name=name: said.append((name, text)))
    monkeypatch.setattr(provider_message, "choose_provider", lambda _: (ROCM, fallback))
    monkeypatch.setattr(provider_message, "device_name", lambda provider, number: f"card {number}")
    monkeypatch.setattr(provider_message, "resolve", lambda _: library)
    monkeypatch.setattr(provider_message, "library_hash", lambda path: f"hash of {path}")
    monkeypatch.setattr(provider_message, "tuning_remark", lambda *_: "a remark")
    options = RuntimeOptions(asked, tuning=tuning, device_id=3)
    provider_message.announce(options)
    wanted = [("warn", "why")] * ("why" in told)
    wanted += [("say", "running on rocm: card 3")] * ("running on rocm" in told)
    wanted += [("detail", "custom operators: lib.so")] * (library is not None)
    assert said == [*wanted, ("say" if tuning else "detail", "a remark")]
    assert provider_message.custom_ops_hash(options) == ("hash of lib.so" if library else None)


# What is measured


def test_the_peak_is_in_bytes_and_unknown_where_the_kernel_does_not_tell(tmp_path: Path) -> None:
    assert peak_resident(tmp_path) is None
    (tmp_path / "status").write_text("VmPeak:\t  900 kB\nVmHWM:\t  1234 kB\nVmRSS:\t 5 kB\n")
    assert peak_resident(tmp_path) == 1234 * 1024
    for text in ("VmPeak: 1 kB\n", "VmHWM: much kB\n"):
        (tmp_path / "status").write_text(text)
        assert peak_resident(tmp_path) is None


@pytest.mark.parametrize(
    ("readings", "growth"), [([100, 350], 250), ([100, 40], 0), ([None, 350], None), ([100, None], None), ([0, 5], 5)]
)
def test_the_devices_growth_is_from_the_start(
    readings: list[int | None], growth: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(readings)
    monkeypatch.setattr(
        memory, "device_reader", lambda provider, number: (lambda: left.pop(0)) if number == 2 else None
    )
    assert DeviceGrowth(ROCM, 2).bytes() == growth
    assert DeviceGrowth(ROCM, 1).bytes() is None


@pytest.mark.parametrize(
    ("provider", "number", "name"),
    [(CUDA, 1, "second, driver 580"), (CUDA, 2, "unknown GPU"), (ROCM, 0, "first"), (ROCM, 1, "second"),
     (CPU, 0, "the processor")],
)  # fmt: skip
def test_a_device_has_its_own_name_and_its_driver(
    provider: Provider, number: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "gpus_of", lambda vendor, system: ["first", "second"] if vendor else [])
    monkeypatch.setattr(environment, "nvidia_driver", lambda system: "580")
    monkeypatch.setattr(environment, "cpu_name", lambda: "the processor")
    assert environment.device_name.__wrapped__(provider, number) == name
