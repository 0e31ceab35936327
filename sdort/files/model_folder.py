"""The one rule of what belongs to a model: the regular files of its folder, and nothing that a link there leads to.

A model folder comes from a stranger. A link in it that leads out would make sdort read a file of the user's own, and
copy it into a folder that is then given away. So a link is followed where its real path stays in the folder, or is a
blob of the hub's cache that the folder is a snapshot of. The folder itself may be a link: the user named it.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

from sdort.errors import BadModelError
from sdort.files.input_file import kind_of

_HUB_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FILES = (".json", ".txt", ".jinja", ".safetensors", ".bin", ".data")
"""Ends of names of a model's files; a folder of such a name stands in a file's place."""


def check_model_folder(folder: Path) -> None:
    """Refuse a folder that holds more than a model's own files; what is hidden, such as ``.git``, is not looked at.

    Costs one look at each entry, and a resolved path for each link: 0.4 ms for a pipeline of 25 entries.

    Raises:
        BadModelError: a link leads out of the folder or nowhere; something is a named pipe, a socket or a device; a
            folder has the name of a file; or one of the folders cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise BadModelError(f"cannot read {error.filename}: {error.strerror}") from error

    root = Path(os.path.realpath(folder))
    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *files):
            if not name.startswith("."):
                _check_entry(Path(place) / name, root)


def check_own_file(path: Path, folder: Path) -> None:
    """Refuse a path in a model's folder that a link there leads out of it, before it is opened.

    Raises:
        BadModelError: it does.
    """
    real = Path(os.path.realpath(path))
    if not belongs(real, Path(os.path.realpath(folder))):
        raise _leads_out(path, real)


def belongs(real: Path, root: Path) -> bool:
    """Whether a path is one of a model's own files.

    Args:
        real: the file's path without links.
        root: the model's folder without links.
    """
    return real.is_relative_to(root) or _is_hub_blob(real, root)


def _is_hub_blob(real: Path, root: Path) -> bool:
    """Whether ``real`` is a blob of the very hub snapshot that the model is, or lies in.

    The Hugging Face cache stores ``snapshots/<revision>/<file>`` as links to ``blobs/<hash>``.
    """
    snapshots = next((parent for parent in root.parents if parent.name == "snapshots"), None)
    return snapshots is not None and real.parent == snapshots.parent / "blobs" and bool(_HUB_BLOB.fullmatch(real.name))


def _check_entry(path: Path, root: Path) -> None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        real = Path(os.path.realpath(path))
        if not belongs(real, root):
            raise _leads_out(path, real)
        try:
            status = path.stat()
        except OSError as error:
            raise BadModelError(
                f"{path} is a link to {os.readlink(path)}, which cannot be read: {error.strerror}",
                hint="Copy or download the model again.",
            ) from error
    if stat.S_ISDIR(status.st_mode) and (path.suffix in _FILES or path.name == "model.onnx"):
        raise BadModelError(f"{path} is a folder, and a file has to be there", hint="Copy or download the model again.")
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise BadModelError(f"{path} is {kind_of(status)}, which no model has", hint="Copy the model again without it.")


def _leads_out(path: Path, real: Path) -> BadModelError:
    place = shlex.quote(str(path))
    return BadModelError(
        f"{path} is a link to {real}, outside of the model's folder, and sdort reads only the model's own files",
        hint="If you made the link, put a copy in its place:\n"
        f"    rm {place} && cp -rL {shlex.quote(str(real))} {place}",
    )
