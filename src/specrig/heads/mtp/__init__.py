"""Multi-token prediction (DeepSeek-V3, 2412.19437, section 2.2): one layer more of the target, on its last hidden state."""

from __future__ import annotations

from typing import ClassVar

from specrig.heads.base import Sizes
from specrig.heads.eagle import UnrolledHead


class Mtp(UnrolledHead):
    """How long the head trains, and on what text."""

    name: ClassVar[str] = "mtp"
    title: ClassVar[str] = "MTP"
    about: ClassVar[str] = "How the head of `mtp` is trained, for a target whose checkpoint carries none."

    def weights(self, sizes: Sizes) -> float:
        """Of the layer; the LM head is the target's."""
        return self.layer_weights(sizes, enters=2, reads=1)

    def _shared_output(self, sizes: Sizes) -> float:
        return float(self.drafted(sizes) * sizes.hidden)
