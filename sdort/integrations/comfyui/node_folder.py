"""The folder in ComfyUI's ``custom_nodes`` that loads sdort's nodes.

It holds no code of its own: the nodes are sdort's, of the Python that runs ComfyUI.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sdort.console import document
from sdort.errors import OutputError, UsageError
from sdort.errors.plain_text import some
from sdort.files.input_file import read_input
from sdort.files.staging import scratch_folder, staged_directory
from sdort.machine.version import __version__
from sdort.options.option_types import typed

NAME = "sdort-nodes"
"""The folder's name."""
NODES = "custom_nodes"
_OF_COMFYUI = ("main.py", "nodes.py", "comfy/sd.py")
"""Files by which ComfyUI's folder is known."""

_INIT = '''"""sdort's nodes for ComfyUI. Written by `sdort integrate comfyui`; the nodes are in the package sdort."""

try:
    from sdort.integrations.comfyui.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
except ImportError as error:
    import importlib.util
    import sys
    from importlib.metadata import version

    # Neither a second ONNX Runtime nor another torch: pip replaces none that it is asked for.
    extras = "export" if importlib.util.find_spec("onnxruntime") else "cpu,export"
    raise ImportError(
        f"sdort's nodes cannot be loaded, as the Python that runs ComfyUI ({sys.executable}) lacks something: {error}. "
        f"Install sdort there, in sdort's checkout:  {sys.executable} -m pip install '.[{extras}]' "
        f"'torch=={version('torch')}'  (rocm, cuda or migraphx in the place of cpu, for your GPU)"
    ) from error

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
'''
_PYPROJECT = f"""[project]
name = "sdort-nodes"
description = "Optimized Stable Diffusion on ONNX Runtime: AMD GPUs, NVIDIA GPUs and CPUs"
version = "{__version__}"
dependencies = ["sdort"]

[tool.comfy]
PublisherId = "sdort"
DisplayName = "sdort"
"""
_FILES = {"__init__.py": _INIT, "pyproject.toml": _PYPROJECT}
_MARKS = {"__init__.py": b"Written by `sdort integrate comfyui`", "pyproject.toml": b'name = "sdort-nodes"'}
"""The text in the files of every release."""
_MOST = 1 << 20
"""Bytes of a file that is looked at."""
_HINT = "Look what is in it, and remove it yourself."


@document("integrate", 1)
@dataclass(frozen=True)
class NodeFolder:
    """The folder of sdort's nodes in a ComfyUI.

    Attributes:
        path: the folder.
        written: whether it is there now; False where it was removed.
    """

    path: Path
    written: bool


@typed
def write_comfyui_nodes(path: str | Path, *, overwrite: bool = False) -> NodeFolder:
    """Write the folder of nodes.

    Args:
        path: ComfyUI's folder.
        overwrite: replace the folder if it is there and sdort wrote all of it.

    Raises:
        UsageError: ``path`` is not ComfyUI's folder.
        OutputError: the folder exists and is not to be replaced, or cannot be written.
    """
    out = _place(Path(path))
    if _is_there(out):
        if not overwrite:
            raise OutputError(f"{out} exists already", hint="After an update of sdort replace it with --overwrite.")
        if kept := _why_no_folder(out):
            raise OutputError(f"{out} is not replaced: it {kept}", hint=_HINT)
    with staged_directory(out, overwrite, why_foreign=why_not_ours) as stage:
        for name, text in _FILES.items():
            (stage / name).write_bytes(text.encode())
    return NodeFolder(out, True)


@typed
def remove_comfyui_nodes(path: str | Path) -> NodeFolder:
    """Remove the folder of nodes.

    Raises:
        UsageError: ``path`` is not ComfyUI's folder, or has no nodes of sdort's.
        OutputError: something else is in the folder, or it cannot be removed.
    """
    folder = _place(Path(path))
    if not _is_there(folder):
        raise UsageError(f"{folder} does not exist: there is nothing to remove")
    try:
        if kept := _why_no_folder(folder) or why_not_ours(folder):
            raise OutputError(f"{folder} is not removed: it {kept}", hint=_HINT)
        with scratch_folder(folder.parent, f".{NAME}-removed-") as scratch:  # all of it goes or nothing
            folder.rename(scratch / NAME)
    except OSError as error:
        raise OutputError(f"cannot remove {folder}: {error.strerror or error}", hint=_RIGHTS) from error
    return NodeFolder(folder, False)


_RIGHTS = "Run it as the user who has installed ComfyUI."


def _is_there(path: Path) -> bool:
    """Whether there is something, which may be a link to nothing.

    Raises:
        OutputError: the folder around it may not be looked into.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OutputError(f"cannot look into {path.parent}: {error.strerror or error}", hint=_RIGHTS) from error
    return True


def _why_no_folder(path: Path) -> str | None:
    if path.is_symlink():
        return "is a link"
    return None if path.is_dir() else "is not a folder"


def why_not_ours(folder: Path) -> str | None:
    """The reason why a folder is not all of :func:`write_comfyui_nodes`, of any release; None if it is."""
    others = sorted(path.name for path in folder.iterdir() if not _is_ours(path))
    return f"holds what sdort did not write ({some(others)})" if others else None


def _is_ours(path: Path) -> bool:
    """Whether a file is of :func:`write_comfyui_nodes`, or a folder what Python has compiled of that."""
    if path.is_symlink():
        return False
    if path.name == "__pycache__" and path.is_dir():
        return all(re.fullmatch(r"__init__\..*\.pyc", compiled.name) for compiled in path.iterdir())
    mark = _MARKS.get(path.name)
    return mark is not None and path.is_file() and mark in read_input(path, limit=_MOST)


def _place(comfyui: Path) -> Path:
    """Where the nodes of a ComfyUI are.

    Raises:
        UsageError: it is none.
    """
    if comfyui.name == NODES and (comfyui.parent / _OF_COMFYUI[0]).is_file():
        raise UsageError(f"{comfyui} is a part of ComfyUI", hint=f"Give ComfyUI's folder:\n    {comfyui.parent}")
    hint = "Give the folder with ComfyUI's main.py; of the desktop and portable versions it is called ComfyUI."
    if not comfyui.exists():
        raise UsageError(f"{comfyui} does not exist", hint=hint)
    missing = [name for name in _OF_COMFYUI if not (comfyui / name).is_file()]
    missing += [NODES] * (not (comfyui / NODES).is_dir())
    if missing:
        raise UsageError(f"{comfyui} is not ComfyUI's folder: it has no {' and no '.join(missing)}", hint=hint)
    return comfyui / NODES / NAME
