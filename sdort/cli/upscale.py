"""``sdort upscale``: images made larger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sdort.cli.number_types import Real, Whole
from sdort.cli.options import device_option, fallback_option, provider_option
from sdort.errors.number_ranges import QUALITY, UPSCALE_SCALE, UPSCALE_TILE

if TYPE_CHECKING:
    from sdort.generation.upscaled_files import Upscaled


@click.command(
    epilog="""\b
Examples:
  sdort upscale image.png --model 4x-UltraSharp.pth
  sdort upscale a.png b.jpg --model RealESRGAN_x4plus.pth -o large/
  sdort upscale image.png --model 4x-UltraSharp.pth --scale 2 -o image.webp
""",
)
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...", type=click.Path(path_type=Path))
@click.option(
    "-m",
    "--model",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The upscaler: a .pth, .safetensors or .onnx file. ESRGAN, Real-ESRGAN, BSRGAN, compact (SRVGG) and SPAN are "
    "read from their weights, all others as .onnx.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    show_default="NAME-4x.png",
    help="File to write (.png, .jpg or .webp), or a folder.",
)
@click.option(
    "--scale",
    type=Real(UPSCALE_SCALE),
    show_default="the upscaler's own",
    help="How many times as high and wide the result is. The upscaler runs again, or the result is resized, to reach "
    "it.",
)
@click.option(
    "--tile",
    type=Whole(UPSCALE_TILE),
    show_default="what fits into memory, at most 512",
    help="Most pixels of a tile's side. Smaller tiles take less memory and more time.",
)
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp16", "fp32"]),
    default="auto",
    help="auto is fp16 on a GPU. Where an upscaler gives NaN in fp16, it goes on in fp32.",
)
@provider_option
@fallback_option
@device_option
@click.option("--quality", type=Whole(QUALITY), show_default="95", help="Of JPEG and WebP; WebP of 100 keeps all.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    images: tuple[Path, ...],
    model: Path,
    output: Path | None,
    scale: float | None,
    tile: int | None,
    precision: Literal["auto", "fp16", "fp32"],
    provider: str,
    fallback: bool | None,
    device_id: int,
    quality: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make images larger with an upscaler (ESRGAN and its kin).

    The upscaler is made ready for the GPU on first use, and kept. Large images are done in tiles that overlap, so
    that memory stays small. Transparency is kept, and so are the parameters that a generated image has inside.
    """
    from sdort.console import conclude, emit_json, is_quiet
    from sdort.generation.upscaled_files import upscale

    result = upscale(
        images,
        model,
        output=output,
        scale=scale,
        tile=tile,
        precision=precision,
        provider=provider,
        fallback=fallback,
        device_id=device_id,
        quality=quality,
        overwrite=overwrite,
    )
    if as_json:
        emit_json(result)
    elif not is_quiet():
        conclude(_last_lines(result))


def _last_lines(result: Upscaled) -> str:
    """A line for each image, and one for the upscaler."""
    from sdort.generation.step_progress import three_digits
    from sdort.tables import size_text

    lines = [
        f"{image.path}: {image.width}x{image.height}, {image.tiles} tile{'s' * (image.tiles != 1)}, "
        f"{three_digits(image.seconds)} s"
        for image in result.images
    ]
    memory = f", peak memory {size_text(result.peak_memory)}" if result.peak_memory else ""
    used = f"{result.model} ({result.architecture}, {result.model_scale}x) in {result.precision} on {result.provider}"
    return "\n".join([*lines, f"{used}, load {three_digits(result.load_seconds)} s{memory}"])
