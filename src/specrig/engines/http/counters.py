"""A server's own speculation counters, from its `/metrics` page in Prometheus' text format, summed over labels.

vLLM names them `vllm:spec_decode_num_drafts_total`, `…_num_draft_tokens_total`, `…_num_accepted_tokens_total` and
`…_num_accepted_tokens_per_pos_total{position="0"}` (docs.vllm.ai, "Production metrics"); llama.cpp's server has the
same names behind `llamacpp:`.
"""

from __future__ import annotations

import re
from collections import Counter

from specrig.decoding.types import Counts
from specrig.http_client import Client

SAMPLE = re.compile(r"^(?:\w+:)?(\w+?)(?:_total)?(?:\{(.*)\})?\s+([0-9.eE+-]+)(?:\s+\d+)?$")
POSITION = re.compile(r'\bpos(?:ition)?="(\d+)"')
DRAFTS = "spec_decode_num_drafts"
DRAFTED = "spec_decode_num_draft_tokens"
ACCEPTED = "spec_decode_num_accepted_tokens"
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
GENERATED = "generation_tokens"

Counters = Counter[tuple[str, int]]
"""(name, position or -1) -> value."""


def read(client: Client) -> Counters:
    """What a server's `/metrics` page has counted; empty where there is no such page."""
    page = client.get_or_none("/metrics")
    return parse(page.text) if page is not None else Counter()


def parse(text: str) -> Counters:
    """The counters above on a page; empty for a page without them."""
    found: Counters = Counter()
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match and match[1] in (DRAFTS, DRAFTED, ACCEPTED, PER_POSITION, GENERATED):
            position = POSITION.search(match[2] or "")
            found[match[1], int(position[1]) if position and match[1] == PER_POSITION else -1] += round(float(match[3]))
    return found


def counts(before: Counters, after: Counters, tokens: int, events: int = 0) -> Counts | None:
    """The counts of one answer of `tokens` tokens, from the counters before and after it; None without drafts counted.

    The number of passes is the largest of three lower bounds. (1) The counted drafts: vLLM counts a pass only if it had
    one. (2) Decoded tokens less accepted ones: a pass emits its accepted tokens and one more; too low where the output
    was cut behind accepted tokens. (3) `events` with tokens, less prefill's, where a pass sends at most one. llama.cpp
    sends one a token, so this says nothing where accepted tokens came one by one.
    """
    if (DRAFTS, -1) not in after:
        return None
    drafts, drafted, accepted = (after[name, -1] - before[name, -1] for name in (DRAFTS, DRAFTED, ACCEPTED))
    positions = sorted(position for name, position in after if name == PER_POSITION and position >= 0)
    taken = [after[PER_POSITION, position] - before[PER_POSITION, position] for position in positions]
    passes = events - 1 if events < tokens or not accepted else 0
    return Counts(max(drafts, tokens - 1 - accepted, passes), drafted, accepted, taken or None)
