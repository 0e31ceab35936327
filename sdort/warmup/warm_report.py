"""The outcome of a warm-up."""

from __future__ import annotations

from dataclasses import dataclass, field

from sdort.console import document
from sdort.errors import ProviderError
from sdort.warmup.items import describe_item
from sdort.workload.cases import Case

NEW, KEPT, LEFT, FAILED, TOO_LARGE = "new", "kept", "left", "failed", "too large"


@dataclass
class Warmed:
    """The outcome of an item: ``new``, ``kept`` from an earlier time, ``left`` for want of time, ``failed``.

    The decoder's may be ``too large`` for the memory: it goes on in a smaller form then, which is another item.

    ``decodes`` says of the decoder which images these shapes decode, and whether whole, one by one or in tiles.
    ``before_s`` and ``after_s`` are the seconds of opening the model and its first run, before anything of these shapes
    was kept and with it; both in this process, where the driver is already awake.
    """

    component: str
    """The component."""
    batch: int
    """Samples in one call."""
    height: int
    """Height of the image in pixels."""
    width: int
    """Width of the image in pixels."""
    status: str
    """``new``, ``kept`` from earlier, ``left`` for want of time, ``too large`` for the memory, or ``failed``."""
    bundle: str
    """Name of its bundle in the tuning cache."""
    decodes: list[str] = field(default_factory=list)
    """Images that the decoder or the encoder takes with these shapes, whole, in slices or in tiles."""
    before_s: float | None = None
    """Seconds of opening the model and its first run, before anything was kept; None if not measured."""
    after_s: float | None = None
    """The same with what is kept; None if not measured."""
    problem: str | None = None
    """Why it failed; None if it did not."""

    def __str__(self) -> str:
        return describe_item(Case(self.component, self.batch, self.height, self.width), self.decodes)


@document("warm", 1)
@dataclass(frozen=True)
class Warmup:
    """The items of a warm-up, in the order in which they were taken."""

    items: list[Warmed]
    """The items, in the order in which they were taken."""
    left: int
    """Items that are left for want of time; the same call goes on with them."""

    @property
    def verdict(self) -> str:
        """One sentence: what is ready, how long its first run was and is, and what is left."""
        ready = [item for item in self.items if item.status in (NEW, KEPT)]
        kept = sum(item.status == KEPT for item in ready)
        text = f"{len(ready)} of {len(self.items)} ready"
        if kept:
            text += f", {kept} of them since an earlier time"
        before = [item.before_s for item in ready if item.before_s is not None and item.after_s is not None]
        after = [item.after_s for item in ready if item.before_s is not None and item.after_s is not None]
        if after:
            text += f"; first runs now take {sum(after):.1f} s, before {sum(before):.1f} s"
        elif ready:
            text += f"; first runs took {sum(item.before_s or 0.0 for item in ready):.1f} s"
        if self.left:
            text += f". The time was up with {self.left} left: the same command goes on with them"
        return f"{text}."

    def raise_if_failed(self) -> None:
        """Raise if an item failed.

        Raises:
            ProviderError: how many, and the first reason.
        """
        failed = [item for item in self.items if item.status == FAILED]
        if failed:
            raise ProviderError(
                f"{len(failed)} of {len(self.items)} did not run. The first: {failed[0]}: {failed[0].problem}",
                hint="What else was tuned is kept. Was the model made for this provider (sdort inspect tells)? "
                "Where memory is short, take smaller sizes or batches; -v shows the whole reason.",
            )
