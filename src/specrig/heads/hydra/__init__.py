"""Hydra (Ankner et al., 2402.05109): Medusa's heads, each of which knows what was drafted before it."""

from __future__ import annotations

from typing import ClassVar

from specrig.heads.base import Sizes
from specrig.heads.medusa import DepthHeads


class Hydra(DepthHeads):
    """How many heads, each of which knows what was drafted before it; all read out with the target's own LM head, which
    stays as it is.
    """

    name: ClassVar[str] = "hydra"
    title: ClassVar[str] = "Hydra"
    about: ClassVar[str] = "How the heads of `hydra` are trained."

    def weights(self, sizes: Sizes) -> float:
        """Of two matrices a head; the LM head is the target's."""
        return self._matrices(sizes) + self.bias_weights(sizes)

    def active_parameters(self, sizes: Sizes) -> float:
        """Besides, each head's state with the LM head."""
        output = self.heads * sizes.hidden * self.drafted(sizes)
        return self._matrices(sizes) + output + self.bias_multiplied(sizes)

    def _matrices(self, sizes: Sizes) -> float:
        return float(sum(2 * (head + 2) * sizes.hidden**2 for head in range(self.heads)))
