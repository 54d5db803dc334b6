"""EAGLE-3 (Li et al., 2503.01840): one decoder layer on three of the target's layers, trained on its own output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from specrig.heads.base import MASKS, Foreign, Sizes
from specrig.heads.eagle import UnrolledHead
from specrig.runtime.types import DecodingError


def choose_aux_layers(layers: int) -> tuple[int, int, int]:
    """After which layers a head reads a target of so many: low, middle and high, e.g. 1, 3, 5 of 6.

    Raises DecodingError below three layers: the states between embedding and last layer are too few.
    """
    if layers < 3:
        raise DecodingError(
            f"an EAGLE-3 head reads the target after three different layers; a target of {layers} has too few"
        )
    return layers // 6, layers // 2, layers - max(1, layers // 6)


def parallel_only(config: Mapping[str, Any]) -> str | None:
    """Why a head with this config.json drafts badly token by token: it is one of P-EAGLE that never learnt to read its own
    output. None: it did learn that, or the checkpoint does not say.
    """
    rollout = (config.get("specrig") or {}).get("rollout")
    if not isinstance(rollout, int) or rollout > 1:
        return None
    return (
        "this P-EAGLE head never learnt to read its own output, so it drafts badly token by token; use it with `p_eagle` "
        "and one pass, or train it with `p_eagle: {rollout: 2}`"
    )


class Eagle3(UnrolledHead):
    """What EAGLE-3 changes: no feature loss, no noise; its steps weigh unequally, its vocabulary may be smaller."""

    name: ClassVar[str] = "eagle3"
    title: ClassVar[str] = "EAGLE-3"
    about: ClassVar[str] = "How the head of `eagle3` is trained."
    aux_hidden_states: ClassVar[int] = 3
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "vllm": Foreign("eagle3", options={"nodes": 0}, unknown=MASKS, sampled=True),
        "sglang": Foreign("EAGLE3", unknown=MASKS),
        "llamacpp": Foreign("draft-eagle3", options={"nodes": 0}, sampled=True),
    }

    steps: int = Field(default=50, ge=1)
    """Optimiser steps."""
    lr: float = Field(default=1e-2, gt=0)
    """Peak learning rate of AdamW, for norms and LM head."""
    matrix_lr: float = Field(default=0.08, gt=0)
    """Peak learning rate of Muon, for the matrices: they start further from their goal than EAGLE's, whose loss leads
    by features.
    """
    step_decay: float = Field(default=0.8, gt=0, le=1)
    """Each further step on its own output weighs that much of the one before (as the paper's code has it)."""

    norms: bool = False
    """EAGLE-3.1's: a norm on each of the target's states that are read, and the output is read again behind its norm."""

    def aux_layers(self, layers: int) -> tuple[int, ...]:
        """See `choose_aux_layers`."""
        return choose_aux_layers(layers)

    @classmethod
    def unloadable(cls, engine: str, config: Mapping[str, Any]) -> str | None:
        """See `parallel_only`."""
        return parallel_only(config)

    def weights(self, sizes: Sizes) -> float:
        """Of the layer and of its own LM head."""
        return self.layer_weights(sizes, enters=3, reads=2) + self.drafted(sizes) * sizes.hidden
