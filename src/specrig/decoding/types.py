"""The types of decoding: what a drafter offers, what verification returns, and what a generation returns.

Shapes: B rows (sequences), n draft tokens a row, V vocabulary, D hidden width. torch is imported for type checkers
only, because the planner imports this file and must start without torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from specrig.decoding.sampling import Sampler
    from specrig.heads.base import Foreign
    from specrig.runtime.types import Parents

Acceptance = Literal["exact", "block", "traversal", "typical"]
"""How drafted tokens are accepted. `exact` (greedy match at temperature 0, above it rejection sampling token by token),
`block` (rejection sampling of a chain as a whole) and `traversal` (of a tree's paths as wholes) keep the target's
distribution; `typical` does not.
"""
Family = Literal["copying", "draft model", "heads", "one pass", "none"]
"""What drafts: text that stands already, a model of its own, heads on the target, one pass for all tokens, or nothing.
"""

LEAST_TEMPERATURE = 1e-6
"""Lowest temperature above 0 that is sampled at: logits divided by less are no longer finite numbers."""


def _a_number(temperature: Any) -> Any:
    if temperature != temperature:  # NaN
        raise ValueError("a temperature is a finite number from 0 to 10")
    return temperature


def _not_too_low(temperature: float) -> float:
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ValueError(f"a temperature is 0 (greedy decoding) or at least {LEAST_TEMPERATURE:g}")
    return temperature


Temperature = Annotated[float, Field(ge=0, le=10), BeforeValidator(_a_number), AfterValidator(_not_too_low)]
"""A temperature in a config or a request."""

Criterion: TypeAlias = "Callable[[Tensor], Tensor]"
"""Typical acceptance: from distributions `[..., V]` to the probability `[...]` that a token must exceed to be accepted.
"""

TokenCallback: TypeAlias = "Callable[[int, Sequence[int], Round | None], None]"
"""Called with (row, the tokens it just emitted, their round); the round is None for the first token, from prefill."""


@dataclass(slots=True)
class Draft:
    """Candidate continuations of every row, for one target pass.

    tokens: `[B, n]` int64, each row's nodes in topological order. The last context token (the root) is not one of them.
    parents: None for a chain; else per row n indices into the row's nodes, -1 for the root; a tensor where the device
        grew the tree.
    probs: None for deterministic candidates (the draft distribution is one-hot); else `[B, m, V]`, where `probs[:, j]`
        is the distribution that the children of node j - 1 were drawn from (j = 0: children of the root). For a chain
        that is the distribution that token j was drawn from. Siblings are drawn WITHOUT replacement, in node order.
    rows: `tokens` as lists, where the host has made them; None: it has not. Who changes `tokens` drops these.
    vocabulary: None where the last axis of `probs` is the target's vocabulary; else `[Vd]` int64, the target's token id
        of each entry; all other tokens have probability 0. (`tokens` are always the target's ids.)
    lengths: None if every row offers all its nodes; else how many nodes each row offers, from the first. Nodes behind
        them are padding or probes. For chains the loop lowers the lengths to `Context.depths`.
    probes: how many nodes at the end are run only so that the drafter can read their logits (Lookahead's window). None
        of them is accepted.
    width: the largest number of children of any node, where known.
    """

    tokens: Tensor
    parents: Parents | None = None
    probs: Tensor | None = None
    lengths: list[int] | None = None
    probes: int = 0
    width: int | None = None
    vocabulary: Tensor | None = None
    rows: list[list[int]] | None = None

    @property
    def offered(self) -> list[int]:
        """How many of its nodes each row offers."""
        B, n = self.tokens.shape
        return [n - self.probes] * B if self.lengths is None else self.lengths


@dataclass(slots=True)
class Verdict:
    """The target's verdict on a Draft.

    tokens: per row the tokens that follow the context: the accepted path, then one token of the target's own
        (correction after a rejection, bonus when a whole path was accepted). The loop then applies the stop rules.
    paths: per row the accepted node indices, root to leaf.
    overlap, reached: per row Σ_x min(p, q), summed over the positions that were judged, and the number of these. Their
        ratio is alpha.
    drafted, parents: per row the tokens and parents of all nodes, on the host; parents is None for a chain. A drafter
        takes them from here: reading them from the device would make the host wait.
    choices: at temperature 0, per row the target's most likely token at the root and at every node; else empty.
    logits, hidden: `[B, n + 1, V]` and, after the final norm, `[B, n + 1, D]` of the target at the root and every node.
    aux_hidden_states: `[B, n + 1, F D]`, the target's hidden states at the drafter's F `aux_layers`, joined.
    """

    tokens: list[list[int]]
    paths: list[list[int]]
    overlap: list[float]
    reached: list[int]
    drafted: list[list[int]] = field(default_factory=list)
    parents: list[Sequence[int]] | None = None
    choices: list[list[int]] = field(default_factory=list)
    logits: Tensor | None = None
    hidden: Tensor | None = None
    aux_hidden_states: Tensor | None = None


@dataclass(slots=True)
class Context:
    """What a drafter may see: every row's tokens (prompt and output so far), which rows are finished, and the sampler.

    `depths[b]` is how many draft tokens row b can use: k, less near the end of the model's context, 0 for a finished
    row. A drafter that samples draws at most that many tokens deep for row b, so that a row samples the same in a batch
    as it does alone.
    """

    tokens: list[list[int]]
    done: list[bool]
    sampler: Sampler
    depths: list[int]

    @property
    def batch_size(self) -> int:
        """B, finished rows included."""
        return len(self.tokens)


def chain_draft(rows: Sequence[Sequence[int]], device: Any, **known: Any) -> Draft:
    """A draft of chains that the host knows: each row's tokens. known: other fields of the Draft."""
    from specrig.runtime.device import filled, on_device

    lengths = [len(row) for row in rows]
    n = max(lengths)
    listed = filled(rows, n)
    return Draft(on_device(listed, device).view(len(rows), n), lengths=lengths, rows=listed, **known)


def tree_draft(trees: Sequence[tuple[list[int], list[int]]], device: Any, **known: Any) -> Draft:
    """A draft of trees that the host knows: each row's tokens and parents. known: other fields of the Draft."""
    n = max(len(tokens) for tokens, _ in trees)
    parents = [own + [-1] * (n - len(own)) for _, own in trees] if n else None
    return chain_draft([tokens for tokens, _ in trees], device, parents=parents, **known)


def empty_draft(context: Context) -> Draft:
    """A draft without nodes: the round is a plain decoding step."""
    import torch

    return Draft(torch.empty((context.batch_size, 0), dtype=torch.long, device=context.sampler.device))


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
    """Totals of one row's rounds, from an engine that reports no single rounds (`measurement.records.Counts`)."""

    rounds: int
    drafted: int | None = None
    accepted: int | None = None
    per_position: list[int] | None = None


@dataclass(slots=True)
class Generation:
    """One row's output and its accounting. Times are in seconds; in a batch they are those of the whole batch.

    ttft_s: until the first token. prefill_s: until the drafter is ready too. decode_s: of all rounds. round_s: of each
    round of the batch; they add up to decode_s. Empty where the engine reports totals only.
    target_passes, draft_passes: width in tokens a row -> (calls, seconds).
    prefill_tokens: output tokens that are out before `decode_s` begins. notes: what its figures suffer from.
    """

    tokens: list[int]
    stop: Literal["eos", "length"]
    rounds: list[Round]
    overlap: float
    reached: int
    ttft_s: float
    prefill_s: float
    decode_s: float
    round_s: list[float] = field(default_factory=list)
    target_passes: dict[int, tuple[int, float]] = field(default_factory=dict)
    draft_passes: dict[int, tuple[int, float]] = field(default_factory=dict)
    counts: Counts | None = None
    prefill_tokens: int = 1
    notes: list[str] = field(default_factory=list)


class MethodOptions(BaseModel):
    """A method's own parameters with their defaults; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ChainOptions(MethodOptions):
    """acceptance: of a chain, above temperature 0. block (2403.10444) keeps the distribution too and accepts no fewer
    tokens.
    """

    acceptance: Literal["exact", "block"] = "exact"


class OwnVocabulary(MethodOptions):
    """vocabularies: how a draft of another vocabulary drafts: intersection (among tokens that both have), strings (text,
    spelled in the target's tokens), same (not at all), auto: intersection where the vocabularies differ.
    """

    vocabularies: Literal["auto", "same", "intersection", "strings"] = "auto"


class Tokens(Protocol):
    """How a target's tokens and its draft's stand for each other (`models.vocabularies.TokenMap`), in new numbers of
    the draft's tokens.

    order: the draft's id of each. common: the target's ids of the first of them, which both have; empty by strings.
    """

    @property
    def order(self) -> Sequence[int]:
        """The draft's ids, in the order of the new numbers."""

    @property
    def common(self) -> Sequence[int]:
        """The target's ids of the first new numbers."""

    def read(self, tokens: Iterable[int]) -> list[int]:
        """The target's tokens as the draft reads them, one of its tokens at least for each."""

    def spelled(self, drafted: Iterable[int]) -> list[int]:
        """The text of drafted tokens in the target's tokens."""


class Resources(Protocol):
    """What an engine offers to a drafter. Each is loaded on first use."""

    @property
    def target(self) -> Any:
        """The target `CachedModel`. A drafter may read its embedding, LM head and configuration, but never run it.

        It may run a model made of some of its layers (`runtime.pruned`), which leaves the target's context as it is.
        """

    def pass_costs(self) -> Sequence[float]:
        """What target passes of 1, 2, ... tokens a row cost here, in plain passes, for the rows of the batch that runs.

        They are measured once for each number of rows, so a drafter asks for them in `begin`.
        """

    def model(self, name: str) -> Any:
        """A `CachedModel` of the drafter's own, e.g. `draft`, in the target's ids."""

    def tokens(self, vocabularies: str) -> Tokens | None:
        """How the target's tokens and those of a draft of another vocabulary stand for each other, by `intersection` or
        `strings` (`auto`: intersection); None: they are the same, or have to be.
        """

    def numbered(self, name: str, tokens: Tokens, slots_per_token: float) -> Any:
        """The model of that name, its tokens numbered as the map says, with so many cache slots for each token of the
        target's output.
        """

    def head(self, name: str) -> Any:
        """Folder of a trained head of the target (`medusa`, `eagle`)."""

    def remote(
        self,
        name: str,
        rows: int,
        *,
        latency_s: float,
        half: bool,
        tokens: Tokens | None = None,
        slots_per_token: float = 1.0,
    ) -> RemoteModel:
        """A model of the drafter's own that a service runs, with room for `rows` rows.

        latency_s: seconds that are added to each round trip. half: probabilities are rounded to half precision, drawn
        from like that, and sent. tokens, slots_per_token: as in `numbered`; None: it speaks the target's ids.
        """


class RemoteModel(Protocol):
    """A draft model behind a network. It keeps a cache of each row's text, so that a call sends only what is new."""

    def begin(self, rows: Sequence[Sequence[int]]) -> None:
        """A new batch: the service runs these texts."""

    def propose(
        self,
        rows: Sequence[Sequence[int]],
        depths: Sequence[int],
        temperature: float,
        uniforms: Sequence[Sequence[float]],
    ) -> tuple[list[list[int]], Any]:
        """Continue row b by `depths[b]` tokens, drawn with the uniforms `[B, n]`, n the largest depth (none at
        temperature 0).

        Returns the tokens and the distributions that they were drawn from: a float32 array `[B, n, V]`, None at
        temperature 0. Behind a row's depth both mean nothing.
        """

    def passes(self) -> dict[int, tuple[int, float]]:
        """The model's bare forward passes since `begin`: see `Drafter.passes`."""


@dataclass(frozen=True, slots=True)
class PaperRound:
    """The size of a method's head and of its verification with the defaults of its paper.

    width: tokens that one target pass verifies. passes: passes of the head a round. layers, squares, outputs: what the
    head consists of, in decoder layers, hidden × hidden matrices and output heads of the target. tree: the width is that
    of the tree, whatever k is; else a source that states k is taken as a chain.
    """

    width: int
    passes: int = 0
    layers: float = 0.0
    squares: float = 0.0
    outputs: float = 0.0
    tree: bool = False

    @property
    def depth(self) -> int | None:
        """Tokens on the longest drafted path; None if `passes` does not say."""
        return self.passes if self.passes > 1 else None


class Drafter(ABC):
    """A method. One file in `drafters/` with one subclass whose `name` is the file's name.

    A drafter proposes and learns. It never touches the target's cache, sampling or timing. Its file must import without
    torch (import it inside the functions that use it): the planner reads `name`, `Options` and the flags below.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for tables and `specrig methods`: what it is, with the paper."""
    family: ClassVar[Family] = "copying"
    """What drafts; figures give each family a colour."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Trained parts besides the target: names of folders in the pair's models, e.g. ("draft",)."""
    uses_k: ClassVar[bool] = True
    """False where k means nothing (the baseline): such a method has one cell per task, with k = 0."""
    baseline_alone: ClassVar[bool] = False
    """True: the baseline decodes a batch's prompts one by one instead of in a batch of the same size."""
    translates: ClassVar[bool] = False
    """Whether all that it proposes is its draft model's, which may then have a vocabulary of its own
    (`decoding.vocabularies`)."""
    foreign: ClassVar[Mapping[str, Foreign]] = {}
    """Another engine -> how it runs the method. Not inherited; a head of the same name has this in its recipe."""
    paper: ClassVar[PaperRound | None] = None
    """A round as the literature runs it, for figures that are judged or predicted unmeasured. Not inherited."""
    former_defaults: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Option -> defaults that it had before: records of that time are no contradiction to a study that leaves it out."""
    aux_layers: tuple[int, ...] = ()
    """The layers whose hidden states it reads as `Verdict.aux_hidden_states`, rising: j is the state after j layers."""

    class Options(MethodOptions):
        """No options."""

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        self.options: Any = options
        self.resources = resources

    @classmethod
    def parts(cls, options: MethodOptions) -> tuple[str, ...]:
        """Those of `needs` that it does need with these options."""
        return cls.needs

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
        """The lossy rule that replaces rejection sampling where `acceptance` is typical."""
        return None

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:  # noqa: B027
        """A new batch starts; each row of `context.tokens` is its prompt and the first generated token.

        hidden: the target's states over the prompts, `[B, P, D]`, P the longest prompt. aux_hidden_states: likewise
        `[B, P, F D]`, where the drafter has `aux_layers`. Rows are left-aligned: row b's valid positions are its first
        `len(context.tokens[b]) - 1`.
        """

    @abstractmethod
    def propose(self, context: Context, k: int) -> Draft:
        """Candidates that continue every row, at most k >= 1 tokens deep. A draft may be empty (tokens `[B, 0]`)."""

    def observe(self, verdict: Verdict) -> None:  # noqa: B027
        """Learn from the round's verdict. `context.tokens` already ends with the tokens that the round emitted."""

    def passes(self) -> dict[int, tuple[int, float]]:
        """Forward passes of the drafter's own models since `begin`: width in tokens a row -> (calls, seconds)."""
        return {}
