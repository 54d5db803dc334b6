"""The vocabulary of decoding: what a drafter offers, what verification answers, what a generation leaves behind.

Shapes: B rows (sequences), n draft tokens a row, V vocabulary, D hidden width. torch is imported for type checkers only:
the planner reads drafters' options from here and must start in a blink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from specrig.decoding.sampling import Sampler

Acceptance = Literal["exact", "block", "typical"]
"""`exact` and `block` keep the target's distribution (greedy match at temperature 0; above, rejection sampling token by token, or
of a chain as a whole); `typical` does not."""


Criterion: TypeAlias = "Callable[[Tensor], Tensor]"
"""Typical acceptance: of distributions `[..., V]` the probability `[...]` that a token must exceed."""

Parents: TypeAlias = "Sequence[Sequence[int]] | Tensor"
"""`[B, n]`: of each token of a pass the index of its predecessor among them, before it; -1 hangs on the context."""


class DecodingError(ValueError):
    """A request the decoding core cannot serve; the message says why and what to change."""


@dataclass(slots=True)
class Draft:
    """Candidate continuations of every row, for one target pass.

    tokens: `[B, n]` int64, each row's nodes in topological order; the last context token (the root) is not among them.
    parents: None for a chain; else per row n indices into the row's nodes, -1 for the root; a tensor where the device grew the tree.
    probs: None for deterministic candidates (the draft distribution is one-hot); else `[B, m, V]`, where `probs[:, j]` is
        the distribution that the children of node j - 1 were drawn from (j = 0: children of the root). For a chain this
        simply is the distribution token j was drawn from. Siblings are drawn WITHOUT replacement, in node order.
    lengths: None if every row offers all its nodes; else how many of them count, from the first (the rest, probes aside, is
        padding). For chains the loop lowers them to `Context.depths`.
    width: most children of a node, where known.
    probes: trailing nodes that ride along to be read, not accepted (Lookahead's window).
    """

    tokens: Tensor
    parents: Parents | None = None
    probs: Tensor | None = None
    lengths: list[int] | None = None
    probes: int = 0
    width: int | None = None

    @property
    def offered(self) -> list[int]:
        """Per row how many of its nodes could be accepted."""
        B, n = self.tokens.shape
        return [n - self.probes] * B if self.lengths is None else self.lengths


@dataclass(slots=True)
class Verdict:
    """What the target made of a Draft.

    tokens: per row the tokens that follow the context: the accepted path and then one token of the target's own
        (correction after a rejection, bonus when a whole path was accepted). Stop rules have not been applied.
    paths: per row the accepted node indices, root to leaf.
    overlap, reached: per row Σ over reached positions of Σ_x min(p, q), and the count of those positions (alpha's parts).
    drafted, parents: per row the tokens of all the draft's nodes and the parents of these, as the host knows them; parents is None
        for a chain. A drafter that needs them takes them from here: to ask the device would make the host wait.
    logits: `[B, n + 1, V]`, hidden: `[B, n + 1, D]` of the target at the root and every node: what feature-based drafters
        learn from. `hidden` is the state after the final norm; `features` `[B, n + 1, FD]` joins the
        streams that the drafter asked for (`feature_layers`, F of them).
    """

    tokens: list[list[int]]
    paths: list[list[int]]
    overlap: list[float]
    reached: list[int]
    drafted: list[list[int]] = field(default_factory=list)
    parents: list[Sequence[int]] | None = None
    logits: Tensor | None = None
    hidden: Tensor | None = None
    features: Tensor | None = None


@dataclass(slots=True)
class Context:
    """What a drafter may see: every row's tokens (prompt and output so far), which rows are finished, how to sample.

    `depths[b]` is how many draft tokens row b can use: k, less at the end of the model's context, 0 for a finished row. A
    drafter that draws randomness draws none for row b beyond that, so that a row in a batch samples what it would alone.
    """

    tokens: list[list[int]]
    done: list[bool]
    sampler: Sampler
    depths: list[int]

    @property
    def batch_size(self) -> int:
        """B, finished rows included."""
        return len(self.tokens)


@dataclass(slots=True)
class Round:
    """One row's share of one target verification pass (see `measurement.records.Rounds` for the terms)."""

    drafted: int
    depth: int
    accepted: int
    emitted: int
    cut: bool = False


@dataclass(slots=True)
class Counts:
    """Totals of one row's rounds, from an engine that does not tell them one by one (`measurement.records.Counts`)."""

    rounds: int
    drafted: int | None = None
    accepted: int | None = None
    per_position: list[int] | None = None


@dataclass(slots=True)
class Generation:
    """One row's output and its accounting. Times are in seconds and, in a batch, the whole batch's."""

    tokens: list[int]
    stop: Literal["eos", "length"]
    rounds: list[Round]
    overlap: float
    reached: int
    ttft_s: float
    prefill_s: float
    decode_s: float
    target_passes: dict[int, tuple[int, float]] = field(default_factory=dict)
    draft_passes: dict[int, tuple[int, float]] = field(default_factory=dict)
    counts: Counts | None = None
    prefill_tokens: int = 1


class MethodOptions(BaseModel):
    """A method's own parameters with their defaults; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ChainOptions(MethodOptions):
    """acceptance: of a chain, above temperature 0. block (2403.10444) keeps the distribution too and accepts no fewer tokens."""

    acceptance: Literal["exact", "block"] = "exact"


class Resources(Protocol):
    """What an engine lends to a drafter. Each is loaded on first use."""

    @property
    def target(self) -> Any:
        """The target `CachedModel`: for its embedding, output head and configuration; never to be run by a drafter."""

    def model(self, name: str) -> Any:
        """A `CachedModel` of the drafter's own, e.g. `draft`."""

    def head(self, name: str) -> Any:
        """Folder of a trained head of the target (`medusa`, `eagle`)."""


class Drafter(ABC):
    """A method. One file in `drafters/` with one subclass whose `name` is the file's name.

    A drafter proposes and learns. It never touches the target's cache, sampling or timing. Its file must import without
    torch (import it inside the functions that use it): the planner reads `name`, `Options` and the flags below.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for tables and `specrig methods`: what it is, with the paper."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Trained parts besides the target: names of folders in the pair's models, e.g. ("draft",)."""
    uses_k: ClassVar[bool] = True
    """False where k means nothing (the baseline): such a method has one cell per task, with k = 0."""
    baseline_alone: ClassVar[bool] = False
    """True: the baseline decodes a batch's prompts one by one instead of in a batch of the same size."""
    feature_layers: tuple[int, ...] = ()
    """Residual streams to expose as `Verdict.features`, rising: j is the stream after j of the target's layers."""

    class Options(MethodOptions):
        """No options."""

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        self.options: Any = options
        self.resources = resources

    @classmethod
    def lossless(cls, options: MethodOptions) -> bool:
        """Whether the output keeps the target's distribution with these options."""
        return cls.acceptance(options) != "typical"

    @classmethod
    def acceptance(cls, options: MethodOptions) -> Acceptance:
        """The acceptance rule that the loop's verifier applies: the option of that name, where the method has one."""
        rule: Acceptance = getattr(options, "acceptance", "exact")
        return rule

    def criterion(self) -> Criterion | None:
        """The lossy rule that stands in for rejection sampling where `acceptance` is typical."""
        return None

    def begin(self, context: Context, hidden: Tensor, features: Tensor | None = None) -> None:  # noqa: B027
        """A new batch starts. `context.tokens` ends with the first generated token; `hidden` is `[B, P, D]` over the prompts,
        `features` likewise where the drafter has `feature_layers`.

        Rows shorter than P are left-aligned; row b's valid positions are its first `len(context.tokens[b]) - 1`.
        """

    @abstractmethod
    def propose(self, context: Context, k: int) -> Draft:
        """Offer candidates that continue every row; k >= 1 bounds the depth. Offering none (`[B, 0]`) is allowed."""

    def observe(self, verdict: Verdict) -> None:  # noqa: B027
        """Learn from the round. `context.tokens` already ends with the tokens that were kept."""

    def passes(self) -> dict[int, tuple[int, float]]:
        """Bare forward passes of the drafter's own model since `begin`: width -> (calls, seconds)."""
        return {}
