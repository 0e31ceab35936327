"""Trials of fp16: a component is converted on the side, with some nodes in fp32 or none, and run as it is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from sdort.engines.rounding import emulate
from sdort.graph.model import Model
from sdort.graph.signature import Array
from sdort.onnx_io.save import save_model
from sdort.passes import half
from sdort.precision.ranges import open_plain, run_plain
from sdort.rewrite.editor import Editor
from sdort.workload.judgement import measure_errors, unfit


def run_trial(
    editor: Editor, keep: Collection[str], feed: Mapping[str, Array], expected: Mapping[str, Array], folder: Path
) -> str:
    """The result of a conversion to fp16, in words.

    Args:
        editor: the graph before it is converted; it stays as it is.
        keep: names of the nodes that stay in fp32.
        feed: the inputs.
        expected: the outputs in fp32.
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
    return describe_result(run_plain(session, feed), expected)


def describe_result(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """The worst of all outputs, in words."""
    errors = {}
    for name, value in outputs.items():
        if problem := unfit(value, expected[name]):
            return f"{name} {problem}"
        errors[name] = measure_errors(value, expected[name]).mean_share
    worst = max(errors, key=errors.__getitem__)
    return f"{worst} is off by {errors[worst]:.1e} of its standard deviation in the mean"
