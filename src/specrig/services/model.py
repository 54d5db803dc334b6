"""Starts a draft or target service: loads its model, says what it is, and listens."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specrig.models import gate
from specrig.models.pair import PairFiles
from specrig.models.weights import weights_of
from specrig.services.app import ServingError, key_for, serve
from specrig.services.draft import Draft
from specrig.services.rows_service import Work, rows_app, vocabulary_digest
from specrig.services.target import Target

if TYPE_CHECKING:
    from specrig.runtime.model import CachedModel

KINDS: dict[str, Callable[[CachedModel, int, int], Work]] = {Draft.name: Draft, Target.name: Target}


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served; see `specrig serve draft --help`."""

    model: str
    revision: str | None
    dtype: str
    device: str
    batch: int
    sessions: int | None
    context: int
    queue: int
    threads: int | None
    vocabulary: int | None
    random_weights: bool


def serve_model(kind: str, serving: Serving, host: str, port: int) -> None:
    """Load the model and serve it until the process is asked to end. Raises ServingError or ModelError before it
    listens.

    One thread loads the model and runs it. OpenMP keeps a team of threads for every thread that has ever computed, and
    libgomp lets none of them wait ready where there are more than cores: a pass takes twice as long as soon as two
    threads have computed.
    """
    key = key_for(host)
    thread = ThreadPoolExecutor(1, thread_name_prefix=kind)
    work, about = thread.submit(_loaded, kind, serving).result()
    serve(rows_app(work, batch=serving.batch, queue=serving.queue, key=key, about=about, thread=thread), host, port)


def _loaded(kind: str, serving: Serving) -> tuple[Work, dict[str, Any]]:
    """A service's model at work, and what the service says of itself."""
    import torch

    if serving.device == "cuda" and not torch.cuda.is_available():
        raise ServingError(f"--device cuda: PyTorch {torch.__version__} finds no GPU on this machine; use --device cpu")
    if serving.threads is not None:
        torch.set_num_threads(serving.threads)
    pair = PairFiles(
        f"the {kind} service",
        serving.model,
        target_revision=serving.revision,
        dtype=serving.dtype,
        simulated_acceptance=0.0 if serving.random_weights else None,
    )
    weights = weights_of(pair)
    weights.dtype()  # a precision that is none is named before weights are read
    model = weights.cached("target", serving.device)
    if serving.vocabulary is not None:
        if serving.vocabulary > model.vocab_size:
            raise ServingError(f"--vocabulary {serving.vocabulary}: {serving.model} has {model.vocab_size} tokens")
        model.vocab_size = serving.vocabulary
    sessions = serving.sessions or serving.batch
    context = min(serving.context, model.max_positions)
    known = None if serving.random_weights else vocabulary_digest(gate.vocabulary(serving.model, serving.revision))
    about: dict[str, Any] = {
        "model": serving.model,
        "revision": serving.revision,
        "dtype": serving.dtype,
        "vocabulary": known,
    }
    about["eos"] = sorted(weights.eos)
    return KINDS[kind](model, sessions, context), about
