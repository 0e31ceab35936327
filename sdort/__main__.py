"""``sdort`` and ``python -m sdort``. From its first line on an interrupt ends in a sentence: imports come later."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

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
    try:
        from sdort.cli import main as run_command
    except ModuleNotFoundError as error:
        _leave_for_want(error)
    run_command()


def _leave_for_want(error: ModuleNotFoundError) -> NoReturn:
    """End where not even the command line can be read: a source tree on ``PYTHONPATH``, without what it needs."""
    from sdort.machine.optional_packages import of_failed_import

    found = of_failed_import(error)
    if found is None:
        raise error
    with suppress(OSError):
        os.write(2, f"Error: {found}\n".encode())
    sys.exit(found.exit_code)


if __name__ == "__main__":
    main()
