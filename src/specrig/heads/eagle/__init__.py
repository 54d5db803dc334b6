"""EAGLE (Li et al., 2401.15077): one decoder layer that continues the target's features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from specrig.heads.base import Foreign, NeuralHead, Sizes


class LayerHead(NeuralHead):
    """How long a head of decoder layers trains, and on what text."""

    loss: Literal["kl", "lk"] = "kl"
    """Distance to the target's distribution: `kl` divergence, or `lk`, which turns to the acceptance rate itself
    (2602.23881).
    """

    def layer_weights(self, sizes: Sizes, enters: int, reads: int) -> float:
        """Of `fc`, which `enters` hidden widths enter, and of a decoder layer whose attention reads `reads` widths."""
        D = sizes.hidden
        return float(enters * D * D + (3 * reads + 1) * D * D + 3 * D * sizes.intermediate)


class UnrolledHead(LayerHead):
    """How far a head that drafts on its own output does so in training."""

    rollout: int = Field(default=3, ge=1, le=8)
    """Steps the head takes on its own features in training: 1 is EAGLE, more is HASS (2408.15766) and EAGLE-3's
    training-time test.
    """

    def active_parameters(self, sizes: Sizes) -> float:
        """All its weights and the LM head, once a step of the rollout."""
        return self.rollout * (self.weights(sizes) + self._shared_output(sizes))

    def _shared_output(self, sizes: Sizes) -> float:
        """Weights of the target's LM head that it uses."""
        return 0.0


class Eagle(UnrolledHead):
    """How long the head trains, on what text, and what EAGLE's loss weighs."""

    name: ClassVar[str] = "eagle"
    title: ClassVar[str] = "EAGLE"
    about: ClassVar[str] = "How the head of `eagle` and `eagle2` is trained."
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "vllm": Foreign("eagle", options={"acceptance": "exact"}, sampled=True),
        "sglang": Foreign("EAGLE"),
    }

    feature_weight: float = Field(default=1.0, ge=0)
    """Weight of the smooth-L1 distance between predicted and true features (2401.15077, section 4.2)."""
    logits_weight: float = Field(default=0.1, ge=0)
    """Weight of the cross-entropy with the target's distribution through its frozen LM head (the paper's w_cls)."""
    noise: float = Field(default=0.1, ge=0)
    """True features are fed with noise from U(-noise, noise)."""

    def weights(self, sizes: Sizes) -> float:
        """Of the layer; the LM head is the target's."""
        return self.layer_weights(sizes, enters=2, reads=1)

    def _shared_output(self, sizes: Sizes) -> float:
        return float(self.drafted(sizes) * sizes.hidden)
