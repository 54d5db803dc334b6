"""DFlash: a few layers on the target's states fill a block of masks in one pass. Worth it where the target is deep.

2602.06036. A block holds the last token and k masks. Inside it attention goes both ways, so the masks agree on what
they mean, but no token knows which one was drawn beside it: above temperature 0 each is sampled from a distribution of
its own, so exact rejection sampling applies.
"""

from __future__ import annotations

from typing import Any

from specrig.decoding.drafters.p_eagle import OnePassOptions, PEagle


class DFlash(PEagle):
    """P-EAGLE's rounds with another head."""

    name = "dflash"
    summary = "a few layers on the target's states fill a block of k masks in one pass (DFlash, 2602.06036)"
    needs = ("dflash",)

    class Options(OnePassOptions):
        __doc__ = OnePassOptions.__doc__

    def head_passes(self, k: int) -> int:
        """See `PEagle`."""
        return 1

    def load(self) -> Any:
        """The trained head."""
        from specrig.heads.dflash.module import load

        return load(self.resources.head("dflash"), self.resources.target)
