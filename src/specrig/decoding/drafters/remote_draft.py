"""Draft-model speculation whose draft model is a service of its own: what the network between draft and target costs.

The same chains as `draft_model` (Leviathan et al., 2211.17192), drawn with the same random numbers, so acceptance is
the same and only time differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from specrig.decoding.types import ChainOptions, Context, Draft, Drafter, OwnVocabulary, RemoteModel

if TYPE_CHECKING:
    from torch import Tensor


class RemoteDraft(Drafter):
    """One call a round takes the new tokens of all rows there and their chains back."""

    name = "remote_draft"
    summary = "draft_model behind HTTP: draft and target are services, with latency_ms added to each round trip"
    family = "draft model"
    needs = ("draft",)
    translates = True

    class Options(ChainOptions, OwnVocabulary):
        """Those of `draft_model`; latency_ms: added to each round trip; precision: in which the draft's probabilities
        are sent.
        """

        latency_ms: float = Field(0.0, ge=0, le=10_000)
        precision: Literal["float32", "float16"] = "float32"

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """The service runs the prompts."""
        latency_s, half = self.options.latency_ms / 1e3, self.options.precision == "float16"
        self.remote: RemoteModel = self.resources.remote("draft", context.batch_size, latency_s=latency_s, half=half)
        self.remote.begin([tokens[:-1] for tokens in context.tokens])

    def propose(self, context: Context, k: int) -> Draft:
        """The chains of all rows that are not finished, in one round trip."""
        import torch

        from specrig.runtime.device import on_device

        # As many uniforms as drawing here would take, so that the streams stand where they would.
        sampler = context.sampler
        uniforms = [] if sampler.greedy else sampler.uniforms(context.depths, k).tolist()
        tokens, q = self.remote.propose(context.tokens, context.depths, sampler.temperature, uniforms)
        return Draft(
            on_device(tokens, sampler.device),
            probs=None if q is None else torch.from_numpy(q).to(sampler.device, non_blocking=True),
        )

    def passes(self) -> dict[int, tuple[int, float]]:
        """The draft model's bare forward passes, as the service timed them: without the network."""
        return self.remote.passes()
