"""The optimiser: Muon for matrices, AdamW for the rest, and the schedule of the learning rate.

Muon is these lines and not `torch.optim.Muon`, which multiplies in bfloat16: on a processor without products for it (one
core with AVX2) a step of a matrix of 64 x 192 took 16 ms there and 0.4 ms here, one of 576 x 576 more than 9 s and 0.4 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from specrig.heads.teacher import product_dtype
from specrig.training.recipe import Optimisation

_ITERATIONS = 5
_OUTER = {"embedding", "lm_head"}
"""Matrices over the vocabulary, whose rows are tokens: AdamW learns them."""


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of a batch of matrices near 1 by the quintic Newton-Schulz iteration.

    `[N, rows, columns]` -> the same shape, in `product_dtype`. Coefficients: Keller Jordan, Muon (2024),
    kellerjordan.github.io/posts/muon.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    # The iteration multiplies by X X^T, which is smaller where X has fewer rows than columns.
    tall = matrices.shape[-2] > matrices.shape[-1]
    dtype = product_dtype(matrices.device)
    X = (matrices.mT if tall else matrices).to(dtype)
    # The Frobenius norm bounds the largest singular value, so all of them start within [0, 1].
    X = X / (X.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(dtype)
    for _ in range(_ITERATIONS):
        # X <- a X + (b A + c A A) X with A = X X^T: each singular value s becomes a s + b s^3 + c s^5, which drives it
        # towards 1.
        A = X @ X.mT
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, B, X, beta=a)
    return X.mT if tall else X


class Muon(torch.optim.Optimizer):
    """Muon for matrices."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply the gradients."""
        for group in self.param_groups:
            lr = group["lr"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                # Nesterov momentum 0.95: the gradient, moved towards its running mean.
                momentum.lerp_(parameter.grad, 0.05)
                rows, columns = parameter.shape
                update = orthogonalise(torch.lerp(parameter.grad, momentum, 0.95).unsqueeze(0)).squeeze(0)
                parameter.mul_(1 - lr * group["weight_decay"])
                # Tall matrices take larger steps, so that the change of a layer's output does not depend on its shape.
                parameter.add_(update.float(), alpha=-lr * max(1.0, rows / columns) ** 0.5)


class Optimizer:
    """Muon and AdamW side by side behind one `step`."""

    def __init__(self, model: nn.Module, settings: Optimisation, outer: Iterable[Tensor] = ()) -> None:
        """outer: matrices over the vocabulary besides those that are known by name."""
        self.settings, self.steps = settings, 0
        outer_at = {tensor.data_ptr() for tensor in outer}
        self.parameters = list(model.parameters())
        inner: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            last = name.rsplit(".", 1)[-1]
            inside = parameter.ndim == 2 and last not in _OUTER and parameter.data_ptr() not in outer_at
            (inner if settings.optimizer == "muon" and inside else rest).append(parameter)
        decay, self.optimizers = settings.weight_decay, list[torch.optim.Optimizer]()
        if rest:
            betas = (0.9, 0.95)
            adam = torch.optim.AdamW(rest, settings.lr, betas, eps=1e-10, weight_decay=decay, fused=True)
            self.optimizers.append(adam)
        if inner:
            self.optimizers.append(Muon(inner, settings.matrix_lr, decay))
        self.peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on besides the weights."""
        return {"steps": self.steps, "optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.steps = state["steps"]
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)

    def rate(self) -> float:
        """The learning rate of this step as a share of its peak: it rises linearly, stays, and falls linearly to zero."""
        steps = self.settings.steps
        warm = max(1.0, self.settings.warmup * steps)
        rest = (steps - self.steps) / max(1.0, self.settings.decay * steps)
        return min(1.0, (self.steps + 1) / warm, rest)

    def step(self) -> None:
        """Apply the gradients and clear them."""
        nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * self.rate()
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1
