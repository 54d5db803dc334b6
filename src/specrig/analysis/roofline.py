"""Estimate the cost of a forward pass on a device that is not available, from the roofline of its weights.

A pass of n tokens reads the weights once and multiplies each of them with n vectors. It therefore takes at least
max(bytes read / bandwidth, 2 · weights · n / peak FLOP/s) seconds (Williams et al. 2009; for decoding: Leviathan
2211.17192, section 3.3). Launches, attention over a long context and communication between devices take additional
time.
"""

from __future__ import annotations

from dataclasses import dataclass

from specrig.models import facts
from specrig.models.facts.devices import Device, named_sizes

BYTES = {
    **dict.fromkeys(("float32", "fp32"), 4.0),
    **dict.fromkeys(("float16", "fp16", "bfloat16", "bf16"), 2.0),
    **dict.fromkeys(("fp8", "int8"), 1.0),
    **dict.fromkeys(("awq", "gptq"), 0.52),
}
"""Bytes per weight. AWQ and GPTQ: 4 bits, plus 2.5 bytes of scale and zero point per group of 128; their output head
stays in 16 bits.
"""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a model, as far as it decides what a pass must read. Sizes are numbers of weights.

    parameters: all weights. active: the weights that one token needs (fewer in a mixture of experts). embedding:
    vocabulary × width, the table of the output head. untied: whether the input has a table of its own, of which a pass
    reads only a few rows.
    routed_share: the share of the experts to which one token is sent. cache_bytes: bytes of the keys and values of one
    token, in 16 bits. layers, width: decoder layers and hidden size, 0 where not known.
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
        """The number of weights of one decoder layer; 0 where the shape is not known."""
        return (self.parameters - self.embedding * (1 + self.untied)) / self.layers if self.layers else 0.0

    def read(self, tokens: int) -> float:
        """The number of weights that a pass of `tokens` tokens reads, if each token chooses its experts at random."""
        experts = (self.parameters - self.active) / (1 - self.routed_share) if self.routed_share < 1 else 0.0
        missed = experts * (1 - self.routed_share) ** tokens
        return self.parameters - missed - (self.embedding if self.untied else 0.0)


def size_of(model: str) -> Size | None:
    """The size of a model, given by its hub id or by its name in a paper; None where it is not known or cannot decode."""
    found = model_facts(model)
    if found is None:
        parameters = named_sizes().get(model)
        return Size(parameters, parameters) if parameters else None
    return None if facts.no_decoder(found.name, found.config) else size_of_shape(found.shape)


def size_of_shape(shape: facts.Shape) -> Size:
    """The size of a model with this decoder-only architecture."""
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
    """The known facts of a model by its hub id, or by its name without the owner; None where it is not known."""
    short = (found for name, found in facts.models().items() if name.split("/")[-1] == model)
    return facts.known(model) or next(short, None)


def pass_bytes(size: Size, precision: str = "float16", tokens: int = 1, context: float = 0, batch: float = 1) -> float:
    """Bytes that one forward pass must read: the weights once, and keys and values in the precision of the activations.

    tokens: new tokens of each sequence. context: cached tokens of each sequence. batch: number of sequences. Raises
    KeyError for a precision that `BYTES` does not list.
    """
    width = BYTES[precision.lower()]
    activation = max(width, 2.0)
    weights = size.read(round(tokens * batch))
    head = min(size.embedding, weights)
    return (weights - head) * width + head * activation + batch * context * size.cache_bytes * activation / 2


def pass_seconds(
    size: Size, device: Device, precision: str = "float16", tokens: int = 1, context: int = 0, batch: int = 1
) -> float:
    """Seconds that one forward pass takes at least; parameters and errors are those of `pass_bytes`."""
    read = pass_bytes(size, precision, tokens, context, batch)
    computed = 2 * min(size.read(1), size.read(tokens * batch)) * tokens * batch
    return max(read / (device.bandwidth_gb_s * 1e9), computed / (device.half_tflops * 1e12))


def draft_cost(
    target: Size,
    draft: Size,
    device: Device,
    precision: str = "float16",
    draft_precision: str | None = None,
    batch: int = 1,
) -> float:
    """c: seconds of a one-token pass of the draft / seconds of a one-token pass of the target.

    draft_precision: None for the target's.
    """
    drafting = pass_seconds(draft, device, draft_precision or precision, batch=batch)
    return drafting / pass_seconds(target, device, precision, batch=batch)


def verify_cost(
    target: Size, device: Device | None, precision: str = "float16", tokens: int = 1, batch: int = 1
) -> float:
    """v(n): seconds of a pass of n = `tokens` tokens / seconds of a one-token pass of the same model.

    It is 1 as long as reading the weights takes longer than computing. Without a device only reading counts; v is then
    above 1 only for a mixture of experts, because more tokens read more experts.
    """
    if device is None:
        return target.read(tokens * batch) / target.read(batch)
    return pass_seconds(target, device, precision, tokens, batch=batch) / pass_seconds(
        target, device, precision, batch=batch
    )


def memory_gb(size: Size, precision: str = "float16", context: int = 4096, batch: int = 1) -> float:
    """Memory in GB (10⁹ bytes) for weights and key/value cache, without activations and the runtime's own memory."""
    width = BYTES[precision.lower()]
    return (size.parameters * width + batch * context * size.cache_bytes * max(width, 2.0) / 2) / 1e9
