"""Signatures of the functions that torch's exporter translates operators with: a process reads them once.

Every ``torch.onnx.export`` asks some six hundred functions of onnxscript's for theirs, each of which parses its source
again: of a tiny model's export that is up to a third.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any


def keep_signatures() -> None:
    """Let what was parsed once be the answer from then on; nothing where onnxscript has no such property."""
    from onnxscript._internal import values

    function: Any = getattr(values, "TracedOnnxFunction", object)
    signature = vars(function).get("function_ir")
    if isinstance(signature, property) and signature.fget:
        kept = cached_property(signature.fget)
        kept.__set_name__(function, "function_ir")
        function.function_ir = kept
