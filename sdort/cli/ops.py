"""``sdort ops``: the custom operator library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.cli.from_options import options_of
from sdort.cli.number_types import Whole
from sdort.options.number_ranges import DEVICE_ID
from sdort.providers import AUTO, CPU, PROVIDERS
from sdort.workload.size_options import SizeOptions

if TYPE_CHECKING:
    from sdort.operator_library.build import Build
    from sdort.operator_library.library import Description
    from sdort.operator_library.tuning_table import Entry
    from sdort.tables import Table

_WITH_KERNELS = [
    name for name, provider in PROVIDERS.items() if provider.on_gpu and provider.custom_kernels != CPU.custom_kernels
]


@click.group(
    epilog="""\b
Examples:
  sdort ops build                     all that a compiler is found for
  sdort ops build --arch gfx1100 --no-cuda
  sdort ops list
  sdort ops tune fast --provider rocm --size 512x512,768x768 --batch-size 1,4
"""
)
def command() -> None:
    """Build, list and tune sdort's operators for CPU and GPU.

    One library has the kernels for the CPU, AMD GPUs and NVIDIA GPUs. When it is built, run, bench, warm and verify
    register it. A graph for rocm or cuda then runs on the CPU too.
    """


@command.command()
@click.option("--arch", "architectures", multiple=True, metavar="GFX", help="AMD architecture (repeatable).")
@click.option(
    "--hip/--no-hip", default=None, show_default="where a compiler is found", help="Build kernels for AMD GPUs."
)
@click.option(
    "--cuda/--no-cuda", default=None, show_default="where nvcc is found", help="Build kernels for NVIDIA GPUs."
)
@click.option(
    "--compiler", metavar="CLANG", show_default="found", help="Compiler for AMD GPUs: clang++ 19 or later, or ROCm's."
)
@click.option("--ort-include", metavar="FOLDER", show_default="found", help="Folder that has onnxruntime_c_api.h.")
@click.option("--force", is_flag=True, help="Build again what is built already.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def build(
    architectures: tuple[str, ...],
    hip: bool | None,
    cuda: bool | None,
    compiler: str | None,
    ort_include: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Compile the library into the cache.

    The build needs cmake and a C++ compiler. For AMD GPUs it also needs clang++ 19 or later with lld (apt-get install
    clang-19 lld-19), or ROCm. For NVIDIA GPUs it also needs nvcc. Headers of ONNX Runtime that are not on this machine
    are downloaded by apt-get (10 MB), which is told before.
    """
    from sdort.console import emit_json, say
    from sdort.operator_library.command import build_ops

    done = build_ops(
        architectures=architectures, hip=hip, cuda=cuda, compiler=compiler, ort_include=ort_include, force=force
    )
    made = done.build
    if as_json:
        emit_json(done)
        return
    say(f"built in {made.seconds:.0f} s: {made.path}" if done.new else f"up to date: {made.path}")
    say(_account(made))
    say("Next:\n    sdort ops list")


def _account(made: Build) -> str:
    text = f"  CPU, and machine code for {', '.join(made.code) or 'no GPU'}"
    if made.left_out:
        text += f"\n  left out, as no compiler here knows it: {', '.join(made.left_out)}"
    return f"{text}\n  ONNX Runtime headers: {made.headers}"


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """Show the operators and architectures of the library in the cache."""
    from sdort.console import conclude, emit_json, say, show
    from sdort.operator_library.command import list_ops
    from sdort.tables import size_text

    library = list_ops()
    if as_json:
        emit_json(library)
        return
    made = library.build
    show(_operators(library.library))
    say(f"\n{made.path}, built {made.date}; the cache holds {size_text(library.cache_bytes)}")
    say(_account(made))
    code = ", ".join(made.code)
    conclude(f"{len(library.library.operators)} operators for the CPU" + (f" and {code}." if code else ", no GPU."))


def _operators(library: Description) -> Table:
    from sdort.tables import Table

    table = Table("Operators, for float32 and float16", ("domain", "operator", "CPU", "ROCm", "CUDA"))
    for operator in library.operators:
        cuda = "yes" if operator.by_default_on_cuda else "if SDORT_OPS names it" if operator.gpu else "no"
        kernels = ["yes" if there else "no" for there in (operator.cpu, operator.gpu)]
        table.add_row(operator.domain or "ai.onnx", operator.name, *kernels, cuda)
    return table


@command.command()
@click.argument("pipeline", required=False, type=click.Path(path_type=Path))
@click.option(
    "--provider",
    type=click.Choice([AUTO, *_WITH_KERNELS]),
    default="auto",
    help="Execution provider.",
)
@options_of(SizeOptions)
@click.option("--device-id", type=Whole(DEVICE_ID), default=0, help="Which GPU.")
@click.option("--show", "show_only", is_flag=True, help="Show only what was tuned before.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tune(
    pipeline: Path | None,
    provider: str,
    sizes: tuple[tuple[int, int], ...] | None,
    batch_sizes: tuple[int, ...],
    device_id: int,
    show_only: bool,
    as_json: bool,
) -> None:
    """Find the fastest variants of the kernels on this GPU.

    sdort measures the shapes of PIPELINE and skips what it measured before: an interrupted command continues where it
    stopped. Later runs use the table automatically.
    """
    from sdort.console import conclude, emit_json, show
    from sdort.operator_library.command import tuned_ops
    from sdort.tables import counted
    from sdort.warmup.tune_ops import tune_ops

    if show_only:
        tuned = tuned_ops()
    elif pipeline is None:
        raise click.UsageError("give a PIPELINE, or --show")
    else:
        tuned = tune_ops(pipeline, provider=provider, sizes=sizes or (), batch_sizes=batch_sizes, device_id=device_id)
    if as_json:
        emit_json(tuned)
        return
    if tuned.entries:
        show(_entries(tuned.entries))
    count = counted(len(tuned.entries), "kernel")
    conclude(f"{count} {'tuned before' if show_only else 'tuned now'}, kept in {tuned.table}")


def _entries(entries: list[Entry]) -> Table:
    from sdort.tables import Table

    table = Table("Fastest variants", ("architecture", "kernel and shape", "variant", ">microseconds"))
    for entry in entries:
        table.add_row(entry.architecture, entry.key, entry.variant, f"{entry.microseconds:.1f}")
    return table
