"""The P-EAGLE head: EAGLE-3's head, which drafts k tokens in one pass (2602.01469, section 3).

    features   g0  g1  g2           g = fc(low, middle, high), true, from target passes
    entries    g0+x1  g1+x2  g2+x3  m+[mask]  m+[mask]    -> x4, x5 and x6, by the last three

Behind the entries that are known come k - 1 masks. A mask has the embedding of the mask token and the feature m =
fc(mask_hidden), one learnt state in place of the target's three. Attention is causal. The masks leave the cache after
the pass; entries and rounds are EAGLE-3's (`heads.eagle3`).

With a bias of the token before (`heads.markov`) a mask also knows the token that is drafted before its own.

A head that learnt to read its own output (`training.p_eagle.rollout`) can draft its first tokens one by one, as EAGLE-3
does, and only the others on masks (`behind`). Such a checkpoint is one of EAGLE-3 too, with tensors that it ignores.

Checkpoint (what vLLM loads as `eagle3` with `parallel_drafting`): EAGLE-3's, with `ptd_token_id`, the mask token, in
config.json, and `mask_hidden` `[1, 3D]`; the bias, where there is one, which vLLM does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads import markov
from specrig.heads.checkpoint import untrained
from specrig.heads.eagle3 import module as eagle3
from specrig.heads.eagle3.module import Eagle3Head
from specrig.heads.layer import mask_token
from specrig.heads.markov import MarkovBias
from specrig.heads.shapes import read_mask
from specrig.runtime.device import on_device, padded
from specrig.runtime.model import CachedModel

if TYPE_CHECKING:
    from pathlib import Path


class PEagleHead(Eagle3Head):
    """The head with its cache. B rows, D hidden width, Vd the head's vocabulary."""

    kind: ClassVar[str] = "p_eagle"
    title: ClassVar[str] = "P-EAGLE head"

    def _check(self, tensors: dict[str, Tensor], target: CachedModel) -> None:
        super()._check(tensors, target)
        self.mask_id = int(read_mask(self.config))

    @classmethod
    def random_tensors(cls, config: Any, seed: int, deviation: float = 0.02) -> dict[str, Tensor]:
        """See `DraftHead`; what stands for the target's states has their size."""
        drawn = super().random_tensors(config, seed, deviation)
        return drawn | untrained({"mask_hidden": cls.shapes(config)["mask_hidden"]}, seed, 1.0)

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the layers from the checkpoint's tensors."""
        super().take_weights(weights)
        self.mask_hidden = weights["mask_hidden"]
        if self.module.joined_norm is None and not self.module.state_norms:
            self.entry_fc = self.fc
        else:
            self.entry_norms = None  # compiled code knows no norms before `fc`
        self.mask_feature: Tensor = super().fuse(self.mask_hidden)
        self.markov = MarkovBias.of(weights, self.checkpoint_order)

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """The target's three residual streams as they are: the pass that reads them makes features of them."""
        return aux_hidden_states

    @torch.inference_mode()
    def entry(self, tokens: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `LlamaModel.entry`. features: `[B, n, 3D]`, see `fuse`, or `[B, n, D]`, the head's own."""
        assert features is not None
        return super().entry(tokens, features if features.shape[-1] == self.hidden_size else super().fuse(features))

    def draft(self, rows: Sequence[Sequence[int]], done: Sequence[bool], k: int) -> Tensor:
        """Run the entries of the tokens that were accepted and k - 1 masks; returns the logits `[B, k, Vd]` of k
        tokens.

        rows: the contexts; done: which of them are over, whose logits mean nothing.
        """
        accepted = self._accepted(rows, done)
        counts = [len(row) for row in accepted]
        width = self._features.shape[1] + k - 1
        tokens = padded([[*row, *[self.mask_id] * (width - len(row))] for row in accepted], width, self.device)
        features = torch.cat((self._features, self.mask_hidden.expand(len(rows), k - 1, -1)), 1)
        if len(set(counts)) > 1:  # the masks of shorter rows begin before
            known = torch.arange(width, device=self.device) < on_device(counts, self.device).unsqueeze(1)
            features = features.where(known.unsqueeze(-1), self.mask_hidden)
        firsts = [max(count - 1, 0) for count in counts]
        logits, _ = self.run(tokens, features, last=[range(first, first + k) for first in firsts])
        self.keep([range(count) for count in counts])
        self._base = list(self.lengths)
        return logits

    def behind(self, tokens: Tensor, features: Tensor, masks: int) -> Tensor:
        """Run drafted tokens `[B, w]`, each an alternative to the others, with the predicted `features` `[B, w, D]` before
        them, and so many masks behind each; returns logits `[B, w, 1 + masks, Vd]` of the tokens that follow.
        """
        B, w = tokens.shape
        own = F.pad(tokens.unsqueeze(-1), (0, masks), value=self.mask_id).flatten(1)
        read = torch.cat((features.unsqueeze(2), self.mask_feature.expand(B, w, masks, -1)), 2).flatten(1, 2)
        chain = [-1 if not at else branch * (1 + masks) + at - 1 for branch in range(w) for at in range(1 + masks)]
        logits, _ = self.forward(own, parents=None if w == 1 else [chain] * B, features=read)
        return logits.unflatten(1, (w, 1 + masks))


def head_config(target: Any, draft_vocabulary: int | None = None, layers: int = 1, markov_rank: int = 0) -> Any:
    """The configuration of a head of so many layers for a target with this configuration, of so many of its tokens
    (None: of all), with a bias of this rank (0: without). Raises DecodingError for a target of fewer than three layers.
    """
    config = eagle3.head_config(target, draft_vocabulary)
    config.num_hidden_layers = layers
    config.ptd_token_id = mask_token(config)
    config.update(markov.noted(markov_rank))
    return config


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write an untrained head for a target with this configuration."""
    config = head_config(target)
    save(folder, config, random_tensors(config, seed, deviation=0.15))


load, save, random_tensors = PEagleHead.load, PEagleHead.save, PEagleHead.random_tensors
