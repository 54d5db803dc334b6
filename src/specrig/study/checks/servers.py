"""Checks of the servers that a study names: each runs its own cells, and each pair also has a server without
speculation.
"""

from __future__ import annotations

from typing import Any

from specrig.decoding.drafters import registry as methods
from specrig.study.problems import Problems
from specrig.study.study import Study

BASELINE = "autoregressive"


def check_servers(study: Study, problems: Problems) -> None:
    """Add a problem for unknown names, for two servers of the same cells or address, and for a pair without a baseline
    server.
    """
    seen: dict[tuple[Any, ...], int] = {}
    answers: dict[str, int] = {}
    for index, server in enumerate(study.servers):
        path: list[str | int] = ["servers", index]
        for key, known in (("engine", study.engines), ("pair", study.pairs), ("method", {*methods(), BASELINE})):
            if getattr(server, key) not in known:
                problems.unknown(
                    [*path, key], key, getattr(server, key), known, f"a server of another {key} is never asked"
                )
        same = server.engine, server.pair, server.method, server.k, server.variant
        other = seen.setdefault(same, index)
        if other != index:
            problems.key(
                path, f"servers[{other}] runs the same cells", "remove one, or give it its own k, variant or engine"
            )
        answer = repr((server.engine, server.pair, server.url.rstrip("/"), server.model, sorted(server.fields.items())))
        other = answers.setdefault(answer, index)
        if other != index:
            reason = f"servers[{other}] is the same server with the same fields: both would measure one thing"
            problems.key(path, reason, "give its own url, or `fields` that turn speculation on or off")
    for engine, pair in sorted({(server.engine, server.pair) for server in study.servers}):
        if (engine, pair, BASELINE, 0, "") not in seen:
            reason = f"no server of pair {pair!r} runs without speculation (engine {engine})"
            problems.key(["servers"], reason, f"add one with `method: {BASELINE}`: every speedup is against it")
