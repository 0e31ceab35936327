"""The page at ``/``: one HTML file, and the policy under which a browser runs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("page.html")


@cache
def page() -> tuple[str, dict[str, str]]:
    """The page, and the headers that it is sent with.

    The policy names the hashes of the page's own style and script. No other is run, nothing is loaded from another
    host, no other site may frame the page, and the browser refuses texts as markup (trusted types).
    """
    text = _FILE.read_text("utf-8")
    hashes = {tag: _hash_source(*re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)) for tag in ("style", "script")}
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return text, headers


def _hash_source(content: str) -> str:
    """The text of one style or script element as a source of a Content-Security-Policy, level 3."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
