"""``sdort batch``: the images of a file of prompts, each in a journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from click.core import ParameterSource

from sdort.batches.batch_options import OPTIONS, BatchOptions
from sdort.cli.from_options import given, needs, options_of, sections
from sdort.cli.sections import SectionedCommand
from sdort.generation.requests.typed_options import DrawnOptions
from sdort.providers.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.batches.batch_options import BatchKeywords
    from sdort.batches.command import BatchReport

_DECLARED = (DrawnOptions, BatchOptions, RuntimeOptions)


@click.command(
    cls=SectionedCommand,
    sections=sections(*_DECLARED, only=OPTIONS),
    common=("prompts", "out", "negative_prompt", "seed", "num_images", "size", "steps", "guidance_scale", "scheduler",
            "lora", "provider", "image_format", "ray"),
    details="OUT/images.jsonl has a line for each image: id, line, index, seed, file, bytes, sha256, seconds, model. "
    "OUT/set_aside.jsonl has the lines that sdort drew nothing of, each with the reason.",
    epilog="""\b
Examples:
  sdort batch fast --prompts prompts.txt --out drawn
  sdort batch fast --prompts catalogue.csv --out drawn --size 512x768
  sdort batch model.safetensors --prompts lines.jsonl --out drawn
  sdort batch fast --prompts catalogue.csv --out drawn --ray
""",
)  # fmt: skip
@click.argument("pipeline", metavar="MODEL", type=click.Path(path_type=Path))
@click.option(
    "--prompts",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File of prompts: a prompt a line, or the options of each line by name: .jsonl, .csv, .parquet.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the images.",
)
@options_of(*_DECLARED, only=OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@needs(BatchOptions)
def command(pipeline: Path, prompts: Path, out: Path, as_json: bool, **options: Unpack[BatchKeywords]) -> None:
    """Draw a file of prompts; the same command goes on after a kill.

    MODEL is what sdort run takes. Lines of the same settings are drawn together, each with its own seeds.
    """
    from sdort.batches.command import batch
    from sdort.console import conclude, emit_json, is_quiet
    from sdort.errors import SdortError

    source = click.get_current_context().get_parameter_source
    # What the command line does not say is left to the lines and the pipeline.
    said = {name: value for name, value in given(options).items() if source(name) is not ParameterSource.DEFAULT}
    report = batch(pipeline, prompts, out, **cast("BatchKeywords", said))
    if as_json:
        emit_json(report)
    elif not is_quiet():
        conclude(_last_lines(report))
    if report.set_aside and as_json:
        raise click.exceptions.Exit(SdortError.exit_code)
    if report.set_aside:
        raise SdortError(
            f"nothing was drawn of {report.set_aside:,} line{'s' * (report.set_aside != 1)} of {prompts}",
            hint=f"{out / 'set_aside.jsonl'} says why. Correct them, and run the same command again.",
        )


def _last_lines(report: BatchReport) -> str:
    from sdort.generation.denoising.step_progress import three_digits

    before = f", beside {report.done_before:,} of an earlier run" if report.done_before else ""
    speed = f", {three_digits(report.images_per_second)} images/s" if report.images_per_second else ""
    withheld = f"; the safety checker withheld {report.withheld:,}" if report.withheld else ""
    on = f" on {report.provider}" if report.provider else ""
    drawn = f"{report.images:,} image{'s' * (report.images != 1)}"
    archive = f"\nall images: {', '.join(map(str, report.archive))}" if report.archive else ""
    return f"{drawn} in {report.out}{before}{withheld}\n{report.model}{on}{speed}{archive}"
