"""A folder of packages with sdort for the environment of onnxruntime-rocm."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import sdort

MODEL = """
import json, sys
from onnx import parser
text = '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Add (x, x) }'
model = parser.parse_model(text).SerializeToString()
"""


WITHOUT_SDORT = (
    MODEL
    + """
import onnxruntime
chain = [("ROCMExecutionProvider", json.loads(sys.argv[1]))]
session = onnxruntime.InferenceSession(model, providers=chain)
print(json.dumps(session.get_provider_options()))
"""
)


PURE = ("click", "rich", "markdown_it", "mdurl", "pygments", "pynvml")
"""What sdort's runtime needs beside numpy and onnx; it works in any environment as it is."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdort and what its runtime needs, for an environment that has neither."""
    folder = tmp_path_factory.mktemp("packages")
    for name in PURE:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        file = Path(found.origin)
        there = file.parent if found.submodule_search_locations else file
        (folder / there.name).symlink_to(there)
    source = Path(sdort.__file__).parent
    (folder / "sdort").mkdir()
    for entry in (*source.iterdir(), source.parent / "custom_ops"):
        (folder / "sdort" / entry.name).symlink_to(entry)
    return folder
