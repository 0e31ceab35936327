"""ONNX Runtime's exceptions as errors of sdort: one sentence that says what failed, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

from sdort.errors import BadModelError, MemoryShortageError, ProviderError, SdortError
from sdort.errors.plain_text import library_reason, one_line
from sdort.providers.provider import Provider


def reason_of(error: Exception) -> str:
    """The sentence of an error of ONNX Runtime for people.

    Without its further lines, which are its stack, its class and number, and, of errors of the device or its memory,
    the C++ signature before and the source file after them.
    """
    text = library_reason(error)
    failure = re.search(r"\b(?:(?:HIP|CUDA) (?:failure|error) |Failed to allocate memory )[^;]*", text)
    if failure:
        return failure[0].strip()
    return re.sub(r"^.*?\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)


LOADING_HINT = (
    "--memory low loads the models in turn, --offload holds a part of a denoiser's weights there; close other programs "
    "that use the GPU."
)


def load_error(error: Exception, path: Path, component: str, provider: Provider) -> SdortError:
    """The error to raise when ONNX Runtime refuses a model."""
    text = library_reason(error)
    # ONNX Runtime names the file too; what is read out of its sentence must not be a part of that name.
    reason = re.sub(r"^Load model from .*? failed: ?", "", reason_of(error).replace(str(path), ""))
    node = re.search(r"\b[Nn]ode:? \(([^()]+)\)", reason)
    if "NOT_IMPLEMENTED" in text or "not a registered function/op" in text or "No Op registered" in text:
        return ProviderError(
            f"{provider.name} cannot run {path}: {reason}",
            component=component,
            hint="The model was made for another provider. Make it for this one from the original:\n"
            f"    sdort optimize ORIGINAL OUT --provider {provider.name}\n"
            "  With sdort's own operators the CPU runs models made for rocm and cuda:\n    sdort ops build",
        )
    if created := re.search(r"Error creating execution provider: (?:\[ONNXRuntimeError\] : \d+ : \w+ : )?(.*)", text):
        return ProviderError(
            f"{provider.name} does not load with these options: {created[1]}",
            component=component,
            hint=f"Leave --provider-option out, or see sdort doctor --provider {provider.name}.",
        )
    if _out_of_memory(reason):
        return MemoryShortageError(
            f"no memory left on {provider.name} to load the model", component=component, hint=LOADING_HINT
        )
    if _device_lost(reason):
        return _lost_error(reason, component, provider)
    if "EP_FAIL" in text:
        return ProviderError(
            f"{provider.name} cannot compile {path}: {_last_sentence(error)}",
            component=component,
            hint=f"Make it for this one from the original:\n    sdort optimize ORIGINAL OUT --provider {provider.name}",
        )
    if re.search(r"\b(opset|IR version)\b", reason, re.I):
        return ProviderError(
            f"this ONNX Runtime is too old for {path}: {reason}",
            component=component,
            hint=f"Optimizing sets what it loads:\n    sdort optimize ORIGINAL OUT --provider {provider.name}",
        )
    return BadModelError(
        f"ONNX Runtime cannot load {path}: {reason}",
        component=component,
        node=node[1] if node else None,
        hint="Export or optimize the model again.",
    )


def _last_sentence(error: Exception) -> str:
    """The last line of an error of a provider that hands on those of its own library, innermost last."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1].split(" : ")[-1]) if lines else "no reason given"


def run_error(error: Exception, component: str, provider: Provider) -> SdortError:
    """The error to raise when a run fails."""
    text, reason = library_reason(error), reason_of(error)
    if _out_of_memory(text):
        return MemoryShortageError(
            f"{provider.name} ran out of memory: {reason}",
            component=component,
            hint="Take fewer images at once or a smaller size.",
        )
    if _device_lost(text):
        return _lost_error(reason, component, provider)
    if "INVALID_ARGUMENT" in text:
        return BadModelError(f"the model does not take this input: {reason}", component=component)
    return ProviderError(f"the run on {provider.name} failed: {reason}", component=component)


def _lost_error(reason: str, component: str, provider: Provider) -> ProviderError:
    return ProviderError(
        f"{provider.name} lost the GPU: {reason}",
        component=component,
        hint="Its driver says why (dmesg); start anew once sdort doctor finds the GPU again.",
    )


def _out_of_memory(text: str) -> bool:
    text = text.lower()
    signs = (
        "failed to allocate memory", "bad_alloc", "out of memory", "outofmemory", "bad allocation", "alloc_failed",
        "smaller than requested bytes",
    )  # fmt: skip
    return any(sign in text for sign in signs)


def _device_lost(text: str) -> bool:
    """Errors of HIP and CUDA after which no call of the process succeeds any more."""
    text = text.lower()
    signs = (
        "illegal memory access", "illegaladdress", "launch failure", "launchfailure", "launch timed out", "devicelost",
        "device lost", "device is lost", "uncorrectable ecc", "hiperrornodevice", "no longer available",
    )  # fmt: skip
    return any(sign in text for sign in signs)
