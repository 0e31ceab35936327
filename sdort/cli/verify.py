"""``sdort verify``: is a pipeline right, and if not, where does it go wrong."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdort.cli.from_options import given, options_of, sections
from sdort.cli.sections import SectionedCommand
from sdort.providers.runtime_options import ExecutionOptions
from sdort.verification.limits import PRECISIONS, REASONS
from sdort.verification.verify_options import ComparisonOptions, PageOptions, SemanticOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.verification.outcome import Verification
    from sdort.verification.verify_options import VerifyKeywords


def _limits(*widths: tuple[str, int]) -> str:
    """The limits of some precisions in columns of these widths."""
    heads = "".join(f"  {PRECISIONS[dtype]:>{width}}" for dtype, width in widths)
    rows = [
        f"  {reason.measure:23}" + "".join(f"  {reason.limits[dtype]:>{width}}" for dtype, width in widths)
        for reason in REASONS
    ]
    return "\n".join([f"{'Limits':25}{heads}", *rows])


_EPILOG = """\b
Examples:
  sdort verify fast
  sdort verify fast --against model --report verify.html
  sdort verify fast --component unet --bisect
  sdort verify fast --provider rocm --prompts prompts.txt --seeds 4 --steps 20
"""
_DETAILS = f"""\b
{_limits(("float32", 8), ("float16", 18), ("bfloat16", 18))}
{_limits(("int8", 18), ("int4", 18))}
The report gives the reason for each limit.
On a GPU, components may err three times as much.
"""


def _semantic(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--semantic`` and what goes with it, where the demo model and its judge are installed."""
    there = find_spec("sdort.demo") and find_spec("sdort.demo.score")
    return options_of(SemanticOptions)(command) if there else command


_OWN = sections(
    ComparisonOptions,
    SemanticOptions,
    ExecutionOptions,
    PageOptions,
    headings=("Comparison", "Images", "Execution", "Results"),
)
_SECTIONS = {"Signature": ("signature",), **_OWN, "Results": (*_OWN["Results"], "as_json")}


@click.command(
    cls=SectionedCommand,
    sections=_SECTIONS,
    common=(
        "against",
        "checkpoint",
        "components",
        "images",
        "prompts",
        "seeds",
        "steps",
        "provider",
        "bisect",
        "report",
    ),
    epilog=_EPILOG,
    details=_DETAILS,
)
@click.argument("candidate", type=click.Path(path_type=Path))
@options_of(ComparisonOptions, ExecutionOptions, PageOptions)
@_semantic
@click.option(
    "--signature",
    metavar="PUBLIC.pem",
    type=click.Path(path_type=Path),
    help="Check only that the holder of this public key, or of these certificates, signed CANDIDATE. Nothing runs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(candidate: Path, signature: Path | None, as_json: bool, **options: Unpack[VerifyKeywords]) -> None:
    """Compare a pipeline with what it was made from.

    sdort compares each component with the ONNX before optimizing and with torch in fp32, on random and on recorded
    inputs. Then it compares images of the whole pipeline. A graph for a GPU can be checked on any machine. The exit
    code is 5 if a result is outside its limits or could not be compared.
    """
    from sdort.console import emit_json
    from sdort.errors import ParityError

    if signature:
        _show_signature(candidate, signature, as_json=as_json)
        return
    from sdort.verification.command import verify

    result = verify(candidate, **given(options))
    if not as_json:
        _show(result)
        result.raise_if_failed()
        return
    emit_json(result)
    if not result.passed:
        # The record says what failed; the error as a second object would make stdout no JSON.
        raise click.exceptions.Exit(ParityError.exit_code)


def _show_signature(folder: Path, trusted: Path, *, as_json: bool) -> None:
    from sdort.console import conclude, emit_json
    from sdort.pipelines.folder_signature import verify_signature

    result = verify_signature(folder, trusted)
    if as_json:
        emit_json(result)
    else:
        conclude(f"{result.folder} is what the holder of {result.trusted} signed: {result.signature.name} holds")


def _show(result: Verification) -> None:
    from sdort.console import VERBOSE, conclude, show, verbosity
    from sdort.verification.report.text import compared_line, finding_lines, notes, tables

    show(compared_line(result))
    for table in tables(result):
        show(table)
    show("")
    for line in [*notes(result, every=verbosity() >= VERBOSE), *finding_lines(result)]:
        show(line)
    if result.passed:
        conclude(result.verdict, result.next_command)
