"""``sdort`` and ``python -m sdort``. From its first line on an interrupt ends in a sentence: imports come later."""

from __future__ import annotations

import os
import signal
from types import FrameType


def _leave(signum: int, frame: FrameType | None) -> None:
    os.write(2, b"Error: interrupted\n")
    os._exit(128 + signum)  # at once: nothing is there to be cleaned up


def main() -> None:
    """Entry point of the ``sdort`` script and of ``python -m sdort``."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell made us deaf to it
        signal.signal(signal.SIGINT, _leave)
    from sdort.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
