"""The messages between a client and a draft or target service: one safetensors file each.

The tensor `message` holds the message as UTF-8 JSON (`RowsRequest` or `RowsOutput`). The tensor `q.<row>`, `[n, V]` in
float32 or float16, holds the distributions that a row's draft tokens were drawn from, where it has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError

from specrig.decoding.types import Temperature
from specrig.runtime.types import Passes

if TYPE_CHECKING:
    from numpy.typing import NDArray

MEDIA_TYPE = "application/octet-stream"
PATH = "/v1/rows"
MAX_DRAFT_TOKENS = 6
"""Most tokens that a coordinator requests in a round."""
WIDEST_DRAFT = 16
"""Most tokens that a service drafts or verifies in a round: the largest k of a study."""

Id = Annotated[int, Field(ge=0, lt=1 << 64)]
Position = Annotated[int, Field(ge=0, lt=1 << 32)]
Uniform = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Probabilities = Annotated[Any, Field(exclude=True)]
"""numpy array `[n, V]` or None; it travels as a tensor of its own."""


CONFIG = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class ProtocolError(ValueError):
    """Bytes that are no message, or a row that no service can run; the message says where and why."""


@dataclass(slots=True)
class RowRequest:
    """One row of a batch. Its text is what the service has cached of its session, cut to `num_cached` tokens, and then
    `tokens`.

    depth: how many tokens a draft service drafts; 0: it only runs the text. draft: the tokens that a target service
    verifies. uniforms: one for each token to draft, or for each to verify and one more; none at temperature 0. q:
    `[n, V]`, what each token of `draft` was drawn from; None: nothing was drawn.
    """

    __pydantic_config__ = CONFIG
    session: Id
    num_cached: Position
    tokens: Annotated[list[Position], Field(min_length=1)]
    depth: Annotated[int, Field(ge=0, le=WIDEST_DRAFT)] = 0
    draft: Annotated[list[Position], Field(max_length=WIDEST_DRAFT)] = field(default_factory=list)
    temperature: Temperature = 0.0
    uniforms: Annotated[list[Uniform], Field(max_length=WIDEST_DRAFT + 1)] = field(default_factory=list)
    q: Probabilities = None


@dataclass(slots=True)
class RowOutput:
    """One row of an answer. known: False where the service does not hold the session; then send the whole text.

    tokens: the drafted ones; or the accepted ones and then one of the target's own.
    """

    __pydantic_config__ = CONFIG
    known: bool
    tokens: list[int] = field(default_factory=list)
    q: Probabilities = None


@dataclass(slots=True)
class RowsRequest:
    """half: the draft service draws from, and sends, probabilities in float16. ended: sessions to forget."""

    __pydantic_config__ = CONFIG
    rows: list[RowRequest]
    half: bool = False
    ended: list[Id] = field(default_factory=list)


@dataclass(slots=True)
class RowsOutput:
    """passes: those of the model since its last answer."""

    __pydantic_config__ = CONFIG
    rows: list[RowOutput]
    passes: Passes = field(default_factory=dict)


def pack(message: RowsRequest | RowsOutput) -> bytes:
    """The message as bytes."""
    import numpy as np
    from safetensors.numpy import save

    kind: Any = type(message)
    text = _adapter(kind).dump_json(message)
    rows: Sequence[Any] = message.rows
    tensors = {f"q.{at}": np.ascontiguousarray(row.q) for at, row in enumerate(rows) if row.q is not None}
    return save({"message": np.frombuffer(text, np.uint8), **tensors})


def unpack_request(body: bytes) -> RowsRequest:
    """The request in a body of any origin. Raises ProtocolError."""
    request: RowsRequest = _unpack(RowsRequest, body)
    for number, row in enumerate(request.rows):
        if row.q is not None and (row.q.shape[0] != len(row.draft) or not _can_be_drawn_from(row.q)):
            raise ProtocolError(
                f"row {number} has probabilities that nothing can be drawn from: negative, not finite, all zero, or "
                "not one distribution a draft token"
            )
    return request


def unpack_output(body: bytes) -> RowsOutput:
    """The answer in a body. Raises ProtocolError."""
    output: RowsOutput = _unpack(RowsOutput, body)
    return output


def distributions(q: NDArray[Any]) -> NDArray[Any]:
    """What tokens were drawn from, `[n, V]` float32, from the weights that were sent.

    Rounded weights do not add up to 1; `draw` divides by their sum.
    """
    import numpy as np

    if q.dtype != np.float16:
        return q
    weights = q.astype(np.float32)
    return weights / weights.sum(-1, keepdims=True)


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _unpack(kind: type, body: bytes) -> Any:
    import numpy as np
    from safetensors.numpy import load

    try:
        tensors = load(body)
        message = _adapter(kind).validate_json(tensors.pop("message").tobytes(), strict=True)
    except ValidationError as error:
        issue = error.errors(include_url=False, include_input=False)[0]
        where, what = ".".join(map(str, issue["loc"])), issue["msg"].removeprefix("Value error, ")
        raise ProtocolError(f"{where[:80]}: {what[:200]}") from error
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the body is no safetensors file with a message ({str(error)[:100]})") from error
    for number, row in enumerate(message.rows):
        row.q = tensors.pop(f"q.{number}", None)
        if row.q is not None and (row.q.ndim != 2 or row.q.dtype not in (np.float32, np.float16)):
            raise ProtocolError(f"row {number}: probabilities are a matrix of float32 or float16")
    if tensors:
        raise ProtocolError(f"a tensor {min(tensors)[:40]!r} belongs to no row")
    return message


def _can_be_drawn_from(q: NDArray[Any]) -> bool:
    """Whether all of the distributions `[n, V]` have finite weights from 0 up, and not only zeros."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        totals = q.sum(-1, dtype=np.float32)
    return not q.size or bool(q.min() >= 0 and totals.min() > 0 and totals.max() < np.inf)  # a NaN fails each of them
