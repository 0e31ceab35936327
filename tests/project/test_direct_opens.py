"""Files are opened through sdort/files/input_file.py; the rest are listed here, each with the reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import sdort

PACKAGE = Path(sdort.__file__).parent
ATTRIBUTES = {"read_bytes", "read_text", "fromfile", "memmap", "copyfile", "copy", "copy2", "copytree", "open"}
ATTRIBUTES |= {"open_file", "open_lock"}
MODULES = {"shutil", "os", "os_calls", "io", "np", "numpy"}
"""``copy`` and ``open`` are taken for reading of a file only as functions of these, and ``open`` also of a path."""

# Module: (number of calls, why they may)
ALLOWED = {
    "batches/archive.py": (1, "a tar file that is written into a staged one"),
    "batches/journal.py": (2, "written, not read; without following links"),
    "benchmark/conditions.py": (1, "/sys"),
    "checkup/graphs/__init__.py": (1, "the package's own files"),
    "checkup/prediction.py": (1, "the package's own file"),
    "checkpoints/clip_merges.py": (1, "the package's own file"),
    "checkpoints/safetensors.py": (1, "written, not read"),
    "cli/streams.py": (3, "/dev/null and the process's own streams"),
    "demo/__init__.py": (1, "the package's own files"),
    "demo/prompt_language.py": (1, "the package's own file"),
    "engines/checkpoint_folder.py": (2, "copies of a checkpoint that open_source has checked, for this process alone"),
    "files/input_file.py": (3, "the one way"),
    "files/package_sources.py": (1, "installed packages"),
    "files/staging.py": (6, "locks and staged outputs: without following links, without waiting"),
    "generation/files/image_texts.py": (1, "bytes that read_input read, of which Pillow decodes no pixel"),
    "generation/pictures/input_image.py": (1, "bytes that open_input read, decoded in memory"),
    "inspection/profile.py": (1, "what ONNX Runtime wrote to a temporary folder of this process"),
    "machine/elf.py": (2, "libraries of the installed ONNX Runtime"),
    "machine/onnxruntime_copies.py": (1, "records of installed packages"),
    "machine/optional_packages.py": (1, "the package's own record of its installation"),
    "machine/posix_calls.py": (3, "/dev/tty, folders brought to the disk, and what os_calls.open_file is"),
    "machine/supervisor.py": (1, "/proc"),
    "machine/system.py": (1, "/proc and /sys"),
    "onnx_io/hashing.py": (2, "files that this process wrote to its own staged folder"),
    "onnx_io/save.py": (2, "written, not read"),
    "operator_library/library.py": (1, "the package's own sources"),
    "precision/cost.py": (1, "what ONNX Runtime wrote to a temporary folder of this process"),
    "runtime/environment.py": (1, "/proc"),
    "runtime/memory.py": (1, "/proc"),
    "serving/page.py": (1, "the package's own file"),
    "tuning/archive.py": (3, "written, not read; the archive itself comes from open_input"),
    "tuning/store.py": (3, "locks: without following links, without waiting"),
}


def opens(call: ast.Call) -> bool:
    """Whether a call opens a file by its path."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute) or function.attr not in ATTRIBUTES:
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    return owner in MODULES or function.attr not in {"copy"}


def count(path: Path) -> int:
    """How many calls of a module open files."""
    text = path.read_text()
    if not re.search(rf"\b({'|'.join(ATTRIBUTES)})\(", text):  # faster than parsing
        return 0
    return sum(isinstance(node, ast.Call) and opens(node) for node in ast.walk(ast.parse(text)))


def test_no_other_call_opens_a_file() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): number for path in PACKAGE.rglob("*.py") if (number := count(path))}
    assert found == {name: number for name, (number, _) in ALLOWED.items()}
