"""The ``sdort`` command: a group that imports one module per command, when that command is asked for.

A command's module imports only click at the top, so that ``sdort --help`` stays fast; the library behind it is
imported in the command's body. Each module exposes its click command as ``command``.
"""

from __future__ import annotations

import importlib

import click

from sdort.cli import interruption, streams
from sdort.cli.reporting import reporting
from sdort.errors import SdortError
from sdort.machine.version import __version__

COMMANDS = {
    "export": "Export a Stable Diffusion pipeline to ONNX.",
    "optimize": "Fuse the operators of a model for an execution provider.",
    "run": "Generate images from text.",
    "batch": "Draw a file of prompts; the same command goes on after a kill.",
    "serve": "Serve images over HTTP: a page, OpenAI's API and A1111's.",
    "upscale": "Make images larger with an upscaler (ESRGAN and its kin).",
    "verify": "Compare a pipeline with what it was made from.",
    "bench": "Measure a pipeline: each component, and whole images.",
    "inspect": "Show the operators, inputs, outputs and weights of a model.",
    "fusions": "List and describe what sdort optimize fuses.",
    "warm": "Compile and tune a pipeline ahead of time.",
    "add": "Give a model a name, for run, bench, verify, warm and inspect.",
    "list": "Show the models that have names.",
    "remove": "Take a name away from a model.",
    "integrate": "Install sdort's nodes in the program that you use.",
    "tuning": "List, check, export and import the results of tuning.",
    "cache": "Show and remove what sdort keeps between runs.",
    "ops": "Build, list and tune sdort's operators for CPU and GPU.",
    "doctor": "Examine this machine: ONNX Runtime, GPUs, drivers, caches.",
}
"""The commands in the order of ``sdort --help``, each with the first sentence of its own help."""

_VERBOSE_HELP = "Say more; show tracebacks."
_QUIET_HELP = "Say only what went wrong."
_WANTS_JSON = "sdort.wants_json"

_EPILOG = """\b
Examples:
  sdort run dreamshaper.safetensors --prompt "a lighthouse at dusk"
  sdort export demo model       a tiny pipeline that draws coloured shapes
  sdort optimize model fast --fp16 --provider rocm
  sdort run fast --prompt "a red star on navy" -o image.png
  sdort bench fast --baseline model

\b
Exit codes:
  0 done           5 wrong outputs      129 terminal gone
  1 other error    6 missing provider   130 interrupted
  2 usage error    7 not writable       141 reader gone (| head)
  3 bad model      8 slower (--compare) 143 terminated
  4 missed fusion  9 missing package

\b
Shell completion (bash; also zsh and fish):
  eval "$(_SDORT_COMPLETE=bash_source sdort)"
"""


class CommandGroup(click.Group):
    """Finds commands by name in :data:`COMMANDS` and reports their errors as sentences."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]  # the module of sdort list is called list here

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            command: click.Command = importlib.import_module(f"sdort.cli.{cmd_name}").command
            for subcommand in (command, *getattr(command, "commands", {}).values()):
                subcommand.params.extend(_verbosity_options())
            self.add_command(command, cmd_name)
        return self.commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the commands are without their modules, whose options are half of the time of ``sdort --help``."""
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Read from the raw arguments: a usage error is raised before any option has a value.
        ctx.meta[_WANTS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        with reporting(as_json=ctx.meta[_WANTS_JSON]), interruption.unwinding():
            return super().invoke(ctx)


def _set_verbosity(ctx: click.Context, option: click.Parameter, is_set: bool) -> None:
    if is_set:
        from sdort import console

        console.set_verbosity(console.VERBOSE if option.name == "verbose" else console.QUIET)


def _verbosity_options() -> list[click.Option]:
    """``-v`` and ``-q`` for every command, because people type them last: ``sdort optimize IN OUT -v``."""
    return [
        click.Option([*names], is_flag=True, expose_value=False, callback=_set_verbosity, help=text)
        for names, text in ((("-v", "--verbose"), _VERBOSE_HELP), (("-q", "--quiet"), _QUIET_HELP))
    ]


@click.group(
    cls=CommandGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.option("-v", "--verbose", is_flag=True, help=_VERBOSE_HELP)
@click.option("-q", "--quiet", is_flag=True, help=_QUIET_HELP)
@click.version_option(__version__, "-V", "--version", prog_name="sdort", message="%(prog)s %(version)s")
def cli(verbose: bool, quiet: bool) -> None:
    """Stable Diffusion on ONNX Runtime: export, fuse, convert to FP16, run, serve."""
    from sdort import console

    console.set_verbosity(int(verbose) - int(quiet))


def main() -> None:
    """Run the command line of this process, with its signals and streams."""
    streams.install()
    interruption.install()
    code: object = 0
    try:
        cli.main(prog_name="sdort")
    except SdortError as error:  # stdout's, of --help and --version: no command has begun
        from sdort.console import print_error

        print_error(str(error))
        code = error.exit_code
    except SystemExit as ended:
        code = ended.code
    interruption.exit_with(code if isinstance(code, int) else int(code is not None))
