"""The verb `specrig serve`: draft, target and coordinator as services."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

serve = typer.Typer(no_args_is_help=True, help="Serve draft, target and coordinator over HTTP (docs/services.md).")

Model = Annotated[str, typer.Argument(help="Model folder or hub id")]
Revision = Annotated[str | None, typer.Option(help="Commit, branch or tag on the hub")]
Dtype = Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Precision of the weights")]
Device = Annotated[Literal["cpu", "cuda"], typer.Option(help="Where the model runs")]
Host = Annotated[
    str, typer.Option(help="Address to listen at; an address beyond this machine needs a key in SPECRIG_API_KEY")
]
Port = Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen at")]
Batch = Annotated[int, typer.Option("--max-num-seqs", "--batch", min=1, help="Maximum number of sequences in a pass")]
Sessions = Annotated[
    int | None, typer.Option("--sessions", min=1, help="Maximum number of texts in its cache. Default: --max-num-seqs")
]
Context = Annotated[int, typer.Option("--max-model-len", "--context", min=16, help="Maximum tokens of a text")]
Queue = Annotated[
    int, typer.Option(min=1, help="Maximum number of waiting requests; more are refused with Retry-After")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all")]
Vocabulary = Annotated[
    int | None,
    typer.Option(
        "--vocab-size", "--vocabulary", min=2, help="Number of the target's tokens. Default: those of the tokenizer"
    ),
]
CommonWith = Annotated[
    str | None, typer.Option(help="Target of another vocabulary: draft only tokens that it has too, in common numbers")
]
CommonRevision = Annotated[str | None, typer.Option(help="Commit, branch or tag of --common-with on the hub")]
Random = Annotated[bool, typer.Option("--random-weights", help="Random weights of the model's shapes")]


@serve.command()
def draft(
    model: Model, host: Host = "127.0.0.1", port: Port = 8002, revision: Revision = None, dtype: Dtype = "float32",
    device: Device = "cpu", batch: Batch = 32, sessions: Sessions = None, context: Context = 4096, queue: Queue = 1024,
    threads: Threads = None, vocabulary: Vocabulary = None, random_weights: Random = False,
    common_with: CommonWith = None, common_revision: CommonRevision = None,
) -> None:  # fmt: skip
    """Serve a draft model, which continues texts by up to 16 tokens a request."""
    from specrig.services.worker_app import Serving, serve_model

    serving = Serving(
        model, revision, dtype, device, batch, sessions, context, queue, threads, vocabulary, random_weights,
        common_with, common_revision,
    )  # fmt: skip
    serve_model("draft", serving, host, port)


@serve.command()
def target(
    model: Model, host: Host = "127.0.0.1", port: Port = 8001, revision: Revision = None, dtype: Dtype = "float32",
    device: Device = "cpu", batch: Batch = 8, sessions: Sessions = None, context: Context = 4096, queue: Queue = 1024,
    threads: Threads = None, random_weights: Random = False,
) -> None:  # fmt: skip
    """Serve a target model, which verifies drafts and adds its own token."""
    from specrig.services.worker_app import Serving, serve_model

    held = sessions or 2 * batch
    serving = Serving(model, revision, dtype, device, batch, held, context, queue, threads, None, random_weights)
    serve_model("target", serving, host, port)


@serve.command()
def coordinator(
    target: Annotated[str, typer.Option(help="Address of the target service")] = "http://127.0.0.1:8001",
    draft: Annotated[str | None, typer.Option(help="Address of the draft service")] = "http://127.0.0.1:8002",
    tokenizer: Annotated[
        str | None, typer.Option(help="Model folder or hub id. Default: the target service's model")
    ] = None,
    k: Annotated[
        int, typer.Option(min=0, max=6, help="Tokens drafted a round; `draft_tokens` of a request overrides it")
    ] = 4,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    queue: Queue = 256,
    draft_timeout_ms: Annotated[int, typer.Option(min=1, help="Later drafts are not used")] = 1000,
    target_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds that the target service may take for an answer")
    ] = 60.0,
    precision: Annotated[
        Literal["float32", "float16"], typer.Option(help="Precision of the draft's probabilities")
    ] = "float32",
) -> None:
    """Serve OpenAI's completions and chat API with a target service and, if available, a draft service."""
    from specrig.services.coordinator_app import CoordinatorSettings, serve_coordinator

    settings = CoordinatorSettings(
        target, draft, tokenizer, k, queue, draft_timeout_ms / 1e3, target_timeout_s, precision == "float16"
    )
    serve_coordinator(settings, host, port)
