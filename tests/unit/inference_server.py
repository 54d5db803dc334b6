"""A real, small inference server for tests: the native engine behind SGLang's and OpenAI's streaming APIs.

As a script it takes the flags that `sglang.launch_server` takes. Requests may carry faults to provoke (`die_after`,
`refuse`, …).
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from specrig.cell import Cell
from specrig.decoding.drafters import registry
from specrig.engines.native import Native
from specrig.models.pair import PairFiles

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
PAUSE_S = 0.002
"""Between two rounds of a stream."""
ALGORITHMS = {None: "autoregressive", "NGRAM": "ngram", "STANDALONE": "draft_model"}


class InferenceServer(ThreadingHTTPServer):
    """Decodes with one method at one k, as a real server does, and counts as vLLM does."""

    daemon_threads = True

    def __init__(
        self, engine: Native, method: str, k: int, *, port: int = 0, incremental: bool = False, metrics: bool = True
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.engine, self.method, self.k = engine, method, k
        self.incremental, self.metrics = incremental, metrics
        self.lock = threading.Lock()
        self.counters: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []

    def handle_error(self, *_: object) -> None:
        """Clients that gave up are no news."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def run(self) -> InferenceServer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def decode(self, prompt: list[int], limit: int, temperature: float, seed: int) -> Any:
        options = registry()[self.method].Options().model_dump()
        cell = Cell(
            engine="native", pair="p", method=self.method, k=self.k, task="t", temperature=temperature, options=options
        )  # fmt: skip
        with self.lock:
            generation = self.engine.generate(cell, [prompt], max_new_tokens=limit, seeds=[seed])[0]
            drafting = [entry for entry in generation.rounds if entry.drafted]
            self.counters["generation_tokens_total"] += len(generation.tokens)
            if self.k:
                self.counters["spec_decode_num_drafts_total"] += len(drafting)
                self.counters["spec_decode_num_draft_tokens_total"] += sum(entry.drafted for entry in drafting)
                self.counters["spec_decode_num_accepted_tokens_total"] += sum(entry.accepted for entry in drafting)
                for position in range(self.k):
                    name = f'spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}'
                    self.counters[name] += sum(entry.accepted > position for entry in drafting)
        return generation


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: InferenceServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        pages: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "stories"}]},
            "/version": {"version": "1.2.3"},
            "/health_generate": {},
            "/server_info": {
                "version": "0.5.9",
                "incremental_streaming_output": server.incremental,
                "speculative_num_steps": server.k,
            },
        }
        if self.path == "/metrics" and server.metrics:
            lines = ["# HELP vllm:spec_decode_num_drafts_total Drafts", "vllm:spec_decode_num_drafts_created 1.7e9"]
            for name, value in server.counters.items():
                label = name if "{" in name else name + '{engine="0",model_name="a b"}'
                lines.append(f"vllm:{label} {float(value)}")
            self.answer(200, "\n".join(lines).encode(), "text/plain")
        elif self.path in pages:
            self.answer(200, json.dumps(pages[self.path]).encode())
        else:
            self.answer(404, b'{"detail": "Not Found"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append({**body, "authorization": self.headers.get("Authorization")})
        if body.get("refuse"):
            self.answer(400, b'{"error": {"message": "prompt is too long"}}')
            return
        if body.get("stall_every") and len(self.server.bodies) % body["stall_every"] == 0:
            time.sleep(body["stall_s"])
        events = self.sglang(body) if self.path == "/generate" else self.openai(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(body.get("comments", 0)):
            self.chunk(b": still at it\n\n")
            time.sleep(0.1)
        for number, event in enumerate(events):
            if number == body.get("die_after"):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.chunk(f"data: {json.dumps(event)}\n\n".encode())
            time.sleep(PAUSE_S)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def answer(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        self.wfile.flush()

    def pieces(self, generation: Any, whole: bool) -> Iterator[list[int]]:
        """The tokens as they would be streamed: the first alone, then round by round."""
        if whole:
            yield generation.tokens
            return
        yield generation.tokens[:1]
        at = 1
        for entry in generation.rounds:
            yield generation.tokens[at : at + entry.emitted]
            at += entry.emitted

    def openai(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        generation = self.server.decode(body["prompt"], body["max_tokens"], body["temperature"], body["seed"])
        self.server.counters["generation_tokens_total"] += body.get("others", 0)
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": len(generation.tokens) + body.get("miscount", 0),
        }
        for ids in self.pieces(generation, body.get("whole", False)):
            text = self.server.engine.decode(ids)
            choice = {"index": 0, "text": text, "finish_reason": None}
            if body.get("return_token_ids") and not body.get("no_ids"):
                choice["token_ids"] = ids
            yield {"choices": [choice]}
        finish = {"eos": "stop", "length": "length"}[generation.stop]
        yield {"choices": [{"index": 0, "text": "", "finish_reason": body.get("finish", finish)}]}
        yield {"choices": [], "usage": usage}

    def sglang(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        params = body["sampling_params"]
        generation = self.server.decode(
            body["input_ids"], params["max_new_tokens"], params["temperature"], params.get("sampling_seed", 0)
        )
        so_far: list[int] = []
        pieces = list(self.pieces(generation, False))
        for number, ids in enumerate(pieces, 1):
            so_far = so_far + ids
            meta = {"prompt_tokens": len(body["input_ids"]), "completion_tokens": len(so_far), "finish_reason": None}
            if number == len(pieces):
                stop = generation.stop == "eos"
                meta["finish_reason"] = {"type": "stop", "matched": so_far[-1]} if stop else {"type": "length"}
                if self.server.k:
                    rounds = generation.rounds
                    histogram = Counter(entry.accepted for entry in rounds)
                    meta |= {
                        "spec_verify_ct": len(rounds),
                        "spec_accept_token_num": sum(entry.accepted for entry in rounds),
                        "spec_draft_token_num": sum(entry.drafted for entry in rounds),
                        "spec_accept_histogram": [histogram[number] for number in range(max(histogram) + 1)],
                        "spec_accept_length": len(so_far) / len(rounds),
                    }
            yield {"text": "", "output_ids": ids if self.server.incremental else so_far, "meta_info": meta}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--stream-interval", type=int)
    parser.add_argument("--disable-radix-cache", action="store_true")
    parser.add_argument("--speculative-algorithm", choices=[name for name in ALGORITHMS if name])
    parser.add_argument("--speculative-draft-model-path")
    parser.add_argument("--speculative-num-steps", type=int)
    parser.add_argument("--speculative-eagle-topk", type=int)
    parser.add_argument("--speculative-num-draft-tokens", type=int, default=1)
    parser.add_argument("--speculative-ngram-max-bfs-breadth", type=int)
    arguments = parser.parse_args()
    # A worker of its own session, as engines have them: closing must find it too.
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(f"worker {worker.pid}", flush=True)
    pair = PairFiles("p", arguments.model_path, arguments.speculative_draft_model_path, dtype=arguments.dtype)
    method = ALGORITHMS[arguments.speculative_algorithm]
    k = arguments.speculative_num_draft_tokens - 1
    InferenceServer(Native(pair, threads=1), method, k, port=arguments.port).serve_forever()


if __name__ == "__main__":
    main()
