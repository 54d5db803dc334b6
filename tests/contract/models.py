"""Tiny random models for contract tests: real Llama weights, small enough for exact distributions."""

from __future__ import annotations

import copy
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from specrig.decoding.drafters import registry
from specrig.decoding.static_tree import MOST
from specrig.decoding.types import Drafter
from specrig.engines.http.launch import free_port
from specrig.engines.http.remote_draft import RemoteDraft
from specrig.heads import initialise, markov, part
from specrig.heads.checkpoint import normal
from specrig.runtime.linear import kernel_choice
from specrig.runtime.model import CachedModel
from specrig.runtime.replay import Function, Recording, Replay
from specrig.runtime.transformers_model import cached_model
from specrig.services.app import server_of
from specrig.services.worker_app import worker_app
from specrig.services.workers import DraftWorker

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"


def random_llama(vocab_size: int, *, seed: int = 0, hidden: int = 32, layers: int = 2, kv_heads: int = 2) -> Any:
    """A randomly initialised Llama whose logits are spread enough to have clear favourites."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        initializer_range=0.35,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def perturbed(model: Any, scale: float, seed: int = 1) -> Any:
    """The same model with noise on its weights: a draft that agrees sometimes."""
    torch.manual_seed(seed)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            weight += scale * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0
    return copied


class Traced(Replay):
    """Replay without a GPU: the operations of the first run, repeated on the same inputs and outputs as a CUDA graph
    would.

    What a recording may not depend on (lengths, lists, tensors that are made anew) has the value of the first run for
    ever.
    """

    def record(self, function: Function, inputs: list[Tensor]) -> Recording:
        function(*inputs)
        with _Operations() as recorded:
            last = function(*inputs)
        outputs = tuple(tensor.clone() for tensor in last)

        def run() -> None:
            for place, found in zip(outputs, recorded.again(last), strict=True):
                place.copy_(found)

        return Recording(inputs, outputs, run)


class _Operations(TorchDispatchMode):
    """The operations that run meanwhile, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, list[Any], dict[str, Any], list[tuple[int, Any]]]] = []
        """Operation, arguments, and which of the arguments are results of earlier operations: place and number."""
        self.numbers: dict[int, int] = {}
        self.results: list[Any] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert operation is not torch.ops.aten._local_scalar_dense.default, "a recording waits for the device"
        assert not any(isinstance(value, Tensor) and id(value) in self.numbers for value in (kwargs or {}).values())
        found = [(place, number) for place, value in enumerate(args) if (number := self._number(value)) is not None]
        result = operation(*args, **(kwargs or {}))
        self.steps.append((operation, list(args), kwargs or {}, found))
        for each in result if isinstance(result, list | tuple) else [result]:
            self.numbers[id(each)] = len(self.results)
            self.results.append(each)  # kept, so that no other tensor gets its id
        return result

    def _number(self, value: Any) -> Any:
        """The number of the result that an argument is; of a list of tensors those of all, None where none is one."""
        if isinstance(value, list | tuple):
            numbers = [self.numbers.get(id(each)) if isinstance(each, Tensor) else None for each in value]
            return numbers if any(number is not None for number in numbers) else None
        return self.numbers.get(id(value)) if isinstance(value, Tensor) else None

    def again(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Run them again; what took the place of `outputs`."""
        made: list[Any] = []
        for operation, recorded, kwargs, found in self.steps:
            args = list(recorded)
            for place, number in found:
                args[place] = (
                    [was if at is None else made[at] for was, at in zip(args[place], number, strict=True)]
                    if isinstance(number, list)
                    else made[number]
                )
            result = operation(*args, **kwargs)
            made.extend(result) if isinstance(result, list | tuple) else made.append(result)
        return [made[self.numbers[id(tensor)]] if id(tensor) in self.numbers else tensor for tensor in outputs]


@contextmanager
def torch_passes(enabled: bool = True) -> Iterator[None]:
    """Models that are made meanwhile run in torch: a GPU has no compiled code, and tracing does not see it."""
    if enabled:
        kernel_choice.pin(compiled="never")
    yield
    if enabled:
        kernel_choice.pin()


class Lab:
    """Resources for drafters, as the native engine lends them. replayed: narrow passes run as they would on a GPU."""

    def __init__(
        self,
        vocab_size: int,
        *,
        noise: float = 0.3,
        direct: bool = True,
        replayed: bool = False,
        device: str = "cpu",
        hidden: int = 32,
    ) -> None:
        self.noise, self.direct = noise, direct
        source = random_llama(vocab_size, layers=3, hidden=hidden)  # EAGLE-3 reads three streams
        draft = perturbed(source, noise)
        with torch_passes(replayed):
            self.target: CachedModel = cached_model(source.to(device), direct=direct, device=device)
            self._draft: CachedModel = cached_model(draft.to(device), direct=direct, device=device)
        self.replayed = replayed
        if replayed:
            self.target.replay = Traced(self.target.device)
            self._draft.replay = Traced(self.target.device)
        self._folder = tempfile.TemporaryDirectory()
        self._served: dict[int, str] = {}

    def remote(self, name: str, rows: int, *, latency_s: float, half: bool) -> RemoteDraft:
        """The same draft in a real service, which listens on loopback in a thread of this process."""
        assert name == "draft"
        if rows not in self._served:
            copied = perturbed(random_llama(self.target.vocab_size, layers=3), self.noise)
            model = cached_model(copied.to(self.target.device), direct=self.direct, device=self.target.device)
            app = worker_app(
                DraftWorker(model, max(32, rows), model.max_positions), batch=max(32, rows), queue=4096, key=None
            )
            self._served[rows] = listening(app)
        return RemoteDraft(self._served[rows], latency_s=latency_s, half=half)

    def pass_costs(self) -> list[float]:
        """A machine on which some drafts pay and others do not, the same in every run."""
        return [1 + 0.1 * n for n in range(MOST + 1)]

    def tokens(self, vocabularies: str) -> None:
        """The draft has the target's vocabulary."""

    def model(self, name: str) -> CachedModel:
        assert name == "draft"
        return self._draft

    def head(self, name: str) -> Path:
        """A randomly initialised head in its checkpoint format: wrong most of the time, which is what a contract test
        wants.
        """
        folder = Path(self._folder.name) / name
        if not folder.exists():
            initialise(name, folder, self.target.config, self._draft.config, seed=5)
        return folder

    def cut_vocabulary(self, tokens: list[int]) -> None:
        """Replace the EAGLE-3 and the P-EAGLE head by ones that know these tokens only."""
        offsets = torch.tensor(tokens) - torch.arange(len(tokens))
        for name in ("eagle3", "p_eagle"):
            module = part(name, "module")
            config = module.head_config(self.target.config, len(tokens))
            module.save(self.head(name), config, module.random_tensors(config, 5, 0.15) | {"d2t": offsets})

    def add_bias(self, name: str) -> None:
        """Replace a head that drafts all depths at once by one with a bias of the token before."""
        module, config = part(name, "module"), (self._draft if name.startswith("draft_") else self.target).config
        if name == "p_eagle":
            made = module.head_config(config, markov_rank=3)
        else:
            made = module.heads_config(hidden=config.hidden_size, vocabulary=config.vocab_size, heads=4, markov_rank=3)
        tensors = module.random_tensors(made, 5)
        module.save(self.head(name), made, tensors | normal(markov.shapes(made), 6, 1.0))

    def drafter(self, name: str, **options: Any) -> Drafter:
        method = registry()[name]
        with torch_passes(self.replayed):
            drafter = method(method.Options.model_validate(options), self)
        for head in ("head", "heads", "model"):
            if self.replayed and getattr(drafter, head, self._draft) is not self._draft:
                getattr(drafter, head).replay = Traced(self.target.device)
        return drafter


def listening(app: Any) -> str:
    """The address at which an application of a service listens in a thread of this process, for as long as that lives."""
    port = free_port()
    server = server_of(app, "127.0.0.1", port)
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return f"http://127.0.0.1:{port}"


@cache
def shared_lab(**options: Any) -> Lab:
    """A lab that the tests of this process share, with the passes that are recorded in it."""
    return Lab(**options)
