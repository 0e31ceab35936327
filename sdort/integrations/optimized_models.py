"""Checkpoints that are exported and optimized on first use, and kept in sdort's cache.

A folder of the cache belongs to a checkpoint's content and to everything that its graphs depend on. Both stand in it,
in ``made-of.json``, and are compared whenever it is opened: no checkpoint gets another one's graphs.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from sdort.console import progress, say
from sdort.errors import BadModelError, OutputError
from sdort.exporter.command import export
from sdort.machine.cache_folder import models_folder
from sdort.machine.file_digest import file_digest
from sdort.machine.version import __version__
from sdort.onnx_io.component_file import file_identity
from sdort.optimizer.command import optimize
from sdort.pipelines.configs import MANIFEST, read_config, write_json
from sdort.pipelines.own_files import listed_files
from sdort.pipelines.remembered_hashes import RememberedHashes
from sdort.pipelines.wrong_input import not_there
from sdort.staging import scratch_folder, staged_directory

MADE_OF, MODEL = "made-of.json", "model"
"""What a folder of the cache holds: the record of what it was made of, and the optimized model."""


@dataclass(frozen=True)
class Making:
    """How a checkpoint becomes an optimized model."""

    components: tuple[str, ...]
    """Their names; all of the checkpoint if empty."""
    provider: str
    """The execution provider that it is for, by name."""
    precision: str = "fp32"
    """``fp32`` or ``fp16``."""
    size: str = ""
    """The one size that it works at, as ``BxHxW`` (images, height and width in pixels); empty for any."""


def optimized_model(checkpoint: Path, making: Making) -> Path:
    """The optimized model of a checkpoint; it is made if the cache has none.

    Args:
        checkpoint: a file with a UNet, with a VAE, or with both; or a folder as diffusers saves it.

    Returns:
        A folder as :func:`sdort.optimize` makes it, with the components of ``making``.

    Raises:
        BadModelError: the file is none that sdort exports, or changed meanwhile; or the cache's folder is of another
            checkpoint.
        UsageError: a component or size that it cannot have.
        OutputError: the cache cannot be written.
    """
    with progress(f"reading {checkpoint.name}"):
        made_of = {"checkpoint": _digest(checkpoint), "sdort": __version__, **asdict(making)}
    made_of = json.loads(json.dumps(made_of))
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:32]
    folder = models_folder() / f"model-{key}"
    if not folder.is_dir():
        _make(checkpoint, making, folder, made_of)
    hint = f"Somebody moved or changed it. Remove it, and it is made anew:\n    rm -r {shlex.quote(str(folder))}"
    try:
        found = read_config(folder / MADE_OF)
        listed = listed_files(folder / MODEL)
    except BadModelError as error:
        raise BadModelError(error.message, hint=hint) from error
    if found != made_of:
        raise BadModelError(
            f"{folder} is not of {checkpoint.name}: {MADE_OF} in it names another checkpoint or other options",
            hint=hint,
        )
    if not listed:
        raise BadModelError(
            f"{folder / MODEL} has no {MANIFEST} that lists its files, so they cannot be checked", hint=hint
        )
    return folder / MODEL


def _digest(checkpoint: Path) -> str:
    """The SHA-256 of a file, or of the names and contents of a folder's files; what is remembered is not read again.

    Raises:
        UsageError: there is nothing.
    """
    if not checkpoint.exists():
        raise not_there(str(checkpoint))
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    files = [checkpoint]
    if checkpoint.is_dir():
        files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    remembered, digests = RememberedHashes(folder, "sha256"), dict[str, str]()
    for file in files:
        place, identity = file.relative_to(folder).as_posix(), file_identity(file)
        known = remembered.find(place)
        digests[place] = known or file_digest(file)
        if not known:
            remembered.add(place, identity, digests[place])
    remembered.keep()
    if checkpoint.is_file():
        return digests[checkpoint.name]
    return hashlib.sha256("".join(f"{digest} {place}\n" for place, digest in digests.items()).encode()).hexdigest()


def _make(checkpoint: Path, making: Making, folder: Path, made_of: dict[str, object]) -> None:
    say(f"{checkpoint.name}: first use with these options, so it is exported and optimized for {making.provider}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            scratch_folder(folder.parent, ".making-") as scratch,
            staged_directory(folder, overwrite=False) as stage,
        ):
            export(
                checkpoint,
                scratch / "exported",
                components=making.components,
                static=making.size or None,
                control=not making.components or "unet" in making.components,
            )
            optimize(scratch / "exported", stage / MODEL, provider=making.provider, fp16=making.precision == "fp16")
            if _digest(checkpoint) != made_of["checkpoint"]:
                raise BadModelError(
                    f"{checkpoint} changed while it was exported, so what came of it is not kept",
                    hint="Load it again when nothing writes it any more.",
                )
            write_json(stage / MADE_OF, made_of)
    except OutputError:
        if not folder.is_dir():  # another process was faster
            raise
