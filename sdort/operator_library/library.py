"""Paths and contents of the custom operator library.

It is code that runs in this process: before it is loaded, :func:`checked_library` sees that no other account could
have written it, and that it is what was built. What was checked is what is loaded: the file is opened once, hashed and
loaded through its descriptor, whatever is given its name meanwhile.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sdort.console import warn_once
from sdort.errors import BadModelError, ProviderError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.files.checkout import import_part
from sdort.files.input_file import open_input, read_input
from sdort.files.ownership import why_foreign
from sdort.files.user_folders import cache_folder
from sdort.machine.os_calls import os_calls
from sdort.machine.process_settings import variables

LIBRARY_FILE, RECORD = os_calls.LIBRARY_NAME.format("sdort_ops"), "build.json"
MAX_TABLE = 64 << 20
"""Bytes of the tuning table, whose lines have some hundred."""
MAX_LIBRARY = 8 << 30
"""Upper bound in bytes of a library; with kernels for all GPUs it has some hundred million."""

AUTO, ON, OFF = "auto", "on", "off"
_BUILD = "sdort ops build"
MAX_RECORD = 1 << 20
"""Bytes of the record of a build, which takes some hundred."""
_NAMES = "SDORT_OPS"
"""The variable that tells the library what to register (``custom_ops/runtime/register.cpp``)."""


@dataclass(frozen=True)
class LibraryOperator:
    """An operator of the library; ``cpu`` and ``gpu`` tell where it has kernels, for float32 and float16."""

    domain: str
    """The operator's domain; empty for ONNX's own."""
    name: str
    """The operator."""
    cpu: bool
    """Whether there is a kernel for the CPU."""
    gpu: bool
    """Whether there are kernels for GPUs."""
    by_default_on_cuda: bool
    """False where ONNX Runtime's own kernel is faster on NVIDIA GPUs: registered there if SDORT_OPS names it."""


@dataclass(frozen=True)
class CodeObject:
    """Machine code for one GPU architecture."""

    vendor: str
    """``amd`` or ``nvidia``."""
    architecture: str
    """``gfx1100`` or ``sm_90``."""
    bytes: int
    """Size of the machine code."""


@dataclass(frozen=True)
class Description:
    """Contents of a library."""

    operators: tuple[LibraryOperator, ...]
    """The operators."""
    code_objects: tuple[CodeObject, ...]
    """Machine code, one an architecture."""


@cache
def source_folder() -> Path:
    """The CMake project: a folder of the installed package."""
    file = import_part("custom_ops").__file__
    assert file is not None
    return Path(file).resolve().parent


@cache
def source_digest() -> str:
    """A hash of everything that the build reads: a library of another digest is another sdort's."""
    digest = hashlib.sha256()
    folder = source_folder()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in {".py", ".pyc"}):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def libraries_folder() -> Path:
    """``$XDG_CACHE_HOME/sdort/ops``, by default below ``~/.cache``: a folder for each state of the sources."""
    return cache_folder() / "ops"


def built_library() -> Path:
    """Path of the library of these sources, once it is built."""
    return libraries_folder() / source_digest() / LIBRARY_FILE


def tuning_table() -> Path:
    """Path of the table that ``sdort ops tune`` writes and every later run reads."""
    return libraries_folder() / "tuning.tsv"


def use_tuning_table() -> None:
    """Have the library choose variants as they were tuned on this machine; it reads that when a kernel first runs.

    A table that cannot be read costs a warning and speed, not the run.
    """
    if not os.path.isfile(tuning_table()) or "SDORT_OPS_TUNING" in os.environ:
        return
    try:
        with open_input(tuning_table(), "the tuning table", limit=MAX_TABLE):
            os.environ["SDORT_OPS_TUNING"] = str(tuning_table())
    except BadModelError as error:
        warn_once(f"{error.message}; kernels run as if they had not been tuned")


