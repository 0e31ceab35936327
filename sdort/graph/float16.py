"""The range of fp16, IEEE 754's binary16: a sign, 5 bits of exponent, 11 of significand."""

from __future__ import annotations

LARGEST = 65504.0
"""The largest finite number."""
SMALLEST_NORMAL = 2.0**-14
"""The smallest with all of its 11 bits."""
SMALLEST = 2.0**-24
"""The smallest above zero."""
VANISHING = SMALLEST / 2
"""Up to here numbers become zero: ties go to even."""
