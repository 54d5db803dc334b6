"""Which layers a target can leave out when it drafts for itself: a search on text that it wrote (2309.08168, section
3.3).

The paper searches with Bayesian optimisation over drafting times. Here a greedy search leaves out one layer after the
other, each time the one without which the pruned model most often still makes the whole model's first choice. Of the
sets on that way the one is taken whose predicted speedup is best. It counts weights instead of timing passes, so that
it finds the same set on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specrig.heads.base import TrainingError
from specrig.heads.layer_skip import LayerSkip
from specrig.heads.layer_skip import module as checkpoint
from specrig.heads.learner import Report, Texts
from specrig.heads.teacher import read_model, rows_at_once
from specrig.runtime.model import CachedModel
from specrig.runtime.pruned import follow, prune
from specrig.runtime.transformers_model import cached_model


def make(
    settings: LayerSkip, target: Path, train: Texts, heldout: Texts, where: torch.device, folder: Path, report: Report
) -> None:
    """Search with the texts `train` and write the set into config.json of `folder`, what was tried into the others.

    Raises TrainingError where the target wrote nothing, DecodingError where its layers cannot be left out.
    """
    model = read_model(target, torch.float32 if where.type == "cpu" else "auto")
    whole_size, layer_size = _sizes(model)
    texts = excerpts(train, settings.texts, settings.tokens)
    whole = cached_model(model.to(where), device=where)
    steps = max(1, min(round(settings.most * whole.layers), whole.layers - 1))
    agreed = Search(whole, texts).run(steps, settings.candidates)
    _finish(agreed, whole.layers, layer_size / whole_size, settings.k, folder, report)


def excerpts(texts: Texts, count: int, tokens: int) -> Texts:
    """`count` of the texts, evenly spread, and of each so many tokens: half of them before the target began to write,
    where there are so many. Raises TrainingError where it wrote nothing.
    """
    rows = texts.written.any(1).nonzero().flatten()
    if not len(rows):
        raise TrainingError(
            "layer_skip: the target wrote nothing to the training prompts; write its text with more `text.sequences`"
        )
    count, tokens = min(count, len(rows)), min(tokens, texts.tokens.shape[1])
    rows = rows[torch.arange(count) * len(rows) // count]
    starts = (texts.written[rows].int().argmax(1) - tokens // 2).clamp(0, texts.tokens.shape[1] - tokens)
    at = starts[:, None] + torch.arange(tokens)
    return Texts(texts.tokens[rows].gather(1, at), texts.written[rows].gather(1, at))


class Search:
    """Runs pruned models over texts that the whole one wrote, and counts how often both make the same first choice."""

    def __init__(self, whole: CachedModel, texts: Texts) -> None:
        self.whole, self.texts = whole, texts
        # The token after position t was written by the target: there it would be drafted.
        self.evaluated = texts.written[:, 1:]
        self.choices = self._first(whole)

    def run(self, steps: int, candidates: int) -> list[dict[int, float]]:
        """Of each step: the layers tried, each with the share that agrees without it too, the best one first."""
        skipped: list[int] = []
        found: list[dict[int, float]] = []
        tried: Iterable[int] = range(self.whole.layers)
        for _ in range(steps):
            shares = {layer: self.agreement([*skipped, layer]) for layer in tried}
            ranked = sorted(shares, key=lambda layer: (-shares[layer], layer))
            found.append({layer: shares[layer] for layer in ranked})
            skipped.append(ranked[0])
            # What was tried now ranks before what was not.
            known = list(dict.fromkeys([*ranked, *(layer for step in reversed(found) for layer in step)]))
            tried = [layer for layer in known if layer not in skipped][:candidates]
        return found

    def agreement(self, skipped: list[int]) -> float:
        """The share of positions at which the model without these layers makes the whole model's first choice."""
        return float((self._first(prune(self.whole, skipped)) == self.choices).float().mean())

    @torch.inference_mode()
    def _first(self, model: CachedModel) -> Tensor:
        """The model's first choices at the evaluated positions, `[n]`."""
        found = []
        for tokens, evaluated in zip(
            *(each.split(rows_at_once(model.device)) for each in (self.texts.tokens, self.evaluated)), strict=True
        ):
            B, T = tokens.shape
            self.whole.start(B, T)
            if model is not self.whole:
                follow(model, self.whole, [0] * B)
            logits, _ = model.forward(tokens.to(model.device))
            found.append(logits[:, :-1].argmax(-1).cpu()[evaluated])
        return torch.cat(found)


def predicted(agreed: float, cost: float, k: int) -> float:
    """Speedup of chains of k tokens, each accepted with the chance `agreed`, drafted at `cost` passes of the target
    (2211.17192, theorem 3.8).
    """
    tokens = sum(agreed**depth for depth in range(k + 1))
    return tokens / (k * cost + 1)


def _finish(agreed: list[dict[int, float]], layers: int, layer: float, k: int, folder: Path, report: Report) -> None:
    """layer: the share of a pass's weights that one layer holds."""
    order: list[int] = []
    speedups: list[float] = []
    for step, shares in enumerate(agreed, 1):
        order.append(next(iter(shares)))
        best = shares[order[-1]]
        speedups.append(predicted(best, 1 - step * layer, k))
        report.write(step, skipped=sorted(order), agreement=round(best, 4), predicted_speedup=round(speedups[-1], 3))
    count = 1 + max(range(len(speedups)), key=speedups.__getitem__)
    skipped = sorted(order[:count])
    agreement, speedup = agreed[count - 1][order[count - 1]], speedups[count - 1]
    report.log(
        f"left out: {skipped}; first choices agree in {agreement:.3f} of cases; predicted speedup at k {k}: "
        f"{speedup:.2f}"
    )
    table = torch.full((len(agreed), layers), -1.0)  # by step and layer; -1: not tried
    for step, shares in enumerate(agreed):
        for tried, share in shares.items():
            table[step, tried] = share
    save_file({"agreement": table}, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoint.save(folder, layers, skipped)


def _sizes(model: Any) -> tuple[int, int]:
    """(weights that a pass reads, those of one layer): all but the embedding, which is looked up, and the LM head with
    it if they are one.
    """
    total = sum(weight.numel() for weight in model.parameters())
    inner, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    read = total - (0 if inner is head else inner.numel())
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    return read, (total - inner.numel() - (0 if inner is head else head.numel())) // layers
