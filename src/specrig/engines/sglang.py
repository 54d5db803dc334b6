"""SGLang: its server as a child process, or a running one (`servers:` with `engine: sglang`), over its native HTTP API.

Flags, fields and defaults are those of SGLang's documentation, "Speculative Decoding" and "Native API"
(docs.sglang.io/advanced_features/speculative_decoding.html), version 0.5: `/generate` with `input_ids`,
`sampling_params` and `stream`; `output_ids` of a stream are cumulative, or the new ones under
`--incremental-streaming-output`; `meta_info` holds `completion_tokens`, `finish_reason` and, where it speculates,
`spec_verify_ct` with the drafted and accepted tokens. Speculation and k are fixed when the server starts.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Counts
from specrig.engines.base import EngineError, foreign, lacks, lacks_layers, not_a_chain, too_old
from specrig.engines.head_copies import check_loadable, understood
from specrig.engines.http import counters
from specrig.engines.http.client import Completion, HttpEngine
from specrig.engines.http.launch import ServerProcess, free_port
from specrig.http_client import Client
from specrig.models.endpoint import Endpoint, endpoint_of
from specrig.models.gate import check_pair, check_vocabulary
from specrig.models.pair import PairFiles
from specrig.settings import Settings

INFO = ("version", "model_path", "dtype", "tp_size", "quantization", "attention_backend", "disable_radix_cache")
ACCEPTED = ("spec_num_correct_drafts", "spec_accept_token_num", "spec_accepted_drafts")
DRAFTED = ("spec_num_proposed_drafts", "spec_draft_token_num", "spec_proposed_drafts")
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Names of one count in SGLang's versions, newest first; likewise `DRAFTED` and `ACCEPTED`."""
ADAPTS = ("EAGLE", "EAGLE3")
"""Algorithms whose chains `--speculative-adaptive` lengthens and shortens; of others SGLang leaves k as it is."""


