"""What running a model and decoding with it have in common. torch is imported for type checkers only, because the
planner imports this file and must start without torch.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

Parents: TypeAlias = "Sequence[Sequence[int]] | Tensor"
"""`[B, n]`: for each token of a pass the index of the token that it follows, which comes before it; -1 where it follows
the context.
"""


SCALE = "_scale"
"""In a file of weights of 8 bits (`runtime.eight_bits`), behind the name of a matrix: its rows' scales."""
Passes: TypeAlias = dict[int, tuple[int, float]]
"""Bare forward passes: width in tokens a row -> (calls, seconds)."""


class FallbackWarning(UserWarning):
    """Passes run in a slower way than they could; the message says why."""


FALLBACKS: list[str] = []
"""The messages of this process's `FallbackWarning`s. From each of them on, all that it measures may be slower."""


def fall_back(message: str) -> None:
    """Warn that passes run in a slower way from now on, and keep the message in `FALLBACKS`."""
    FALLBACKS.append(message)
    warnings.warn(message, FallbackWarning, stacklevel=3)


class DecodingError(ValueError):
    """A request that cannot be served; the message says why and what to change."""


def add_passes(total: Passes, more: Passes) -> None:
    """Add the calls and seconds of `more` to `total`."""
    for width, (calls, seconds) in more.items():
        before = total.get(width, (0, 0.0))
        total[width] = before[0] + calls, before[1] + seconds
