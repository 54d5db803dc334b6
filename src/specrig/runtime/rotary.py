"""Rotary tables that depend on the length of the text: longrope (Phi-3, Phi-4-mini, MiniCPM) has one table for texts up to a
length, the switch, and another for longer ones.

Keys in a cache keep the table that they were rotated with. What a model gives for a text that crosses the switch then
depends on how many tokens each pass ran, and a pass that verifies drafts runs several: no output would be the right one.
transformers' `generate` recomputes the cache at the switch for Phi-3, and for other architectures it mixes both tables.
So a text stays on one side of the switch, and the table of that side is held still for all of its passes, whatever
positions its drafts reach. A text that would cross is refused, when it is planned. Dynamic NTK changes its table with
every token beyond `max_position_embeddings`, which no text here passes. Linear, YaRN and Llama 3's tables are fixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specrig.runtime.types import DecodingError


def switch_of(config: Mapping[str, Any]) -> int | None:
    """The most tokens of a text for which a model of this config.json (of its language model) uses its first rotary table;
    None: it has one table.
    """
    for scaling in scalings(config):
        # Old configs of Phi-3 call it `su` or `yarn`; the second table's factors tell.
        if type_of(scaling) in ("longrope", "su") or scaling.get("long_factor"):
            most = config.get("max_position_embeddings")
            at = (
                config.get("original_max_position_embeddings")  # transformers puts it before the scaling's
                or scaling.get("original_max_position_embeddings")
                or most
            )
            if isinstance(at, int) and (most is None or at < most):
                return at
    return None


def crossing(at: int | None, prompt: int, new: int) -> str | None:
    """Why a text of `prompt` tokens and `new` ones cannot be decoded with a table that changes at `at`; None: it can."""
    if at is None or prompt > at or prompt + new - 1 <= at:  # the last token is never run
        return None
    return (
        f"a prompt of {prompt} tokens and {new} new ones cross position {at}, where the target's rotary table changes "
        f"(longrope), and what was cached before it would be wrong behind it: lower max_new_tokens to {at + 1 - prompt}, or "
        f"take prompts of more than {at} tokens"
    )


def check_side(at: int | None, prompts: list[int], new: int) -> None:
    """Raise DecodingError for a batch of prompts of these lengths that does not stay on one side of the switch."""
    for prompt in prompts:
        if (reason := crossing(at, prompt, new)) is not None:
            raise DecodingError(reason)
    if at is not None and min(prompts) <= at < max(prompts):
        raise DecodingError(
            f"prompts of {min(prompts)} and {max(prompts)} tokens in one batch lie on both sides of position {at}, where the "
            "target's rotary table changes (longrope): set batch_sizes: 1, or leave the longer or the shorter ones out"
        )


def scalings(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a config.json says of how its rotary tables are scaled, for all layers or one for each type of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        scaling = config.get(key)
        if isinstance(scaling, dict):
            yield scaling
            yield from (entry for entry in scaling.values() if isinstance(entry, dict))


def type_of(scaling: Mapping[str, Any]) -> str:
    """The name of a way of scaling, e.g. `yarn`."""
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


class HeldTables:
    """The rotary modules of a model, whose tables are held at one side of the switch.

    transformers chooses the table in every pass, by the largest position in it. Raises DecodingError for a model whose
    choice cannot be taken away from it.
    """

    def __init__(self, modules: list[Any], at: int) -> None:
        self.modules, self.at, self.long = [(module, module.rope_type) for module in modules], at, False
        self._hold(long=True)
        if not self.modules or not all(self._holds(module) for module, _ in self.modules):
            raise DecodingError(
                f"its rotary table changes at position {at} in its own way, which cannot be held still for a text: take a "
                "model with one table"
            )
        self._hold(long=False)

    def choose(self, length: int) -> bool:
        """Hold the table of texts of this length; returns whether it is another one than before."""
        if (long := length > self.at) == self.long:
            return False
        self._hold(long=long)
        return True

    def _hold(self, *, long: bool) -> None:
        for module, kind in self.modules:
            module.rope_type = kind
            _table(module, self.at if long else 0)
            module.rope_type = "default"
        self.long = long

    def _holds(self, module: Any) -> bool:
        alone, below = _table(module, 3), _table(module, 3, self.at + 1)
        return bool((alone[0] == below[0]).all())


def rotary_modules(model: Any) -> list[Any]:
    """The modules of a loaded model that make its rotary tables."""
    return [part for part in model.modules() if isinstance(getattr(part, "rope_type", None), str)]


def _table(module: Any, *positions: int) -> Any:
    """The table of these positions, `[n, d]`."""
    import torch

    like = torch.zeros(1, 1, 1, device=module.inv_freq.device)
    return module(like, torch.tensor([positions], device=like.device))[0][0]