class Sglang(HttpEngine):
    """Starts one server at a time, so baseline and method cannot alternate."""

    name = "sglang"
    paired = False
    splits = True
    untested = "its client is tested against a small server that speaks SGLang's API, never yet against SGLang on a GPU"
    differences: ClassVar[Mapping[str, str]] = {
        "ngram": "SGLang looks suffixes of any length up in one trie over all prompts so far, not the last n tokens in "
        "one prompt",
        "eagle2": "SGLang keeps the given number of draft tokens of k levels; ties of confidence may fall otherwise",
    }

    class Options(Settings):
        """How SGLang drafts."""

        adaptive: bool = False
        """SGLang drafts more or fewer tokens than k by what was accepted (`--speculative-adaptive`): chains of `eagle` and
        `eagle3`; other methods draft k."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        check_pair(pair)
        if pair.draft is not None:
            check_vocabulary(pair.target, pair.draft, pair.target_revision, pair.draft_revision)
        super().__init__(pair, device=device, threads=threads)
        self._server: ServerProcess | None = None
        self._running: list[str] = []
        self._url = ""
        self._incremental: dict[str, bool] = {}
        self._counted: dict[str, counters.Counters] = {}
        self._counting = Lock()

    @classmethod
    def missing(cls) -> str | None:
        """See `Engine`. SGLang needs a GPU: its start on the measuring machine shows whether there is one."""
        if importlib.util.find_spec("sglang") is not None:
            return None
        return "SGLang is not installed: pip install 'specrig[sglang]', in an environment of its own"

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """Methods without an algorithm in SGLang, and options without a flag."""
        if refused := lacks("SGLang", cls.name, cell) or not_a_chain("SGLang", cls.name, cell):
            return refused
        known, defaults = foreign(cls.name)[cell.method], methods()[cell.method].Options().model_dump()
        changed = {name for name, value in cell.options.items() if value != defaults[name]}
        if cell.variant and not known.renamed and (not known.options or changed - known.options.keys()):
            return (
                f"SGLang has no flags for the options of {cell.method} ({cell.variant}); leave them at their defaults"
            )
        return None

    @classmethod
    def refuses_model(cls, method: str, config: dict[str, Any]) -> str | None:
        """Targets without layers of their own to draft with, where SGLang has no others."""
        return lacks_layers("SGLang", cls.name, method, config)

    def arguments(self, cell: Cell) -> list[str]:
        """Flags of `sglang.launch_server` for a cell, without the address.

        `--speculative-num-draft-tokens` is k + 1, as SGLang sets it itself for topk 1: a chain of k is verified with
        the token before it. The prefix cache is off: a prompt measured twice pays for its prefill twice.
        """
        pair = self.pair
        found = ["--model-path", pair.target, "--dtype", pair.dtype, "--stream-interval", "1", "--disable-radix-cache"]
        flags = {
            "--revision": pair.target_revision,
            "--tp-size": pair.tensor_parallel if pair.tensor_parallel > 1 else None,
            "--quantization": pair.quantization,
            "--mem-fraction-static": pair.gpu_memory_utilization,
            "--context-length": pair.max_model_len,
        }
        found += [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
        known = foreign(self.name)[cell.method]
        part = known.part
        if not known.method:
            return found
        found += ["--speculative-algorithm", known.method]
        if not part and not known.carried:
            chain = f"--speculative-num-draft-tokens {cell.k + 1} --speculative-ngram-max-bfs-breadth 1"
            return [*found, *chain.split()]
        if part:
            found += self._drafts(cell, part)
        own = {name: cell.options[name] for name in known.renamed if name in cell.options}
        width, nodes = own.get("top_k", 1), own.get("nodes", cell.k)
        for flag, value in {"--speculative-num-steps": "{k}", **known.keys}.items():
            found += [flag, str(value).format(k=cell.k)]
        found += ["--speculative-eagle-topk", str(width)]
        if self.options.adaptive and known.method in ADAPTS and width == 1:
            _check_installed("speculative_adaptive")
            found.append("--speculative-adaptive")
        return [*found, "--speculative-num-draft-tokens", str(nodes + 1)]

    def _drafts(self, cell: Cell, part: str) -> list[str]:
        """Flags with the draft or head of a cell. Raises EngineError where the pair has none that SGLang can use."""
        pair = self.pair
        if part not in pair.sources:
            raise EngineError(
                f"pair {pair.name}: {cell.method} needs a {part} and the pair names none; fill its row in pairs.tsv"
            )
        check_loadable("sglang", pair.name, part, Path(pair.sources[part]))
        source = understood("sglang", cell.method, Path(pair.sources[part]))
        found = ["--speculative-draft-model-path", str(source)]
        return found + (["--speculative-draft-model-revision", pair.revisions[part]] if part in pair.revisions else [])

    def ready(self, cell: Cell) -> None:
        """Use the server that the study names, else start one for the cell in place of the last."""
        endpoint = endpoint_of(cell, self.pair.servers)
        if endpoint is not None:
            self._url = self.client(endpoint.url, endpoint).url
            return
        arguments = self.arguments(cell)
        if self._server is None or not self._server.alive or self._running != arguments:
            self._stop()
            port = free_port()
            self._url = f"http://127.0.0.1:{port}"
            command = [*self.command(), *arguments, "--host", "127.0.0.1", "--port", str(port)]
            self._server, self._running = ServerProcess(command, self._url, health="/health_generate"), arguments

    @property
    def beside(self) -> bool:
        """Only servers that the study names: one that this engine starts takes the GPU's memory."""
        return bool(self.pair.servers)

    def ended(self, cell: Cell, within_s: float = 0.2) -> str:
        """See `HttpEngine`."""
        own = self._server if endpoint_of(cell, self.pair.servers) is None else None
        return own.ended(f"while it answered for {cell.name}") if own is not None and own.died(within_s) else ""

    def command(self) -> list[str]:
        """What starts the server."""
        return [sys.executable, "-m", "sglang.launch_server"]

    def request_completion(
        self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int, alone: bool
    ) -> Completion:
        """See `HttpEngine`."""
        endpoint = endpoint_of(cell, self.pair.servers)
        sampling: dict[str, Any] = {"temperature": cell.temperature, "max_new_tokens": max_new_tokens}
        if cell.temperature > 0:
            sampling["sampling_seed"] = seed  # heeded under --enable-deterministic-inference only
        body = {
            "input_ids": list(prompt),
            "sampling_params": sampling,
            "stream": True,
            **(endpoint.fields if endpoint else {}),
        }
        reply = complete(
            self.client(self._url, endpoint),
            body,
            incremental=endpoint is not None and self._streams_new(endpoint),
            patient=alone,
        )
        if found := reply.counts:
            with self._counting:
                counted = self._counted.setdefault(cell.name, counters.Counters())
                counted[counters.DRAFTS, -1] += found.rounds
                counted[counters.DRAFTED, -1] += found.drafted or 0
                # A round emits a token more than it accepted.
                accepted = len(reply.tokens) - 1 - found.rounds if found.accepted is None else found.accepted
                counted[counters.ACCEPTED, -1] += accepted
        return reply

    def counters(self, cell: Cell) -> counters.Counters:
        """The sums of what its answers say, each of its own request."""
        return counters.Counters(self._counted.get(cell.name, {}))

    def described(self, server: Endpoint) -> dict[str, Any]:
        """See `info`."""
        return info(self.client(server.url, server))

    def _streams_new(self, endpoint: Endpoint) -> bool:
        """Whether a named server was started with `--incremental-streaming-output` (formerly `--stream-output`)."""
        if endpoint.url not in self._incremental:
            found = server_info(self.client(endpoint.url, endpoint))
            flags = found.get("incremental_streaming_output"), found.get("stream_output")
            self._incremental[endpoint.url] = any(flags)
        return self._incremental[endpoint.url]

    def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """End the server, with all it started."""
        super().close()
        self._stop()


