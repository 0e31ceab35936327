"""``sdort`` and ``python -m sdort``. From its first line on an interrupt ends in a sentence: imports come later."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

from sdort.errors import SIGNAL_WORDS


def _leave(signum: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # the terminal may have gone
        os.write(2, f"Error: {SIGNAL_WORDS[signal.Signals(signum)]}\n".encode())
    os._exit(128 + signum)  # at once: nothing is there to be cleaned up


def main() -> None:
    """Entry point of the ``sdort`` script and of ``python -m sdort``."""
    for signum in SIGNAL_WORDS:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # not where a shell or nohup made us deaf to it
            signal.signal(signum, _leave)
    from sdort.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
