"""Checkpoints as people give them: a file, a diffusers folder, a hub id or ``demo``; what tells each from others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import INDEX
from sdort.console import progress
from sdort.demo import DEMO_NAMES
from sdort.errors import BadModelError
from sdort.files.file_digest import file_digest
from sdort.first_use.unmade import through_export
from sdort.onnx_io.component_file import file_identity
from sdort.pipelines.explain_path import HUB_ID, in_home, not_there
from sdort.pipelines.origin import ORIGIN, origin_mark
from sdort.pipelines.remembered_hashes import RememberedHashes

_HALVES = "fp16"
"""The variant in which pipelines are published on the hub in half precision."""
_READ = (".json", ".txt", ".jinja", ".safetensors")
"""Ends of the names of what an export reads of a diffusers folder."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint.

    Attributes:
        model: it, as :func:`sdort.export` takes it.
        name: its name for people: a file's without its ending, a folder's, the hub id, ``demo``.
        path: its file or folder; None for ``demo``, and for a hub id that is not downloaded yet.
        hub: whether it is a hub id.
    """

    model: str
    name: str
    path: Path | None = None
    hub: bool = False

    @property
    def origin(self) -> dict[str, Any]:
        """The origin that the manifest of a model made of it records."""
        if self.path is None:
            return {"from": self.model, ORIGIN: None}
        return {"from": str(self.path.resolve()), ORIGIN: origin_mark(self.path)}

    def digest(self) -> str:
        """A hash of its content: the SHA-256 of a file; of a folder that of its files' names and hashes.

        What is remembered is not read again.

        Raises:
            UsageError: there is nothing.
            BadModelError: a file cannot be read.
        """
        if self.path is None:
            return self.model  # sdort's own, of its version
        if not self.path.exists():
            raise not_there(str(self.path))
        if self.path.is_file():
            return _digests(self.path.parent, [self.path])[self.path.name]
        digests = _digests(self.path, sorted(_read_files(self.path)))
        return hashlib.sha256("".join(f"{digest} {place}\n" for place, digest in digests.items()).encode()).hexdigest()

    @property
    def sha256(self) -> str | None:
        """The SHA-256 of a file, by which model sites know it; None for others."""
        return self.digest() if self.path and self.path.is_file() else None


def find_checkpoint(model: str | Path) -> Checkpoint:
    """The checkpoint that a path, a hub id or ``demo`` means; a path that exists before the others.

    Raises:
        UsageError: there is no such thing.
    """
    text = str(model)
    path = in_home(text)
    if path.exists():
        return Checkpoint(text, _name_of(path), path)
    if text in DEMO_NAMES:
        return Checkpoint(text, text.replace(":", "-"))
    if is_hub_id(text):
        return Checkpoint(text, text, hub=True)
    raise not_there(text, DEMO_NAMES)


def _name_of(path: Path) -> str:
    """The name that the user gave, also to a link; a file's without its ending."""
    if path.is_file():
        return path.stem
    name = path.absolute().name
    return path.resolve().name if name in ("", "..") else name


def is_hub_id(text: str) -> bool:
    """Whether a text that is no path of something can be a hub id."""
    return HUB_ID.fullmatch(text) is not None and not is_file_name(text) and not in_home(text).parent.is_dir()


def is_file_name(text: str) -> bool:
    """Whether a text ends as the name of a model's file, so that it means a path."""
    return text.lower().endswith((".safetensors", ".ckpt", ".pt", ".pth", ".onnx", ".gguf"))


def downloaded(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint of the hub with its folder, downloaded if need be; others as they are.

    Raises:
        SdortError: it cannot be downloaded.
    """
    if not checkpoint.hub:
        return checkpoint
    from sdort.exporter.open_source import download_pipeline

    try:
        folder = download_pipeline(checkpoint.model)
    except BadModelError as error:
        try:  # published in half precision alone
            folder = download_pipeline(checkpoint.model, _HALVES)
        except BadModelError:
            pickles = "It may have pickles alone, which may run code when read. sdort export reads their tensors"
            exported = through_export(checkpoint.model, "--allow-pickle")
            raise BadModelError(error.message, hint=f"{pickles}:\n{exported}") from None
    return Checkpoint(checkpoint.model, checkpoint.name, folder, hub=True)


def _read_files(folder: Path) -> Iterator[Path]:
    # Beside a pipeline's index lie single files of the same model, which are not read; a component's folder has none.
    top = "*.json" if (folder / INDEX).is_file() else "*"
    for path in (*folder.glob(top), *folder.glob("*/*")):
        hidden = path.relative_to(folder).parts[0].startswith(".")
        if path.suffix in _READ and path.is_file() and not hidden:
            yield path


def _digests(folder: Path, files: list[Path]) -> dict[str, str]:
    """Path in the folder -> SHA-256."""
    remembered = RememberedHashes(folder, "sha256")
    places = {file.relative_to(folder).as_posix(): file for file in files}
    digests = {place: remembered.find(place) for place in places}
    new = {place: file for place, file in places.items() if not digests[place]}
    size = sum(file.stat().st_size for file in new.values())
    with progress(f"reading {files[0].name if len(files) == 1 else folder.name}", size) as advance:
        for place, file in new.items():
            identity = file_identity(file)
            digests[place] = digest = file_digest(file, advance=advance)
            remembered.add(place, identity, digest)
    if new:
        remembered.keep()
    return {place: digest for place, digest in digests.items() if digest}
