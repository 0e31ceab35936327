"""``sdort serve``: a server of images over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdort.cli.from_options import given, needs, options_of, sections
from sdort.cli.sections import SectionedCommand
from sdort.providers.runtime_options import RuntimeOptions
from sdort.serving.serve_options import ServeOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.serving.serve_options import ServeKeywords

_DECLARED = (ServeOptions, RuntimeOptions)


@click.command(
    cls=SectionedCommand,
    sections=sections(*_DECLARED),
    common=("sizes", "port", "host", "queue", "images_at_once", "provider", "ray"),
    epilog="""\b
Examples:
  sdort serve fast
  sdort serve fast --size 512x512,768x512 --port 8000
  sdort serve dream=dreamshaper.safetensors fast
  sdort serve fast --ray
""",
)
@click.argument("pipelines", metavar="[NAME=]MODEL...", nargs=-1, required=True)
@options_of(*_DECLARED)
@click.option("--json", "as_json", is_flag=True, help="Print JSON when it ends.")
@needs(ServeOptions)
def command(pipelines: tuple[str, ...], as_json: bool, **options: Unpack[ServeKeywords]) -> None:
    """Serve images over HTTP: a page, OpenAI's API and A1111's.

    MODEL is what sdort run takes. Requests of the same settings are drawn together.
    """
    from sdort.console import conclude, emit_json, is_quiet
    from sdort.machine.optional_packages import SERVING, need_packages

    need_packages(*SERVING, what="sdort serve")
    from sdort.serving.command import serve
    from sdort.tables import counted

    report = serve(pipelines, **given(options))
    if as_json:
        emit_json(report)
    elif not is_quiet():
        conclude(
            f"{counted(report.images, 'image')} of {counted(report.requests, 'request')}; refused: "
            f"{report.refused:,}, failed: {report.failed:,}, cancelled: {report.cancelled:,}"
        )