def resolve(setting: str) -> Path | None:
    """The library that ``--custom-ops`` asks for; None if none is to be registered.

    Args:
        setting: ``auto`` (if it is built), ``on``, ``off`` or a path.

    Raises:
        ProviderError: ``on``, and it is not built; or it is not what was built.
        UsageError: there is no file at the path, or it is not such a library, or another account could have written it.
    """
    if setting == OFF:
        return None
    if setting in (AUTO, ON):
        path = built_library()
        if os.path.isfile(path):
            check_library(path)
            return path
        if setting == AUTO:
            return None
        raise ProviderError("the custom operators are not built here", hint=f"Build them: {_BUILD}")
    path = Path(os.path.realpath(setting))
    if not path.is_file():
        raise UsageError(f"--custom-ops {setting}: there is no such file", hint="Give auto, on, off or a library.")
    check_library(Path(setting))  # with the links on its way
    describe_library(path)
    return path


VENDORS = {"rocm": "amd", "cuda": "nvidia"}
"""Providers that the library has GPU kernels for, and whose GPUs those are."""


def why_no_kernels(provider: str) -> str | None:
    """Why there are no kernels of sdort's for a provider of :data:`VENDORS` on this machine; None if there are."""
    try:
        path = resolve(AUTO)
        if path is None:
            return f"the library is not built here ({_BUILD} builds it)"
        vendors = {code.vendor for code in describe_library(path).code_objects}
    except (ProviderError, UsageError) as error:
        return error.message
    return None if VENDORS[provider] in vendors else f"the library here has no kernels for {VENDORS[provider]} GPUs"


@dataclass(frozen=True)
class CheckedLibrary:
    """A library's file that is open as long as the process lives: the linker knows it by the descriptor's name."""

    path: Path
    descriptor: int
    digest: str
    """SHA-256 in hexadecimal."""

    @property
    def place(self) -> str:
        """The name under which it is loaded."""
        place = f"/proc/self/fd/{self.descriptor}"
        return place if os.path.exists(place) else str(self.path)

    def reason(self, error: BaseException) -> str:
        """Why it cannot be loaded, in the linker's words."""
        return library_reason(Exception(str(error).replace(self.place, str(self.path))))


def check_library(path: Path) -> str:
    """The SHA-256 of a library that may be loaded.

    Raises:
        UsageError, ProviderError: as :func:`checked_library`.
    """
    return checked_library(path).digest


def checked_library(path: Path) -> CheckedLibrary:
    """A library that may be loaded, by its :attr:`CheckedLibrary.place`.

    Raises:
        UsageError: it cannot be read, or another account could have written it.
        ProviderError: it is not what was built: it was changed, damaged, or put there.
    """
    try:
        foreign = why_foreign(path)
        library = _opened(path)
        status = os.fstat(library.descriptor)
        if not foreign and (os_calls.why_foreign(status, path) or os_calls.can_others_write(status)):
            foreign = "it was exchanged for a file that other accounts can write"
    except (OSError, BadModelError) as error:
        raise UsageError(f"{path} is not loaded: {error}", hint=f"Build one: {_BUILD}") from error
    if foreign:
        raise UsageError(
            f"{path} is not loaded, as {foreign}: its code would run as you",
            hint=f"Build one: {_BUILD}, or copy it:\n"
            f"    install -m 755 {shlex.quote(str(path))} FOLDER\nwhere FOLDER and those above it are yours alone.",
        )
    built = _built_hashes(path.with_name(RECORD))
    if library.digest not in built and (built or path == built_library()):
        what = "changed or damaged since it was built" if built else "put there without a record of its build"
        raise ProviderError(f"{path} is not loaded: it was {what}", hint=f"Build it again: {_BUILD} --force")
    return library


def _built_hashes(record: Path) -> set[str]:
    """SHA-256 of the library that a record describes, and of the one before: either is there during a build's end."""
    try:
        stored = json.loads(read_input(record, limit=MAX_RECORD))
    except (BadModelError, ValueError, RecursionError):
        return set()
    hashes = (stored.get("sha256"), stored.get("previous")) if isinstance(stored, dict) else ()
    return {text for text in hashes if isinstance(text, str) and text}


