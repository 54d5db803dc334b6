"""Heads that each draft one depth: what Medusa's and Hydra's have in common as checkpoints and in passes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from specrig.heads import contents, markov
from specrig.heads.checkpoint import Checkpoint, check_vocabulary, normal
from specrig.heads.markov import MarkovBias
from specrig.heads.measured import rates
from specrig.runtime.device import Stopwatch
from specrig.runtime.model import CachedModel
from specrig.runtime.replay import Replay, eager
from specrig.runtime.types import DecodingError


class DepthHeads(Checkpoint):
    """K heads on one model, with a stopwatch over their passes. Vd: how many tokens they can draft."""

    keys: ClassVar[tuple[str, ...]]
    """What config.json must say."""

    def __init__(self, config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
        self._check(config, tensors, target)
        self.config = config
        drafted = tensors.get("token_map")
        self.vocabulary: Tensor | None = None if drafted is None else drafted.to(target.device)
        """`[Vd]` the target's tokens that the logits are of; None: of all."""
        weights = {
            name: tensor.to(target.device, target.dtype) for name, tensor in tensors.items() if name != "token_map"
        }
        self.target = target
        self.count: int = config.num_heads
        self.take_weights(weights)
        self.markov = MarkovBias.of(weights, slice(self.tokens))
        """Of the token before; None: there is none."""
        self.accuracy: list[list[float]] = rates(config, "accuracy")
        """Per head, by rank: how often the token that came was its choice of that rank, given the tokens that it reads.
        Empty where nobody has measured.
        """
        self.watch = Stopwatch(target.device)
        self.replay = Replay(target.device) if target.device.type == "cuda" else None

    def _check(self, config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
        if missing := [name for name in self.keys if getattr(config, name, None) is None]:
            raise DecodingError(contents.lacks(self.kind, missing))
        self.check(config, tensors, target)
        if (drafted := tensors.get("token_map")) is not None:
            check_vocabulary(drafted, target.vocab_size, "token_map")

    @abstractmethod
    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the layers from the checkpoint's tensors."""

    @property
    def tokens(self) -> int:
        """Vd, how many tokens they can draft."""
        return self.target.vocab_size if self.vocabulary is None else len(self.vocabulary)

    def run(self, key: int, function: Callable[[Tensor], tuple[Tensor]], inputs: Tensor, width: int) -> Tensor:
        """The output of a pass; on a GPU it is recorded under `key` and replayed."""
        call = eager(function) if self.replay is None else self.replay.recorded(key, function, [inputs])
        mark = self.watch.start()
        (output,) = call([inputs])
        self.watch.stop(width, mark)
        return output

    def pass_totals(self) -> dict[int, tuple[int, float]]:
        """Bare passes: their width -> (calls, seconds)."""
        return self.watch.totals()

    @classmethod
    def random_tensors(cls, config: Any, seed: int, deviation: float = 0.1) -> dict[str, Tensor]:
        """See `Checkpoint`: all normal."""
        return normal(cls.shapes(config), seed, deviation)

    @classmethod
    def make_config(
        cls,
        *,
        hidden: int,
        vocabulary: int,
        heads: int,
        drafted: int | None = None,
        markov_rank: int = 0,
        measured: dict[str, Any] | None = None,
        **own: Any,
    ) -> Any:
        """The configuration of K = `heads` heads; `drafted`: so many tokens can be drafted, None: all; `measured`: see
        `accuracy`; own: further keys.
        """
        return cls.config_class(
            hidden_size=hidden,
            vocab_size=vocabulary,
            truncated_vocab_size=drafted or vocabulary,
            num_heads=heads,
            **own,
            **markov.noted(markov_rank),
            **({"specrig": measured} if measured else {}),
        )
