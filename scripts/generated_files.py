"""Files of this repository that scripts generate: written, or checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from measuring import Arguments

REPOSITORY = Path(__file__).resolve().parent.parent


def parse_check(description: str | None) -> bool:
    """Read the command line of a script: whether ``--check`` is given, to write nothing."""
    parser = Arguments(description)
    parser.add_argument("--check", action="store_true", help="write nothing")
    return bool(parser.parse_args().check)


def settle(contents: Mapping[Path, str | None], *, check: bool) -> bool:
    """Write the files that differ, or name them alone.

    Args:
        contents: path -> text; None for a file that is to go.
        check: write nothing.

    Returns:
        Whether a check found one.
    """
    stale = [path for path, text in contents.items() if (path.read_text() if path.is_file() else None) != text]
    for path in stale:
        print(f"{'differs' if check else 'wrote'}: {path.relative_to(REPOSITORY)}")
        text = contents[path]
        if check:
            continue
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return check and bool(stale)