_Identity = tuple[int, ...]
_OPEN: dict[_Identity, CheckedLibrary] = {}
"""Libraries that were opened. Their descriptors stay: another file of the same number would have the same name."""


def _identity(descriptor: int) -> _Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _opened(path: Path) -> CheckedLibrary:
    """The library that a path leads to now, hashed once while it stays as it is."""
    with open_input(path, limit=MAX_LIBRARY) as file:
        identity = _identity(file.fileno())
        if identity in _OPEN:
            return replace(_OPEN[identity], path=path)
        digest = hashlib.sha256()
        while part := file.read(1 << 20):
            digest.update(part)
        if _identity(file.fileno()) != identity:
            raise BadModelError("it changes while it is read")
        return _OPEN.setdefault(identity, CheckedLibrary(path, os.dup(file.fileno()), digest.hexdigest()))


def describe_library(path: Path) -> Description:
    """Contents of a library, by its own account.

    Raises:
        UsageError: it cannot be loaded, is something else, or another account could have written it.
        ProviderError: it is not what was built.
    """
    return _describe(checked_library(path))


@cache
def _describe(library: CheckedLibrary) -> Description:
    try:
        # The dynamic linker waits for what a file of the kernel's has to say.
        if os_calls.read_at(library.descriptor, len(os_calls.LIBRARY_BEGIN), 0) != os_calls.LIBRARY_BEGIN:
            raise OSError("it does not begin as shared libraries do")
        function = ctypes.CDLL(library.place).sdort_ops_describe
    except (OSError, AttributeError) as error:
        raise UsageError(
            f"{library.path} is not a library of sdort's operators: {library.reason(error)}",
            hint=f"Build one: {_BUILD}",
        ) from error
    function.restype = ctypes.c_char_p
    contents: dict[str, list[dict[str, Any]]] = json.loads(function())
    return Description(
        tuple(LibraryOperator(**operator) for operator in contents["operators"]),
        tuple(CodeObject(**code) for code in contents["code_objects"]),
    )


def library_hash(path: Path) -> str:
    """The first 16 digits of the file's SHA-256."""
    return _opened(path).digest[:16]


def register(session_options: Any, path: Path, provider: str, left_out: Collection[str] = ()) -> None:
    """Let a session of ONNX Runtime on ``provider`` use the library, with what was tuned on this machine.

    Args:
        left_out: operators that are not registered (:func:`sdort.operator_library.opening.unserved`), even if
        ``SDORT_OPS`` names
            them.

    Raises:
        ProviderError: ONNX Runtime cannot load the library, or it is not what was built.
        UsageError: another account could have written it.
    """
    library = checked_library(path)
    os.environ["SDORT_OPS_PROVIDER"] = provider if provider in ("rocm", "cuda") else "cpu"
    use_tuning_table()
    if provider not in ("rocm", "cuda"):
        # On the CPU ONNX Runtime makes a NhwcFusedConv, which has no kernel, of a NhwcConv and an activation behind it.
        session_options.add_session_config_entry("optimization.disable_specified_optimizers", "ConvActivationFusion")
    with _narrowed(path, provider, left_out):
        try:
            session_options.register_custom_ops_library(library.place)
        except Exception as error:  # ONNX Runtime's classes share no base but Exception
            raise ProviderError(
                f"ONNX Runtime cannot load {path}: {library.reason(error)}", hint=f"Build it again: {_BUILD} --force"
            ) from error


@contextmanager
def _narrowed(path: Path, provider: str, left_out: Collection[str]) -> Iterator[None]:
    """The environment in which the library registers all that it otherwise would but ``left_out``."""
    asked = os.environ.get(_NAMES)
    if not left_out:
        yield
        return
    named = None if asked in (None, "all") else str(asked).split(",")
    usual = [op.name for op in describe_library(path).operators if provider != "cuda" or op.by_default_on_cuda or asked]
    with variables({_NAMES: ",".join({*(usual if named is None else named)} - {*left_out}) or "none"}):
        yield
