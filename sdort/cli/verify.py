"""``sdort verify``: is a pipeline right, and if not, where does it go wrong."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from sdort.cli.from_options import options_of, sections
from sdort.cli.number_types import Size, Whole
from sdort.cli.sections import SectionedCommand
from sdort.errors.number_ranges import SEEDS, SEMANTIC_PROMPTS, STEPS
from sdort.providers.runtime_options import ExecutionOptions
from sdort.verification.limits import REASONS

if TYPE_CHECKING:
    from sdort.verification.outcome import Verification

_LIMITS = "\n".join(
    f"  {reason.measure:24} {reason.float32:>8}  {reason.float16:>18}  {reason.bfloat16:>18}" for reason in REASONS
)

_EPILOG = """\b
Examples:
  sdort verify fast
  sdort verify fast --against model --report verify.html
  sdort verify fast --component unet --bisect
  sdort verify fast --provider rocm --prompts prompts.txt --seeds 4 --steps 20
"""
_DETAILS = f"""\b
Limits                         fp32                fp16                bf16
{_LIMITS}
The report gives the reason for each limit.
On a GPU, components may err three times as much.
"""


def _semantic(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--semantic`` and what goes with it, where the demo model and its judge are installed."""
    if not (find_spec("sdort.demo") and find_spec("sdort.demo.score")):
        return command
    options = (
        click.option(
            "--semantic",
            is_flag=True,
            help="Judge also whether images show what the prompts of the demo model ask for. Where an image is wrong, "
            "the original generates it too.",
        ),
        click.option(
            "--semantic-prompts",
            type=Whole(SEMANTIC_PROMPTS),
            metavar="N",
            show_default="all 120",
            help="With --semantic: number of prompts.",
        ),
        click.option(
            "--semantic-original",
            is_flag=True,
            help="With --semantic: score the original on all prompts too. This takes as long again.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


_SECTIONS = {
    "Signature": ("signature",),
    "Comparison": ("against", "checkpoint", "torch", "components", "inputs"),
    "Images": ("images", "prompts", "seeds", "steps", "semantic", "semantic_prompts", "semantic_original"),
    **sections(ExecutionOptions),
    "Results": ("bisect", "report", "overwrite", "as_json"),
}


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
@click.option(
    "--against",
    metavar="ORIGINAL",
    type=click.Path(exists=True, path_type=Path),
    show_default="from the manifest",
    help="The original to compare with: an ONNX pipeline or file before optimizing, a diffusers folder, or a single "
    "file.",
)
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, path_type=Path),
    show_default="from the manifest",
    help="Checkpoint that torch runs in fp32: a diffusers folder or a single file.",
)
@click.option("--torch/--no-torch", default=True, help="Compare with torch, if the checkpoint is known.")
@click.option(
    "--component", "components", multiple=True, metavar="NAME", help="Compare only this component (repeatable)."
)
@click.option(
    "--inputs",
    type=click.Choice(["all", "random", "recorded"]),
    default="all",
    help="Inputs of components: random numbers, or values that are recorded while the original generates an image.",
)
@click.option(
    "--images/--no-images", default=None, show_default="unless --component", help="Compare images of the pipeline too."
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    show_default="two that the model can draw",
    help="File with one prompt a line, or .jsonl. Brackets are text, as in diffusers.",
)
@click.option(
    "--seeds", type=Whole(SEEDS), default=2, help="Number of images of each prompt. Their seeds are 0, 1, ..."
)
@click.option("--steps", type=Whole(STEPS), default=8, help="Denoising steps.")
@click.option(
    "--size",
    type=Size(),
    metavar="WxH",
    show_default="the model's own",
    help="Width and height of the images in pixels.",
)
@options_of(ExecutionOptions)
@click.option(
    "--bisect",
    is_flag=True,
    help="Find the first wrong node of a component that failed, and the cause. The search goes inside fused "
    "operators too.",
)
@_semantic
@click.option(
    "--report",
    metavar="FILE.html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an HTML page with images and difference maps.",
)
@click.option("--overwrite", is_flag=True, help="Replace the report if it exists.")
@click.option(
    "--signature",
    metavar="PUBLIC.pem",
    type=click.Path(path_type=Path),
    help="Check only that the holder of this public key, or of these certificates, signed CANDIDATE. Nothing runs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    candidate: Path,
    against: Path | None,
    checkpoint: Path | None,
    torch: bool,
    components: tuple[str, ...],
    inputs: Literal["all", "random", "recorded"],
    images: bool | None,
    prompts: Path | None,
    seeds: int,
    steps: int,
    size: str | None,
    provider: str,
    tuning: bool,
    graph: bool,
    fallback: bool | None,
    device_id: int,
    provider_options: dict[str, str],
    split: bool,
    custom_ops: str,
    check: bool,
    bisect: bool,
    signature: Path | None,
    report: Path | None,
    overwrite: bool,
    as_json: bool,
    semantic: bool = False,
    semantic_prompts: int | None = None,
    semantic_original: bool = False,
) -> None:
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

    result = verify(
        candidate,
        against=against,
        checkpoint=checkpoint,
        torch=torch,
        components=components,
        inputs=inputs,
        images=images,
        prompts=prompts,
        seeds=seeds,
        steps=steps,
        size=size,
        provider=provider,
        tuning=tuning,
        graph=graph,
        fallback=fallback,
        device_id=device_id,
        provider_options=provider_options,
        split=split,
        custom_ops=custom_ops,
        check=check,
        bisect=bisect,
        semantic=semantic,
        semantic_prompts=semantic_prompts,
        semantic_original=semantic_original,
        report=report,
        overwrite=overwrite,
    )
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
