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
from specrig.heads.medusa.training import DepthLearner
from specrig.heads.teacher import Teacher


class Head(nn.Module):
    """One head. Until `HydraLearner.start` its state is the target's: what it reads of the tokens weighs nothing."""

    def __init__(self, D: int, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Parameter(torch.zeros(D, inputs * D))
        self.bias = nn.Parameter(torch.zeros(D))
        self.res_connection = nn.Parameter(torch.cat((torch.eye(D), torch.zeros(D, (inputs - 1) * D)), 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """The joined state and embeddings `[n, (i + 2) D]` -> states `[n, D]`."""
        inputs = inputs.to(self.bias.dtype)
        return F.linear(inputs, self.res_connection) + F.silu(F.linear(inputs, self.linear, self.bias))


class HydraLearner(DepthLearner):
    """K heads of one target."""

    order = 7

    def __init__(self, settings: Hydra, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        self.heads = nn.ModuleList(Head(model.hidden, index + 2) for index in range(settings.heads))

    def inputs(self, head: int, states: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """See `DepthLearner`: the state and the embeddings of the tokens behind it."""
        row, position = at.unbind(-1)
        before = [F.embedding(tokens[row, position + step], self.model.embedding) for step in range(1, head + 2)]
        return torch.cat((states[row, position], *before), -1)

    def start(self, head: int, linear: Tensor) -> None:
        """See `DepthLearner`."""
        own = self.heads[head]
        assert isinstance(own, Head)
        own.res_connection.copy_(linear)

    def logits(self, head: int, states: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """See `DepthLearner`."""
        return self.output(self.heads[head](self.inputs(head, states, tokens, at)))

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        found = self.shared_tensors()
        for index, head in enumerate(self.heads):
            assert isinstance(head, Head)
            found |= {f"heads.{index}.{part}.weight": getattr(head, part) for part in ("linear", "res_connection")}
            found[f"heads.{index}.linear.bias"] = head.bias
        return found

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        config = checkpoint.heads_config(**self.sizes(), measured={"accuracy": self.ranks})
        checkpoint.save(folder, config, self.tensors())
