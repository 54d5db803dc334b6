"""What a forward pass should cost on a device that is not at hand: the roofline of its weights.

A pass of n tokens reads the weights once and multiplies each with n vectors, so it takes
max(bytes read / bandwidth, 2 · weights · n / peak FLOP/s) (Williams et al. 2009; for decoding: Leviathan 2211.17192, section 3.3).
It is a lower bound of the time: launches, attention over a long context and communication between devices come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from specrig.models import facts
from specrig.models.facts.devices import Device, named_sizes

BYTES = {
    "float32": 4.0,
    "fp32": 4.0,
    "float16": 2.0,
    "fp16": 2.0,
    "bfloat16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "awq": 0.52,
}
"""Bytes a weight. AWQ: 4 bits, and 2.5 bytes of scale and zero point for a group of 128; its output head stays in 16 bits."""


@dataclass(frozen=True, slots=True)
class Size:
    """What of a model a pass reads, in weights.

    parameters: all of them. active: those that one token needs (fewer in a mixture of experts). embedding: vocabulary × width, the
    table of the output head. untied: whether the input has a table of its own, of which a pass reads a few rows only.
    routed_share: share of the experts that one token is sent to. cache_bytes: keys and values of one token, 16 bits.
    layers, width: decoder layers and hidden size, 0 where not known.
    """

    parameters: float
    active: float
    embedding: float = 0.0
    untied: bool = False
    routed_share: float = 1.0
    cache_bytes: float = 0.0
    layers: int = 0
    width: int = 0

    @property
    def layer(self) -> float:
        """Weights of one decoder layer; 0 where the shape is not known."""
        return (self.parameters - self.embedding * (1 + self.untied)) / self.layers if self.layers else 0.0

    def read(self, tokens: int) -> float:
        """Weights that a pass of so many tokens reads: with experts chosen at random, each token misses (1 - share) of them."""
        experts = (self.parameters - self.active) / (1 - self.routed_share) if self.routed_share < 1 else 0.0
        missed = experts * (1 - self.routed_share) ** tokens
        return self.parameters - missed - (self.embedding if self.untied else 0.0)


def size_of(model: str) -> Size | None:
    """Size of a hub id or of a model that a paper names; None for one that is not known."""
    found = model_facts(model)
    if found is None:
        parameters = named_sizes().get(model)
        return Size(parameters, parameters) if parameters else None
    return None if facts.no_decoder(found.name, found.config) else size_of_shape(found.shape)


def size_of_shape(shape: facts.Shape) -> Size:
    """Size of a decoder-only architecture."""
    config = shape.config
    return Size(
        parameters=shape.parameters,
        active=shape.active_parameters,
        embedding=config["vocab_size"] * config["hidden_size"],
        untied=not config.get("tie_word_embeddings"),
        routed_share=config.get("num_experts_per_tok", 1) / config.get("num_local_experts", 1),
        cache_bytes=shape.cache_bytes(1, "float16"),
        layers=shape.layers,
        width=config["hidden_size"],
    )


def model_facts(model: str) -> facts.ModelFacts | None:
    """Facts of a hub id, also by the short name that old models had before owners were part of it."""
    short = (found for name, found in facts.models().items() if name.split("/")[-1] == model)
    return facts.known(model) or next(short, None)


def pass_bytes(size: Size, precision: str = "float16", tokens: int = 1, context: float = 0, batch: float = 1) -> float:
    """Bytes that a forward pass of `tokens` new tokens for each of `batch` sequences of `context` cached ones must read.

    The weights once, and keys and values in the precision of the activations. Raises KeyError for a precision that `BYTES` does not list.
    """
    width = BYTES[precision.lower()]
    activation = max(width, 2.0)
    weights = size.read(round(tokens * batch))
    head = min(size.embedding, weights)
    return (weights - head) * width + head * activation + batch * context * size.cache_bytes * activation / 2


def pass_seconds(
    size: Size, device: Device, precision: str = "float16", tokens: int = 1, context: int = 0, batch: int = 1
) -> float:
    """Seconds of one forward pass of `tokens` new tokens for each of `batch` sequences of `context` cached ones.

    Raises KeyError for a precision that `BYTES` does not list.
    """
    read = pass_bytes(size, precision, tokens, context, batch)
    computed = 2 * min(size.read(1), size.read(tokens * batch)) * tokens * batch
    return max(read / (device.bandwidth_gb_s * 1e9), computed / (device.half_tflops * 1e12))


def draft_cost(target: Size, draft: Size, device: Device, precision: str = "float16", batch: int = 1) -> float:
    """c: a one-token pass of the draft, in one-token passes of the target."""
    return pass_seconds(draft, device, precision, batch=batch) / pass_seconds(target, device, precision, batch=batch)


def verify_cost(target: Size, device: Device | None, precision: str = "float16", tokens: int = 1, batch: int = 1) -> float:
    """v(n): a pass of n tokens, in one-token passes of the same model: 1 while reading the weights takes longest.

    Without a device only the reading counts, so v is above 1 for a mixture of experts alone.
    """
    if device is None:
        return target.read(tokens * batch) / target.read(batch)
    return pass_seconds(target, device, precision, tokens, batch=batch) / pass_seconds(target, device, precision, batch=batch)


def memory_gb(size: Size, precision: str = "float16", context: int = 4096, batch: int = 1) -> float:
    """GB (10⁹ bytes) of weights and key/value cache; activations and the runtime's own memory come on top."""
    return (size.parameters * BYTES[precision.lower()] + batch * context * size.cache_bytes) / 1e9
