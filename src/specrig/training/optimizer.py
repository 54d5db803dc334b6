"""The optimiser: Muon for matrices, AdamW for the rest, and the schedule of the learning rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from specrig.heads.teacher import product_dtype
from specrig.training.recipe import Optimisation

_ITERATIONS = 5
_OUTER = {"embedding", "lm_head"}
"""Matrices over the vocabulary, whose rows are tokens: AdamW learns them."""
_SPLITS = {"qkv": 3, "kv": 2, "gate_up": 2}
"""Fused matrices hold that many matrices of the model; each is orthogonalised by itself."""


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


class Optimizer:
    """Muon and AdamW side by side behind one `step`. Deterministic; the state lives on the parameters' device."""

    def __init__(self, model: nn.Module, settings: Optimisation, outer: Iterable[Tensor] = ()) -> None:
        """outer: matrices over the vocabulary besides those that are known by name."""
        self.settings = settings
        self.step_number = 0
        self.outer = {each.data_ptr() for each in outer}
        self.parameters: list[nn.Parameter] = []
        self.matrices: dict[tuple[int, int], list[tuple[nn.Parameter, Tensor, int]]] = {}
        self.adam: torch.optim.AdamW | None = None
        self.adopt(model)

    def adopt(self, model: nn.Module) -> None:
        """Add the model's parameters that are new; known ones keep their state."""
        known = {id(parameter) for parameter in self.parameters}
        new = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in known]
        adam: list[nn.Parameter] = []
        for name, parameter in new:
            self.parameters.append(parameter)
            last = name.rsplit(".", 1)[-1]
            inside = parameter.ndim == 2 and last not in _OUTER and parameter.data_ptr() not in self.outer
            if self.settings.optimizer == "muon" and inside:
                splits = _SPLITS.get(last, 1)
                key = (parameter.shape[0] // splits, parameter.shape[1])
                self.matrices.setdefault(key, []).append((parameter, torch.zeros_like(parameter), splits))
            else:
                adam.append(parameter)
        if self.adam is None:
            self.adam = torch.optim.AdamW(
                adam,
                lr=self.settings.lr,
                betas=(0.9, 0.95),
                eps=1e-10,
                weight_decay=self.settings.weight_decay,
                fused=True,
            )
        elif adam:
            self.adam.add_param_group({"params": adam})
        # In the model's order, so that sums over parameters are the same bits where a training goes on.
        order = {id(parameter): at for at, parameter in enumerate(model.parameters())}
        self.parameters.sort(key=lambda parameter: order[id(parameter)])
        for members in self.matrices.values():
            members.sort(key=lambda member: order[id(member[0])])

    def state(self, model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
        """Everything that the next step depends on, but its number: (kind, name of the parameter in `model`, tensor)."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for members in self.matrices.values():
            yield from (("momentum", names[id(parameter)], momentum) for parameter, momentum, _ in members)
        assert self.adam is not None
        for parameter, kept in self.adam.state.items():
            yield from ((kind, names[id(parameter)], value) for kind, value in kept.items())

    @torch.no_grad()
    def restore(self, model: nn.Module, kept: Mapping[tuple[str, str], Tensor], steps: int) -> None:
        """Go on after `steps` steps with what `state` gave: (kind, name) -> tensor."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for members in self.matrices.values():
            for parameter, momentum, _ in members:
                momentum.copy_(kept["momentum", names[id(parameter)]])
        assert self.adam is not None
        for group in self.adam.param_groups:
            for parameter in group["params"]:
                kinds = ("step", "exp_avg", "exp_avg_sq")
                self.adam.state[parameter] = {
                    kind: kept[kind, names[id(parameter)]].to(parameter.device) for kind in kinds
                }
        self.step_number = steps

    def rate(self) -> float:
        """The learning rate of this step as a share of its peak: it rises linearly, stays, and falls linearly to zero."""
        steps = self.settings.steps
        warm = max(1.0, self.settings.warmup * steps)
        rest = (steps - self.step_number) / max(1.0, self.settings.decay * steps)
        return min(1.0, (self.step_number + 1) / warm, rest)

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients and clear them."""
        nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        rate = self.rate()
        assert self.adam is not None
        for group in self.adam.param_groups:
            group["lr"] = self.settings.lr * rate
        self.adam.step()
        # Muon: matrices of one shape are orthogonalised together, `[pieces, rows, columns]`.
        for (rows, columns), members in self.matrices.items():
            pieces = []
            for parameter, momentum, splits in members:
                assert parameter.grad is not None
                # Nesterov momentum 0.95: the gradient, moved towards its running mean.
                momentum.lerp_(parameter.grad, 0.05)
                pieces.append(torch.lerp(parameter.grad, momentum, 0.95).view(splits, rows, columns))
            update = orthogonalise(torch.cat(pieces)).float()
            # Tall matrices take larger steps, so that the change of a layer's output does not depend on its shape.
            scale = self.settings.matrix_lr * rate * max(1.0, rows / columns) ** 0.5
            start = 0
            for parameter, _, splits in members:
                parameter.mul_(1 - self.settings.matrix_lr * rate * self.settings.weight_decay)
                parameter.view(splits, rows, columns).add_(update[start : start + splits], alpha=-scale)
                start += splits
        for parameter in self.parameters:
            parameter.grad = None
        self.step_number += 1
