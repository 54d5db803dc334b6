"""llama.cpp: its server, from the package xllamacpp, in child processes.

Fields of `/completion` and of its `timings` are those of llama.cpp's documentation ("llama.cpp HTTP Server").
Speculation is fixed when a server starts. So each method, k and set of options has a server beside the baseline's, and
they alternate prompt by prompt. A waiting server costs no time, and its weights are shared (one mapped file).
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import psutil
from pydantic import Field

from specrig.cell import Cell, digest
from specrig.decoding.types import Counts
from specrig.engines.base import EngineError, foreign, lacks, not_a_chain
from specrig.engines.head_copies import check_loadable
from specrig.engines.http import counters
from specrig.engines.http.client import Completion
from specrig.engines.http.launch import LaunchingEngine, ServerProcess
from specrig.engines.llamacpp import serve
from specrig.http_client import Client
from specrig.models import gate, gguf, hub, needs, to_gguf
from specrig.models.pair import PairFiles
from specrig.models.weights import weights_of
from specrig.settings import Settings

GREEDY = (
    "above temperature 0 llama.cpp drafts greedily and keeps a draft token where its own sample is the same one, "
    "unless draft_sampling is probabilistic"
)

REFUSED = {
    "mtp": "llama.cpp drafts with MTP layers (draft-mtp) that a target's GGUF file holds, and no architecture with such "
    "layers is written or read as GGUF here"
}
"""Method that llama.cpp has -> why it does not run it here."""


class LlamaCpp(LaunchingEngine):
    """Writes the pair as GGUF files on first use and keeps one server for each (method, k, options, batch size)."""

    name = "llamacpp"
    untested = "its CPU build alone was tried, not those for GPUs"
    differences: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("draft_model", "eagle3", "dflash", "dspark"), GREEDY),
        "ngram": "llama.cpp looks up exactly the last n tokens, the native method shorter suffixes too, down to min_n; "
        "and it drafts only where at least n tokens follow the match",
    }

    class Options(Settings):
        """How llama.cpp runs a pair."""

        weights: Literal["file", "pair"] = "file"
        """Weights of a target that comes as a GGUF file. file: as they are, quantized; pair: dequantized to the pair's
        dtype, as in the other engines."""
        ngram: Literal["simple", "map-k", "map-k4v"] = "simple"
        """llama.cpp's n-gram type for `ngram`. `ngram-cache` is left out: without a file of n-grams it drafted nothing.
        `ngram-mod` is left out: all requests share its n-grams, so a prompt that is measured twice finds its own answer.
        """
        draft_sampling: Literal["greedy", "probabilistic"] = "greedy"
        """How drafts are drawn above temperature 0."""
        p_min: float = Field(0.0, ge=0, le=1)
        """A draft ends before a token that the draft gives less than this probability (llama.cpp's `--draft-p-min`); 0:
        every draft has k tokens."""
        context: int = Field(8192, ge=1)
        """Positions for each prompt and its output, at most; fewer where the model has fewer."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        self.weights = weights_of(pair)
        self.eos = self.weights.eos
        self._folder = tempfile.TemporaryDirectory(prefix="specrig-gguf-")
        self._key = ""
        self._peak_mb = 0.0

    @classmethod
    def missing(cls) -> str | None:
        """See `Engine`."""
        if importlib.util.find_spec("xllamacpp") is not None and importlib.util.find_spec("gguf") is not None:
            return None
        return "llama.cpp is not installed: pip install 'specrig[llamacpp]'"

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """Methods that llama.cpp lacks, trees, and lossy acceptance."""
        return (
            REFUSED.get(cell.method) or lacks("llama.cpp", cls.name, cell) or not_a_chain("llama.cpp", cls.name, cell)
        )

    @classmethod
    def refuses_model(cls, method: str, config: dict[str, Any]) -> str | None:
        """Architectures that are not written as GGUF."""
        return needs.unreadable(config) or to_gguf.refuses(config)

    @classmethod
    def refuses_other_vocabulary(cls, cell: Cell) -> str | None:
        """llama.cpp translates by text, and the files that are written here name tokens by their numbers."""
        return "llama.cpp translates drafts by their text, which the GGUF files written here leave out"

    @classmethod
    def precision(cls, pair: PairFiles) -> str:
        """See `Engine`."""
        options = cls.Options.model_validate(pair.engine_options.get(cls.name, {}))
        file = gguf.source_file(pair.target) if options.weights == "file" else None
        return pair.dtype if file is None else gguf.stored_type(file)

    @classmethod
    def build(cls, options: Mapping[str, Any]) -> str:
        """Package and version."""
        from importlib.metadata import version

        return f"xllamacpp {version('xllamacpp')}" if cls.missing() is None else ""

    def settings(self, cell: Cell) -> dict[str, Any]:
        """The settings of `serve` for a cell, without the port. Writes the files that they name."""
        pair, known = self.pair, foreign(self.name)[cell.method]
        speculation: dict[str, Any] | None = None
        if known.method == "ngram":
            speculation = {"type": f"ngram-{self.options.ngram}", "n": cell.options.get("n", 3)}
        elif known.method:
            probabilistic = self.options.draft_sampling == "probabilistic" and cell.temperature > 0
            speculation = {"type": known.method, "draft": self._file(known.part), "probabilistic": probabilistic}
            speculation["p_min"] = self.options.p_min
        return {
            "model": self._file("target"),
            "context": min(filter(None, (gate.context(pair), pair.max_model_len, self.options.context))),
            "vocabulary": gate.config(pair.target, pair.target_revision)["vocab_size"],
            "slots": cell.batch_size,
            "threads": self.thread_count(),
            "device": self.device,
            "exact_cache": self.precision(pair) == "float32",
            "speculation": speculation and {**speculation, "k": cell.k},
        }

    def _file(self, part: str) -> str:
        """The GGUF file of a part of the pair, written on first use. Raises EngineError where the pair lacks the part."""
        pair, out = self.pair, Path(self._folder.name, f"{part}.gguf")
        source = pair.sources.get(part)
        if source is None:
            raise EngineError(
                f"pair {pair.name}: it names no {part}, which this method needs; fill its column in pairs.tsv"
            )
        if not out.exists():
            file = gguf.source_file(source) if self.options.weights == "file" else None
            if (write_head := to_gguf.WRITERS.get(part)) is not None:
                head = hub.fetch_folder(source, pair.revisions.get(part))
                check_loadable(self.name, pair.name, part, head)
                write_head(head, gate.config(pair.target, pair.target_revision), out, pair.dtype)
            elif file is not None:
                to_gguf.rename_tokens(file, out)
            else:
                to_gguf.write_model(self.weights.model(part, "cpu"), out, pair.dtype)
        return str(out)

    def ready(self, cell: Cell) -> None:
        """Start the cell's server where it does not run."""
        settings = self.settings(cell)
        self._key = digest(settings)
        if self._key in self._servers and not self._servers[self._key][0].alive:
            self._servers.pop(self._key)[0].close()
        if self._key not in self._servers:
            server, url = serve.start(settings)
            self._servers[self._key] = server, self.client(url)

    def request_completion(
        self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int, alone: bool
    ) -> Completion:
        """See `HttpEngine`. Nothing is streamed: the times are the server's own."""
        server, client = self._servers[self._key]
        body = self._body(cell, prompt, max_new_tokens, seed)
        before = counters.read(client) if alone else None
        # All of the batch is silent until it is done: a second more for each token, so that a slow model is not hung.
        response = client.post("/completion", body, more_s=max_new_tokens * cell.batch_size)
        after = counters.read(client) if alone else None
        try:
            self._peak_mb = psutil.Process(server.process.pid).memory_info().rss / 2**20
        except psutil.Error as error:
            raise EngineError(f"{client.url}: {error}") from error
        reply = completion_of(response, client.url)
        if not foreign(self.name)[cell.method].method:
            return reply
        if before is not None and after is not None:
            reply.counts = counters.counts(before, after, len(reply.tokens))
        else:
            drafted, accepted = (response["timings"].get(name, 0) for name in ("draft_n", "draft_n_accepted"))
            reply.counts = Counts(len(reply.tokens) - 1 - accepted, drafted, accepted)
        return reply

    def stream(self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int) -> Completion:
        """See `HttpEngine`."""
        client, reply, last = self._servers[self._key][1], Completion(), {}
        body = self._body(cell, prompt, max_new_tokens, seed) | {"stream": True}
        for seconds, event in client.stream("/completion", body):
            reply.tokens += event.get("tokens", [])
            if (last := event).get("stop_type") == "word":
                reply.stop = "eos"
                reply.tokens += [token for token in self.eos if to_gguf.token(token) == event["stopping_word"]]
            reply.note_arrival(seconds)
        if not last.get("stop"):
            raise EngineError(f"{client.url}: the stream ended before the answer did; has the server died?")
        if last.get("tokens_predicted") != len(reply.tokens):
            raise EngineError(
                f"{client.url}: it says {last.get('tokens_predicted')} tokens, its stream {len(reply.tokens)}"
            )
        return reply

    def _server(self, cell: Cell) -> tuple[ServerProcess, Client]:
        """See `LaunchingEngine`; of the cell that was made ready last."""
        return self._servers[self._key]

    def _body(self, cell: Cell, prompt: Sequence[int], max_new_tokens: int, seed: int) -> dict[str, Any]:
        return {
            "prompt": list(prompt),
            "n_predict": max_new_tokens,
            "samplers": ["temperature"],  # without llama.cpp's default ones
            "temperature": cell.temperature,
            "seed": seed,
            "stop": [to_gguf.token(token) for token in sorted(self.eos)],
            "return_tokens": True,
            "cache_prompt": False,
        }

    def peak_memory_mb(self) -> float:
        """Resident memory of the cell's server after its last answer; its weights are shared with the other servers."""
        return self._peak_mb

    def close(self) -> None:
        """End the servers and remove the files."""
        super().close()
        self._folder.cleanup()


def completion_of(response: dict[str, Any], url: str) -> Completion:
    """The completion in an answer of `/completion`. Raises EngineError where it ended for no reason of ours."""
    tokens, timings = [int(token) for token in response["tokens"]], response["timings"]
    if response["stop_type"] not in ("limit", "word") or response["truncated"]:
        raise EngineError(
            f"{url}: the answer ended with stop type {response['stop_type']!r}, neither at a token that ends it nor at "
            "its limit"
        )
    first, rest = timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000
    arrivals = [(first, 1), (first + rest, len(tokens))]
    return Completion(tokens, arrivals[: len(tokens)], "eos" if response["stop_type"] == "word" else "length")
