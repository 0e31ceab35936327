"""``python -m sdort``: the same as the ``sdort`` command."""

from __future__ import annotations

from sdort.cli import main

if __name__ == "__main__":
    main()
