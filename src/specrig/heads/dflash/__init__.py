"""DFlash (2602.06036): a few layers fill a block of masks in one pass; attention inside the block goes both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from specrig.heads.base import Foreign, Sizes
from specrig.heads.eagle import LayerHead
from specrig.runtime.types import DecodingError

WHOLE_CHAINS = {"acceptance": "exact", "length": "fixed", "nodes": 0}
"""Options with which other engines draft the same."""
ONE_PASS = {"--speculative-num-steps": 1}
"""What SGLang is told of a block that is drafted in one pass."""


def choose_target_layers(layers: int) -> tuple[int, ...]:
    """After which layers a head reads a target of so many: low, middle and high, e.g. 1, 3, 5 of 6, never the
    embedding.

    Raises DecodingError for a target of one layer, which has no state between layers.
    """
    if layers < 2:
        raise DecodingError(f"a DFlash head reads the target between its layers; a target of {layers} has none")
    edge = max(1, layers // 6)
    return tuple(sorted({edge, layers // 2, layers - edge}))


class DFlash(LayerHead):
    """How large a block DFlash's layers fill, and how they learn it."""

    name: ClassVar[str] = "dflash"
    title: ClassVar[str] = "DFlash"
    about: ClassVar[str] = "How the head of `dflash` is trained."
    aux_hidden_states: ClassVar[int] = 3
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "vllm": Foreign("dflash", options=WHOLE_CHAINS, sampled=True),
        "sglang": Foreign("DFLASH", keys=ONE_PASS),
        "llamacpp": Foreign("draft-dflash", options=WHOLE_CHAINS, sampled=True),
    }

    steps: int = Field(default=50, ge=1)
    """Optimiser steps."""
    lr: float = Field(default=1e-2, gt=0)
    """Peak learning rate of AdamW, for norms."""
    matrix_lr: float = Field(default=0.04, gt=0)
    """Peak learning rate of Muon, for the matrices."""
    layers: int = Field(default=2, ge=1, le=8)
    """Decoder layers; the paper has 5."""
    k: int = Field(default=7, ge=1, le=31)
    """Tokens that it learns to draft in one pass: its blocks hold one more, the last token."""
    anchors: float = Field(default=0.125, gt=0, le=1)
    """Share of a text's positions that begin a block, drawn again at each step."""
    position_weights: Literal["decay", "d_pace"] = "decay"
    """How positions of a block weigh: `decay`, by gamma; `d_pace`, by what each adds to the expected accepted length
    (D-PACE, 2605.18810).
    """
    gamma: float = Field(default=4.0, gt=0)
    """With `decay`, position j of a block weighs exp(-(j - 1) / gamma): the paper has 7, 5 and 4 for k of 15, 9 and 7.
    """

    @property
    def copies(self) -> float:
        """See `NeuralHead`: those of the blocks that a position begins."""
        return self.anchors * self.k

    def aux_layers(self, layers: int) -> tuple[int, ...]:
        """See `choose_target_layers`."""
        return choose_target_layers(layers)

    @classmethod
    def unloadable(cls, engine: str, config: Mapping[str, Any]) -> str | None:
        """Other engines know no `specrig.drafted`: the scores of tokens that the head never learnt to draft would win."""
        if not (drafted := (config.get("specrig") or {}).get("drafted")):
            return None
        return (
            f"{engine} would draft with all of {config['vocab_size']:,} tokens, and the {cls.title} head learnt the scores of "
            f"{len(drafted):,} alone; train it with `{cls.name}: {{draft_vocabulary: null}}`, or run it in the engine native"
        )

    def weights(self, sizes: Sizes) -> float:
        """Of `fc` and the layers; embedding and LM head are the target's."""
        first = self.layer_weights(sizes, enters=3, reads=1)
        return first + (self.layers - 1) * self.layer_weights(sizes, enters=0, reads=1)

    def active_parameters(self, sizes: Sizes) -> float:
        """Of a position `fc` and the layers' keys and values; of a block all layers at each token, and the LM head."""
        context = (3.0 + 2.0 * self.layers) * sizes.hidden**2
        block = (self.k + 1) * DFlash.weights(self, sizes) + self.k * float(self.drafted(sizes) * sizes.hidden)
        return context + self.anchors * block
