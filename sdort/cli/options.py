"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from sdort.cli.number_types import SizeList, Whole
from sdort.errors.number_ranges import DEVICE_ID
from sdort.pipelines.scheduler_names import CLASSES, SAMPLERS, leveled_names
from sdort.providers import AUTO, PROVIDER_NAMES, PROVIDERS

if TYPE_CHECKING:
    from sdort.inspection.profile import Placement


def complete_fusions(ctx: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Fusions whose names begin so, for the shell's completion."""
    from sdort.rewrite.fusion_names import fusion_names

    return [name for name in fusion_names() if name.startswith(incomplete)]


def complete_schedulers(ctx: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Schedulers whose names begin so, for the shell's completion: samplers first, then each with its noise levels."""
    found = [name for name in SAMPLERS if name.startswith(incomplete.lower())]
    if incomplete:
        found += [name for name in leveled_names() if name.startswith(incomplete.lower())]
        found += sorted(name for name in CLASSES if name.startswith(incomplete))
    return found


def complete_files(ctx: click.Context, option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, for the shell's completion of options that take a file and something behind it."""
    return [CompletionItem(incomplete, type="file")]


custom_ops_option = click.option(
    "--custom-ops",
    metavar="auto|on|off|PATH",
    default="auto",
    help="Library of sdort's own operators (sdort ops build). auto registers the library where it is built.",
)

check_option = click.option(
    "--no-check",
    "check",
    is_flag=True,
    flag_value=False,
    default=True,
    show_default=False,
    help="Accept files that are not as sdort.json records them: edited files, and damaged files.",
)

_SIGNING = (
    click.option(
        "--sign",
        metavar="KEY.pem",
        type=click.Path(path_type=Path),
        help="Sign OUT with this private key of an elliptic curve. The signature is OUT/model.sig, for sdort verify "
        "--signature and sigstore's model_signing.",
    ),
    click.option(
        "--certificate",
        metavar="CERT.pem",
        type=click.Path(path_type=Path),
        help="With --sign: the certificate of the key, followed by the certificates that lead to a root.",
    ),
)


def signing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of signing; the command gets ``sign`` and ``certificate``."""
    for option in reversed(_SIGNING):
        command = option(command)
    return command


sizes_option = click.option(
    "--size",
    "sizes",
    type=SizeList(),
    metavar="WxH,...",
    show_default="the model's own",
    help="Image sizes in pixels: the width first.",
)

placement_option = click.option(
    "--placement",
    is_flag=True,
    help="Show which operators run on which execution provider, and how long.",
)

_DECODING = (
    click.option(
        "--vae-tiling/--no-vae-tiling",
        default=None,
        show_default="when memory asks for it",
        help="Decode in overlapping tiles. A large image then needs the memory of a small one.",
    ),
    click.option(
        "--vae-slicing/--no-vae-slicing",
        default=None,
        show_default="when memory asks for it",
        help="Decode several images one by one.",
    ),
)


def needs(option: str, other: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A command one of whose options means nothing without another: refused before any library is imported."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def checked(**values: Any) -> Any:
            if values[option] and not values[other]:
                first, second = (f"--{name.replace('_', '-')}" for name in (option, other))
                raise click.UsageError(f"{first} needs {second}")
            return command(**values)

        return checked

    return decorate


def decoding_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of decoding; the command gets ``vae_tiling`` and ``vae_slicing``, None where nothing is said."""
    for option in reversed(_DECODING):
        command = option(command)
    return command


def show_placement(placements: Sequence[Placement], lines: Sequence[str]) -> None:
    """Print what :mod:`sdort.inspection.profile` found."""
    from sdort.console import show
    from sdort.inspection.profile import placement_table

    show(placement_table(placements))
    if lines:
        show("\n" + "\n".join(lines))


def _assignments(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE, such as arena_extend_strategy=kSameAsRequested")
        if options.setdefault(name, text) != text:
            raise click.BadParameter(f"{name} is given twice, as {options[name]} and as {text}")
    return options


_SEARCHED = ", ".join(f"{provider.searched} on {name}" for name, provider in PROVIDERS.items() if provider.tuning)
_WITH_GRAPHS = ", ".join(name for name, provider in PROVIDERS.items() if provider.graph)

provider_option = click.option(
    "--provider",
    type=click.Choice([AUTO, *PROVIDER_NAMES]),
    default=AUTO,
    help="Execution provider. auto takes the best one that really loads, and says which.",
)
fallback_option = click.option(
    "--fallback/--no-fallback",
    default=None,
    show_default="a named provider must load; single nodes may run on the CPU",
    help="--fallback: continue on the CPU if the named provider does not load. --no-fallback: run nothing but "
    "shape arithmetic on the CPU.",
)
device_option = click.option("--device-id", type=Whole(DEVICE_ID), default=0, help="Number of the GPU.")

_RUNTIME = (
    provider_option,
    click.option(
        "--tuning",
        is_flag=True,
        help=f"Search for the fastest kernels first: {_SEARCHED}.",
    ),
    click.option(
        "--graph", is_flag=True, help=f"Record the UNet's step as a HIP or CUDA graph and replay it ({_WITH_GRAPHS})."
    ),
    fallback_option,
    device_option,
    click.option(
        "--provider-option",
        "provider_options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_assignments,
        help="Option of the execution provider, by the name that ONNX Runtime gives it (repeatable).",
    ),
    click.option(
        "--no-split",
        "split",
        is_flag=True,
        flag_value=False,
        default=True,
        show_default=False,
        help="Compute everything in every step. By default, values that depend only on prompts and timesteps are "
        "computed once, before the steps.",
    ),
    custom_ops_option,
    check_option,
)


def runtime_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of where and how to run; the command gets a parameter for each."""
    for option in reversed(_RUNTIME):
        command = option(command)
    return command
