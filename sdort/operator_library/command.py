"""The library of custom operators: :func:`sdort.build_ops` and its kin, which ``sdort ops`` calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.console import document
from sdort.errors import ProviderError
from sdort.operator_library.build import Build, BuildOptions, build, cache_bytes, last_build
from sdort.operator_library.library import Description, describe_library, library_hash, tuning_table
from sdort.operator_library.tuning_table import Entry, read_table
from sdort.options.option_types import typed


@document("ops-build", 1)
@dataclass(frozen=True)
class OpsBuild:
    """A build of the library; ``new`` is False where it was up to date."""

    build: Build
    """The library."""
    new: bool
    """Whether it was compiled now; False where it was up to date."""


@document("ops-list", 1)
@dataclass(frozen=True)
class OpsLibrary:
    """The library in the cache."""

    build: Build
    """The library in the cache."""
    sha256: str
    """The first digits of its hash."""
    cache_bytes: int
    """The size of all builds in the cache."""
    library: Description
    """The library's description of itself."""


@document("ops-tune", 1)
@dataclass(frozen=True)
class OpsTuning:
    """The table of the fastest variants of kernels, and lines of it."""

    table: Path
    """The file."""
    entries: list[Entry]
    """Its lines."""


@typed
def build_ops(
    *,
    architectures: Sequence[str] = (),
    hip: bool | None = None,
    cuda: bool | None = None,
    compiler: str | None = None,
    ort_include: str | None = None,
    force: bool = False,
) -> OpsBuild:
    """Compile the library into the cache.

    Needs cmake and a C++ compiler; for AMD GPUs clang++ 19 or later with lld or ROCm, for NVIDIA GPUs nvcc.

    Args:
        architectures: AMD architectures such as ``gfx1100``; by default all that the compiler knows.
        hip: kernels for AMD GPUs; by default where a compiler is found.
        cuda: kernels for NVIDIA GPUs; by default where nvcc is found.
        compiler: clang++ for AMD GPUs; by default looked for.
        ort_include: the folder of onnxruntime_c_api.h; by default looked for.
        force: build again what is built.

    Raises:
        UsageError: an unknown architecture.
        ProviderError: a compiler is missing or fails.
        OutputError: the cache cannot be written.

    Example:
        >>> sdort.build_ops(hip=False, cuda=False).build.path
    """
    made, new = build(BuildOptions(tuple(architectures), hip, cuda, compiler, ort_include), force=force)
    return OpsBuild(made, new)


def list_ops() -> OpsLibrary:
    """List the operators and architectures of the library in the cache.

    Raises:
        ProviderError: it is not built.
    """
    made = last_build()
    if made is None:
        raise ProviderError("the custom operators are not built here", hint="Build them:\n    sdort ops build")
    return OpsLibrary(made, library_hash(made.path), cache_bytes(), describe_library(made.path))


def tuned_ops() -> OpsTuning:
    """Read what :func:`sdort.tune_ops` measured before."""
    return OpsTuning(tuning_table(), read_table())
