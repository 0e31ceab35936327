"""``sdort run``: text to image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from sdort.benchmark.bench_options import BenchOptions
from sdort.cli.from_options import options_of, sections
from sdort.cli.placement import show_placement
from sdort.cli.sections import SectionedCommand
from sdort.errors import SdortError
from sdort.generation.requests.typed_options import GENERATION
from sdort.providers.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from sdort.first_use.command import RunPlan
    from sdort.first_use.making_plan import MakingPlan
    from sdort.generation.requests.typed_options import RunOptions
    from sdort.generation.result import Generation

_OWN = sections(
    *GENERATION,
    headings=("Prompts and images", "Sampling", "From an image", "Variations", "Larger images", "Adapters",
              "Control images", "IP-Adapter", "Previews", "Safety checker", "Refiner"),
)  # fmt: skip
_SECTIONS = {
    **{heading: names for heading, names in _OWN.items() if heading not in ("Decoding", "Results")},
    **sections(RuntimeOptions),
    "Decoding": _OWN["Decoding"],
    "Results": (*_OWN["Results"], "dry_run", "placement", "as_json"),
}
_COMMON = (
    "prompt", "negative_prompt", "seed", "num_images", "size", "steps", "guidance_scale", "scheduler",
    "lora", "init_image", "strength", "mask", "hires", "upscale", "provider", "output", "overwrite",
)  # fmt: skip


@click.command(
    cls=SectionedCommand,
    sections=_SECTIONS,
    common=_COMMON,
    details="Each image stores its generation parameters. sdort repeats a stage in fp32 if it gives NaN or a constant. "
    "An image that still has NaN pixels, or only one colour, is an error and is not written.",
    epilog="""\b
Examples:
  sdort run dreamshaper.safetensors --prompt "a lighthouse at dusk"
  sdort run fast --prompt "a lighthouse at dusk" -o lighthouse.png
  sdort run fast --prompt "a cat" --seed 7 --num-images 4 --steps 25
  sdort run fast --prompt "a cat" --provider rocm --tuning --no-fallback
""",
)
@click.argument("pipeline", metavar="MODEL", type=click.Path(path_type=Path))
@options_of(*GENERATION, RuntimeOptions)
@options_of(BenchOptions, only=["placement"])
@click.option("--dry-run", is_flag=True, help="Draw nothing; say what would be drawn, and how long that takes.")
@click.option("--json", "as_json", is_flag=True, help="Print a record of the run as JSON.")
def command(
    pipeline: Path,
    prompt: tuple[str, ...],
    placement: bool,
    dry_run: bool,
    as_json: bool,
    **options: Unpack[RunOptions],
) -> None:
    """Generate images from text.

    MODEL is a checkpoint (.safetensors file, diffusers folder, hub id, demo), a name of sdort add, or a folder of ONNX
    models. sdort exports and optimizes a checkpoint once and keeps the result: the next run starts at once.
    """
    from sdort.machine.phases import counted, phase
    from sdort.machine.system import process_age

    before = process_age()
    with counted() as phases, phase("imports"):
        from sdort.runtime.probe import probe_ahead

        probe_ahead(
            **{name: options[name] for name in ("provider", "device_id", "device_kind", "devices", "ep_libraries")}
        )
        from sdort.console import emit_json, say
        from sdort.first_use.command import plan_run, run
        from sdort.generation.result import refuse_withheld

    source = click.get_current_context().get_parameter_source
    # An image says what the command line does not: defaults are the functions' own.
    options = {name: value for name, value in options.items() if source(name) is not ParameterSource.DEFAULT}  # type: ignore[assignment]
    if as_json and options.get("preview"):
        say("no previews beside --json")
        options["preview"], options["preview_vae"] = False, None
    if dry_run:
        _show_plan(plan_run(pipeline, prompt, **options), as_json)
        return
    with counted(phases):
        result = run(pipeline, prompt, placement=placement, **options)
    if as_json:
        emit_json(result)
        if any(image.withheld for image in result.images):
            # The record says which; the error as a second object would make stdout no JSON.
            raise click.exceptions.Exit(SdortError.exit_code)
        return
    if result.placement:
        show_placement(result.placement, result.placement_remarks)
    _show_end(result, phases.seconds, before)
    refuse_withheld(result)


def _show_end(result: Generation, counted: Mapping[str, float], before: float | None) -> None:
    """Print the last lines, and under ``-v`` where each second went.

    Args:
        counted: seconds of phases.
        before: seconds of the process until these were counted; None where the kernel does not tell.
    """
    from sdort.console import VERBOSE, conclude, is_quiet, show, verbosity
    from sdort.generation.run_summary import phase_table, run_seconds, summarize
    from sdort.machine.system import process_age

    age = process_age()
    if verbosity() >= VERBOSE and result.images and before is not None and age is not None:
        show(phase_table(run_seconds(result, counted, age, before)))
    if not is_quiet():
        conclude(summarize(result, age))


def _show_plan(plan: RunPlan, as_json: bool) -> None:
    """Print what a run would do."""
    from sdort.console import conclude, emit_json, show

    if as_json:
        emit_json(plan)
        return
    if plan.making:
        show(_making_text(plan.making, plan.provider))
    if not plan.files:
        conclude("Would draw nothing: all images are there.")
        return
    number = str(plan.files[0]) if len(plan.files) == 1 else f"{len(plan.files)} images, {plan.files[0]} and so on"
    size = f"{plan.width}x{plan.height}" if plan.width and plan.height else "the model's own size"
    steps = f", {plan.steps} steps" if plan.steps else ""
    conclude(f"Would write {number}: {size}{steps} on {plan.provider}. {_seconds_text(plan.seconds)}")


def _making_text(making: MakingPlan, provider: str) -> str:
    from sdort.tables import size_text

    if making.bytes is None or making.seconds is None:
        return f"{making.name} would be downloaded first, and made ready for {provider}."
    return (
        f"{making.name} would be made ready for {provider} first, once: about {size_text(making.bytes)} in the cache, "
        f"and about {max(10 * round(making.seconds / 10), 10)} s."
    )


def _seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "How long that takes is not known: nothing of this size was drawn with it on this machine yet."
    return f"That takes about {seconds:.3g} s, by the last such run on this machine."
