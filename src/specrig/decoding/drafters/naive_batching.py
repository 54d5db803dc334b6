"""Naive batching: the target alone, several prompts in one pass. The throughput that any batched speculation has to
beat.

Its baseline decodes the same prompts one after another, so its speedup is what batching by itself is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from specrig.decoding.drafters.autoregressive import Autoregressive
from specrig.heads.base import Foreign


class NaiveBatching(Autoregressive):
    """Autoregressive decoding whose cells use the study's batch sizes, held against batch size 1."""

    name = "naive_batching"
    summary = "target alone, several prompts in one batch: the throughput baseline"
    baseline_alone = True
    foreign: ClassVar[Mapping[str, Foreign]] = dict.fromkeys(("llamacpp", "transformers", "vllm"), Foreign(""))
