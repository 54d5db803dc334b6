"""Self-speculation: the target drafts for itself with some of its layers left out, then verifies with all of them.

Zhang et al., Draft & Verify, 2309.08168; Xia et al., SWIFT, 2410.06916. There is no draft model to train or to hold in
memory: the drafting passes run the target's own embedding, the layers that are kept, and its LM head. They read the
keys and values that the target wrote for the context, so they have no prompt to run and nothing to catch up with. Both
papers also leave out attention or MLP of a layer alone; here whole layers are, which every architecture allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from specrig.decoding.drafters.draft_model import DraftModel
from specrig.decoding.types import ChainOptions, Context, MethodOptions, Resources, Verdict
from specrig.heads.base import Foreign
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from torch import Tensor


class LayerSkip(DraftModel):
    """Drafts k tokens, one pass of the pruned target each."""

    name = "layer_skip"
    summary = "the target without some of its layers drafts for itself (Draft & Verify 2309.08168, SWIFT 2410.06916)"
    needs = ("layer_skip",)
    translates = False
    foreign: ClassVar[Mapping[str, Foreign]] = {"transformers": Foreign("early exit", options={"acceptance": "exact"})}

    class Options(ChainOptions):
        """skip: which layers are left out: a share of them, evenly spaced, or their numbers from 0; None: those that
        the search found.
        """

        skip: Annotated[float, Field(gt=0, lt=1)] | tuple[int, ...] | None = None

    @classmethod
    def parts(cls, options: MethodOptions) -> tuple[str, ...]:
        """Layers that are named need no search."""
        return cls.needs if getattr(options, "skip", None) is None else ()

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        from specrig.heads.layer_skip import module as layer_skip
        from specrig.runtime.pruned import prune

        super().__init__(options, resources)
        target, skip = resources.target, self.options.skip
        if skip is None:
            skip = layer_skip.load(resources.head("layer_skip"), target)
        elif isinstance(skip, float):
            skip = layer_skip.spread(target.layers, skip)
            if not skip:
                raise DecodingError(
                    f"layer_skip: skip {self.options.skip} leaves out none of the target's {target.layers} layers; give a "
                    "larger share, or the numbers of layers"
                )
        self.model = prune(target, skip)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """The prompts' keys and values are the target's."""
        self.model.watch.clear()

    def advance(self, context: Context) -> Tensor:
        """Run each row's last token behind the context that the target has run; returns next-token logits `[B, V]`."""
        from specrig.runtime.device import on_device
        from specrig.runtime.pruned import follow

        follow(self.model, self.resources.target, [len(tokens) - 1 for tokens in context.tokens])
        logits = self.model.forward(on_device([tokens[-1:] for tokens in context.tokens], self.model.device))[0]
        self.model.keep([[] if done else [0] for done in context.done])
        return logits[:, -1]

    def observe(self, verdict: Verdict) -> None:
        """The target's pass has overwritten what was drafted."""
