"""Training of Hydra heads on a frozen target (Ankner et al., 2402.05109, section 4): each learns with the right tokens
before it.

The paper's teacher loss is the cross-entropy with the target's distribution; here it is the KL divergence, which
differs by a constant. Shapes: B texts, T tokens, D hidden, Vd the heads' vocabulary, K heads, n positions.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads.hydra import Hydra
from specrig.heads.hydra import module as checkpoint
from specrig.heads.hydra.module import HydraHead
from specrig.heads.medusa.training import DepthLearner
from specrig.heads.teacher import Teacher
from specrig.heads.trained_layer import SideBySide, matrix


def untrained_head(D: int, inputs: int) -> HydraHead:
    """Until `HydraLearner.start` its state is the target's: what it reads of the tokens weighs nothing."""
    linear = matrix(torch.zeros(D, inputs * D), torch.zeros(D))
    return HydraHead(SideBySide((linear, matrix(torch.cat((torch.eye(D), torch.zeros(D, (inputs - 1) * D)), 1)))))


class HydraLearner(DepthLearner):
    """K heads of one target."""

    order = 7

    def __init__(self, settings: Hydra, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        self.heads = nn.ModuleList(untrained_head(model.hidden, index + 2) for index in range(settings.heads))

    def inputs(self, head: int, states: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """See `DepthLearner`: the state and the embeddings of the tokens behind it."""
        row, position = at.unbind(-1)
        before = [F.embedding(tokens[row, position + step], self.model.embedding) for step in range(1, head + 2)]
        return torch.cat((states[row, position], *before), -1)

    def start(self, head: int, linear: Tensor) -> None:
        """See `DepthLearner`."""
        self.heads[head].both[1].weight.copy_(linear)

    def logits(self, head: int, states: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """See `DepthLearner`."""
        inputs = self.inputs(head, states, tokens, at)
        return self.output(self.heads[head](inputs.to(torch.float32)))

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        found = self.shared_tensors()
        for index, head in enumerate(self.heads):
            linear, residual = head.both
            found |= {f"heads.{index}.linear.{part}": tensor for part, tensor in linear.named_parameters()}
            found[f"heads.{index}.res_connection.weight"] = residual.weight
        return found

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        config = checkpoint.heads_config(**self.sizes(), measured={"accuracy": self.ranks})
        checkpoint.save(folder, config, self.tensors())
