"""Medusa heads while they train: their loss (Cai et al., 2401.10774, equation 1), and how often they are right.

Shapes: B sequences, T tokens, D hidden, V vocabulary, Vd the tokens that the heads can draft, K heads.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.training.acceptance import ahead
from specrig.training.losses import distillation
from specrig.training.medusa_recipe import MedusaTraining
from specrig.training.target_text import Texts, places
from specrig.training.teacher import Output, Teacher
from specrig.training.trainer import autocast, moved

RANKS = 10
"""How many of a head's choices, from the first, have their accuracy measured."""


class Head(nn.Module):
    """One head while it trains. The residual block starts at zero and the LM head as the model's, so at first both
    predict the same.
    """

    def __init__(self, output: Output, own_lm_head: bool) -> None:
        super().__init__()
        D = output.weight.shape[1]
        self.weight = nn.Parameter(torch.zeros(D, D))
        self.bias = nn.Parameter(torch.zeros(D))
        self.lm_head = nn.Parameter(output.weight.float().clone()) if own_lm_head else None

    def forward(self, hidden: Tensor, output: Output) -> Tensor:
        """Hidden states `[..., D]` -> logits `[..., Vd]`; `output` is the model's LM head."""
        hidden = hidden.to(self.bias.dtype)
        state = hidden + F.silu(F.linear(hidden, self.weight, self.bias))
        return output(state) if self.lm_head is None else F.linear(state, self.lm_head)


class Heads(nn.ModuleList):
    """K heads of one model. `output`: its LM head over the tokens `drafted` `[Vd]` that the heads can draft; None: all."""

    def __init__(self, model: Teacher, settings: MedusaTraining, drafted: Tensor | None = None) -> None:
        self.drafted = drafted
        self.output = model.output.among(None if drafted is None else drafted.to(model.where))
        super().__init__(Head(self.output, settings.owns(len(self.output.weight))) for _ in range(settings.heads))

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the checkpoint's names."""
        found: dict[str, Tensor] = {} if self.drafted is None else {"token_map": self.drafted}
        for index, head in enumerate(self):
            assert isinstance(head, Head)
            found |= {f"blocks.{index}.layers.0.weight": head.weight, f"blocks.{index}.layers.0.bias": head.bias}
            if head.lm_head is not None:
                found[f"lm_heads.{index}.weight"] = head.lm_head
        return found if "lm_heads.0.weight" in found else found | {"lm_head.weight": self.output.weight}

    def restore(self, folder: Path) -> None:
        """Become the heads of a checkpoint that `tensors` named, made with the same settings."""
        found = load_file(folder / "model.safetensors")
        for index, head in enumerate(self):
            assert isinstance(head, Head)
            state = {"weight": found[f"blocks.{index}.layers.0.weight"], "bias": found[f"blocks.{index}.layers.0.bias"]}
            if head.lm_head is not None:
                state["lm_head"] = found[f"lm_heads.{index}.weight"]
            head.load_state_dict(state)


def heads_loss(
    heads: Heads,
    output: Output,
    hidden: Tensor,
    taught: Tensor,
    teaching: Output,
    batch: Texts,
    settings: MedusaTraining,
) -> Tensor:
    """The sum over heads i of decay^i times the head's loss (2401.10774, equation 1).

    batch: B texts of T tokens; hidden: the model's states of them, `[B, T, D]`; taught: the teacher's, `[B, T, D']`,
    and `teaching` its LM head. At position t head i predicts token t + 2 + i, which the teacher predicts at position t
    + 1 + i. Only what the target wrote is
    learnt: those are the places at which the heads will draft.
    """
    B, T = batch.tokens.shape
    said = F.pad(batch.written[:, 1:], (0, 1))  # [B, T]: the token after t was written by the target
    with torch.no_grad():
        goal = teaching(taught[said])
    number = torch.full((B, T), -1, device=hidden.device)  # a position's row in `goal`
    number[said] = torch.arange(len(goal), device=hidden.device)
    labels_of = places(batch.tokens, heads.drafted)
    total = torch.zeros((), device=hidden.device)
    for index, head in enumerate(heads):
        reach = T - 2 - index  # positions whose token t + 2 + index is there
        wanted = said[:, :reach] & said[:, index + 1 : index + 1 + reach]
        logits = head(hidden[:, :reach][wanted], output)
        labels = labels_of[:, index + 2 :][wanted]
        rows = number[:, index + 1 : index + 1 + reach][wanted]
        total = total + settings.decay**index * distillation(logits, goal[rows], labels, settings.kl_weight)
    return total


@torch.no_grad()
def rank_accuracies(heads: Heads, model: Teacher, heldout: Texts, hidden: Tensor) -> list[list[float]]:
    """How often the choice of each rank is the token that came, `[1 + K][RANKS]`: of the model's LM head, then of every
    head.

    heldout: texts that the target wrote greedily; hidden: the model's states of them, `[N, T, D]`. Only positions count
    at which a draft would be made: the next token and the predicted token were both chosen by the target. A token that
    the heads cannot draft is of no rank.
    """
    choices = heldout.written
    found: list[list[float]] = []
    with autocast(model.where):
        for reach in range(1, 2 + len(heads)):
            states = hidden[:, :-reach]
            counts = torch.zeros(RANKS)
            # Which positions count: `reach` 1 is the LM head's token t + 1, 2 is head 0's token t + 2, and so on.
            asked = (choices[:, 1 : 1 + states.shape[1]] & choices[:, reach:]).to(model.where)
            answers = moved(heldout.tokens[:, reach:], model.where)[asked]
            for state, answer in zip(states[asked].split(2048), answers.split(2048), strict=True):
                logits = model.logits(state) if reach == 1 else heads[reach - 2](state, heads.output)
                place = answer if reach == 1 else places(answer, heads.drafted)
                logits = logits[place >= 0].float()
                # The rank of the token that came: how many tokens have a higher logit.
                ranks = (logits > logits.gather(1, place[place >= 0, None])).sum(-1)
                counts += torch.bincount(ranks.clamp(max=RANKS), minlength=RANKS + 1)[:RANKS].cpu()
            found.append([round(share, 5) for share in (counts / max(1, len(answers))).tolist()])
    return found


@torch.no_grad()
def measured(heads: Heads, model: Teacher, heldout: Texts, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """For `acceptance.report`, see `rank_accuracies`: a round at position t drafts token t + 2 + i by head i; `[K, N,
    T]`.
    """
    choices = heldout.written
    right, asked = [], []
    for index, head in enumerate(heads):
        there = ahead(choices, index + 2) & ahead(choices, 1)
        good = torch.zeros_like(there)
        with autocast(model.where):
            chosen = head(hidden[there.to(model.where)], heads.output).argmax(-1).cpu()
        good[there] = chosen == places(heldout.tokens.roll(-2 - index, 1)[there], heads.drafted)
        right.append(good)
        asked.append(there)
    return torch.stack(right), torch.stack(asked)
