"""The room that models made on first use may take together: a limit, and what goes where it is reached."""

from __future__ import annotations

import glob
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from pathlib import Path

from sdort.console import document, say, warn
from sdort.doctor.cache_entries import folder_bytes, remove_model
from sdort.errors import OutputError
from sdort.files.disk import PlannedWrite, plan_writes
from sdort.files.input_file import read_input
from sdort.files.staging import is_abandoned, remove_abandoned, write_atomically
from sdort.files.user_folders import data_folder, models_folder
from sdort.machine.version import __version__
from sdort.options.number_ranges import CACHE_LIMIT
from sdort.options.option_types import typed
from sdort.pipelines.model_cache import KeptModel, kept_models
from sdort.tables import size_text

DEFAULT_LIMIT = 50 * 10**9
"""Bytes: seven SDXL models in fp16, or twenty-four of Stable Diffusion 1.5."""

_LIMIT_FILE = "cache-limit"


def _limit_file() -> Path:
    return data_folder() / _LIMIT_FILE


@document("cache-limit", 1)
@dataclass(frozen=True)
class CacheLimit:
    """The room for models that were made on first use.

    Attributes:
        limit: bytes that they may take together.
        used: bytes that they take.
    """

    limit: int
    used: int


@typed
def cache_limit(limit: int | None = None) -> CacheLimit:
    """Tell or set the bytes that models made on first use may take together.

    Where they need more, those go that were not used for the longest time.

    Args:
        limit: sets it, for all runs from now on; None only tells it.

    Raises:
        UsageError: it is out of range.
        OutputError: it cannot be kept.

    Example:
        >>> sdort.cache_limit(20 * 10**9).limit
        20000000000
    """
    if limit is not None:
        text = str(CACHE_LIMIT.check(limit))
        _make_folder(data_folder())
        write_atomically(_limit_file(), f"{text}\n")
    return CacheLimit(_read_limit(), sum(folder_bytes(model.folder) for model in kept_models()))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {folder}: {error.strerror or error}") from error


def _read_limit() -> int:
    if not _limit_file().is_file():
        return DEFAULT_LIMIT
    text = read_input(_limit_file(), limit=100).decode(errors="replace").strip()
    number = CACHE_LIMIT.parse(text)
    if CACHE_LIMIT.problem(number):
        warn(f"{_limit_file()} holds no number of bytes, so that {size_text(DEFAULT_LIMIT)} are the limit")
        return DEFAULT_LIMIT
    return CACHE_LIMIT.check(number)


def make_room(name: str, needed: int) -> None:
    """Remove models until ``needed`` bytes more are within the limit, and what killed processes left; says what went.

    Those of another version of sdort go first, which nobody asks for any more, then those that were not used for the
    longest time. What a running process uses stays.

    Args:
        name: of the checkpoint that needs them.

    Raises:
        OutputError: as :func:`check_room`; or one cannot be removed.
    """
    _remove_leftovers()
    check_room(name, needed)
    limit = _read_limit()
    kept, total = _sizes()
    for model, size in kept:
        if total + needed <= limit:
            return
        if remove_model(model.folder):
            total -= size
            day = datetime.fromtimestamp(model.used).strftime("%Y-%m-%d")
            say(
                f"removed from the cache: {model.name} ({model.provider}, {model.precision}, {size_text(size)}), last "
                f"used on {day}: {size_text(limit)} are the limit, which sdort cache limit changes"
            )
    if total + needed > limit:
        warn(
            f"the models in the cache take {size_text(total + needed)}, more than the limit of {size_text(limit)}: "
            "sdort cache limit changes it"
        )


def check_room(name: str, needed: int) -> None:
    """Refuse what cannot be kept, before anything is removed or made for it.

    Args:
        name: of the checkpoint that needs them.
        needed: bytes.

    Raises:
        OutputError: they are more than the limit, or than what is free on the disk once other models went by it.
    """
    limit = _read_limit()
    if needed > limit:
        raise OutputError(
            f"{name} takes {size_text(needed)} in the cache, and its models may take {size_text(limit)} together",
            hint=f"Let them take more:\n    sdort cache limit {ceil(needed / 10**9)}GB",
        )
    going = _going(needed - limit)
    plan = plan_writes([PlannedWrite(name, models_folder(), needed - going)])
    try:
        plan.raise_if_short()
    except OutputError as error:
        hint = f"{error.hint} XDG_CACHE_HOME says where the cache is."
        clean = " Models that no command uses are removed with:\n    sdort cache clean models"
        raise OutputError(error.message, hint=f"{hint}{clean}" if kept_models() else hint) from error


def _going(more: int) -> int:
    """Bytes of the models that no process uses and that go where all models take ``more`` bytes than now too much."""
    kept, total = _sizes()
    going = 0
    for model, size in kept:
        if total + more <= going:
            break
        going += size if is_abandoned(model.folder) else 0
    return going


def _sizes() -> tuple[list[tuple[KeptModel, int]], int]:
    """The bytes of each model, the first to go first, and of all together."""
    sizes = [(model, folder_bytes(model.folder)) for model in _last_first(kept_models())]
    return sizes, sum(size for _, size in sizes)


def _last_first(models: list[KeptModel]) -> list[KeptModel]:
    return sorted(models, key=lambda model: (model.made_of.get("sdort") == __version__, model.used))


def _remove_leftovers() -> None:
    for pattern in (".model-*.sdort-new-*", ".model-*.lock", ".removed-model-*"):
        for leftover in glob.glob(str(models_folder() / pattern)):
            with suppress(OSError):
                remove_abandoned(Path(leftover))
