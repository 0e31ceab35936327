"""Whether an optimization uses sdort's own operators."""

from __future__ import annotations

from sdort.console import warn
from sdort.graph.domains import OWN_DOMAIN
from sdort.operator_library.library import why_no_kernels
from sdort.providers import load_target


def own_operators(provider: str, asked: bool | None = None) -> tuple[bool, str]:
    """Whether sdort's own operators are used for a provider, and why.

    Args:
        asked: what the user said; None where nothing is said.
    """
    if not any(name.startswith(f"{OWN_DOMAIN}.") for name in load_target(provider).conditions):
        if asked:
            warn(f"--sdort-ops changes nothing: none of sdort's own operators is for {provider}")
        return False, f"{provider} has none"
    if asked is not None:
        return asked, "as asked"
    reason = why_no_kernels(provider)
    return reason is None, reason or f"the library here has kernels for {provider}"