def _check_installed(field: str) -> None:
    """Raise EngineError for a flag that the installed SGLang does not have; where none is installed, it is not started
    either.
    """
    try:
        from sglang.srt.server_args import ServerArgs
    except ImportError:
        return
    if field not in {entry.name for entry in fields(ServerArgs)}:
        raise too_old("SGLang", [f"--{field.replace('_', '-')}"])


def complete(client: Client, body: dict[str, Any], *, incremental: bool = False, patient: bool = False) -> Completion:
    """Stream one completion of `/generate`; incremental: events hold the new ids only. patient: see `Client.post`.

    Raises EngineError unless ids, counts and finish reason are there and agree.
    """
    reply = Completion()
    meta: dict[str, Any] = {}
    for seconds, event in client.stream("/generate", body, patient=patient):
        meta, ids = event.get("meta_info") or {}, event.get("output_ids")
        if ids is None:
            raise EngineError(f"{client.url}: its events hold no output_ids; use SGLang 0.5 or later")
        reply.tokens = [*reply.tokens, *ids] if incremental else list(ids)
        reply.note_arrival(seconds)
    finish = meta.get("finish_reason") or {}
    kind = finish.get("type") if isinstance(finish, dict) else finish
    if meta.get("cached_tokens"):
        reply.notes.append(
            "answers began with a prompt that the server had cached, so times to the first token lack it"
        )
    if kind not in ("stop", "length"):
        message = finish.get("message", "") if isinstance(finish, dict) else ""
        raise EngineError(f"{client.url}: the answer ended with finish reason {kind!r} {message}".rstrip())
    reply.stop = "eos" if kind == "stop" else "length"
    completed, matched = (
        meta.get("completion_tokens", len(reply.tokens)),
        finish.get("matched") if isinstance(finish, dict) else None,
    )
    if kind == "stop" and isinstance(matched, int) and completed == len(reply.tokens) + 1:
        reply.tokens.append(matched)  # counted and matched, but trimmed from the ids
        reply.arrivals[-1] = (reply.arrivals[-1][0], completed)
    for key, ours in (("completion_tokens", len(reply.tokens)), ("prompt_tokens", len(body["input_ids"]))):
        if meta.get(key, ours) != ours:
            raise EngineError(
                f"{client.url}: its meta_info says {meta[key]} {key.replace('_', ' ')}, its stream and request {ours}"
            )
    reply.counts = counts(meta)
    return reply


def counts(meta: Mapping[str, Any]) -> Counts | None:
    """A request's totals from its `meta_info`; None if they are missing or it did not speculate."""
    passes = meta.get("spec_verify_ct")
    if not passes:
        return None
    drafted, accepted, histogram = (next((meta[name] for name in names if meta.get(name) is not None), None)
                                    for names in (DRAFTED, ACCEPTED, HISTOGRAM))  # fmt: skip
    # The histogram counts rounds by accepted drafts: position i was accepted by all rounds that accepted i or more.
    per_position = [sum(histogram[position:]) for position in range(1, len(histogram))] if histogram else None
    return Counts(int(passes), drafted, accepted, per_position or None)


def server_info(client: Client) -> dict[str, Any]:
    """A server's `/server_info`, formerly `/get_server_info`; empty if it has neither."""
    return client.get_json("/server_info") or client.get_json("/get_server_info")


def info(client: Client) -> dict[str, Any]:
    """The entries of `server_info` on which figures depend."""
    found = server_info(client)
    return {"url": client.url, **{key: found[key] for key in found if key in INFO or key.startswith("speculative_")}}
