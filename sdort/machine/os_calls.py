"""Calls of the operating system that Linux and Windows have in different forms: one of two modules, alike in names.

Nothing else of sdort uses what one of the systems lacks; ``tests/project/test_windows.py`` compares that with the
standard library's type stubs.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from sdort.machine import windows_calls as os_calls
else:
    from sdort.machine import posix_calls as os_calls

__all__ = ["os_calls"]
