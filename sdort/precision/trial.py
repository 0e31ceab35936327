"""What fp16 makes of a component, with some nodes in fp32 or none: converted on the side, and run as it is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from sdort.emulation.rounding import emulate
from sdort.model.error_measure import measure_errors
from sdort.model.model import Model
from sdort.onnx_io.save import save_model
from sdort.passes import half
from sdort.precision.ranges import Array, open_plain, run_plain
from sdort.rewrite.editor import Editor


def outcome(
    editor: Editor, keep: Collection[str], feed: Mapping[str, Array], wanted: Mapping[str, Array], folder: Path
) -> str:
    """What fp16 gives, in words.

    Args:
        editor: the graph before it is converted; it stays as it is.
        keep: names of the nodes that stay in fp32.
        feed: the inputs.
        wanted: the outputs in fp32.
        folder: where a copy of the model may be written.

    Raises:
        BadModelError: the converted graph does not run.
    """
    component = editor.model.component
    converted = Editor(Model(editor.graph.copy(), component))
    half.run(converted, keep=keep)
    path = folder / "converted.onnx"
    written = save_model(converted.model, path)
    if written.overflowed:
        return f"{len(written.overflowed)} weights are infinite"
    session = open_plain(emulate(path, component), path, component)
    return judge(run_plain(session, feed), wanted)


def judge(outputs: Mapping[str, Array], wanted: Mapping[str, Array]) -> str:
    """The worst of all outputs, in words."""
    errors = {}
    for name, value in outputs.items():
        exact = wanted[name].astype(np.float64)
        if not np.isfinite(value).all():
            return f"{name} is NaN or infinite"
        if exact.size > 1 and value.min() == value.max() and exact.min() != exact.max():
            return f"{name} is the same everywhere"
        errors[name] = measure_errors(value, exact).mean_share
    worst = max(errors, key=errors.__getitem__)
    return f"{worst} is off by {errors[worst]:.1e} of its standard deviation in the mean"
