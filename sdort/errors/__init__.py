"""Errors, each with its exit code.

Every error that a user can cause is an :class:`SdortError`: what happened, in which component and node,
and what to do next. The command line prints it as one sentence and exits with the class's code.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from sdort.errors.plain_text import printable

_WORDS = {
    "SIGINT": "interrupted",
    "SIGTERM": "terminated",
    "SIGHUP": "the terminal has gone",
    "SIGBREAK": "interrupted",  # Windows' own, which has no SIGHUP
}
SIGNAL_WORDS = {signum: _WORDS[signum.name] for signum in signal.Signals if signum.name in _WORDS}
"""The signals that end a command, and what it then says; its exit code is 128 and the signal's number."""


def nearest_name(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name that is most like ``name``, None where none is.

    Args:
        likeness: the least ratio of equal letters, as :func:`difflib.get_close_matches` counts it.
    """
    from difflib import get_close_matches  # --help needs it not

    listed = list(known)
    # Of two lengths a and b no more than 2 min(a, b) / (a + b) are equal; a stranger's name may have megabytes.
    if len(name) > (2 / likeness - 1) * max(map(len, listed), default=0):
        return None
    return next(iter(get_close_matches(name, listed, 1, likeness)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``Did you mean 'vae_decoder'? ``, to begin a hint with; empty where no known name is like it."""
    nearest = nearest_name(name, known)
    return f"Did you mean {nearest!r}? " if nearest else ""


MOST_CHARACTERS = 8000
"""Upper bound of a message's length: names in a stranger's file may have megabytes."""


def _shortened(text: str) -> str:
    """A text of bounded length; the middle of a longer one is left out, and that is said."""
    left_out = len(text) - MOST_CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[: MOST_CHARACTERS // 2]} [{left_out:,} characters left out] {text[-MOST_CHARACTERS // 2 :]}"


class SdortError(Exception):
    """Base of all errors that sdort reports as a sentence.

    Args:
        message: what happened, in words.
        component: the pipeline component (``unet``, ``vae_decoder``, ...) it happened in.
        node: the ONNX node or tensor it happened at.
        hint: what the user can do next.

    ``record`` is what a command has to tell beside the error: ``--json`` prints both as one object.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        component: str | None = None,
        node: str | None = None,
        hint: str | None = None,
    ) -> None:
        message = _shortened(message)
        super().__init__(message)
        self.message = message
        self.component = component
        self.node = _shortened(node) if node else node
        self.hint = hint
        self.record: dict[str, object] = {}

    def __str__(self) -> str:
        where = ", ".join(
            f"{kind} {name!r}" for kind, name in (("component", self.component), ("node", self.node)) if name
        )
        text = f"{where}: {self.message}" if where else self.message
        return printable(f"{text}\n  {self.hint}" if self.hint else text)


class UsageError(SdortError):
    """The request itself is wrong: an option's value, a name that does not exist."""

    exit_code = 2


class BadModelError(SdortError):
    """A model, checkpoint or pipeline folder is broken, unsafe, or not what it claims to be."""

    exit_code = 3


class MissedFusionError(SdortError):
    """Something that should have fused did not, or an ``--expect`` count was not met."""

    exit_code = 4


class ParityError(SdortError):
    """An output differs from its reference by more than the stated tolerance, or is not finite."""

    exit_code = 5


class ProviderError(SdortError):
    """An execution provider is missing, does not load, or fell back where that was forbidden."""

    exit_code = 6


class MissingPackageError(SdortError, ImportError):
    """A package that this needs is not installed, or does not import: an ``ImportError`` too, as its import's is."""

    exit_code = 9


class MemoryShortageError(ProviderError):
    """The device has no memory left for what was asked; less at once may fit."""


class OutputError(SdortError):
    """The result cannot be written: OUT exists, no permission, disk full."""

    exit_code = 7


class RegressionError(SdortError):
    """Something takes longer than it did, by more than noise and the stated margin."""

    exit_code = 8


class CancelledError(SdortError):
    """A caller ended its call: :attr:`sdort.generation.requests.typed_options.GenerationOptions.cancel`."""

    exit_code = 130


OF_AN_IMAGE = (UsageError, ParityError, MemoryShortageError)
"""Errors that may be one image's own: others that were to be drawn with it can be drawn without it."""
