"""What a GPU needs of the loop: passes of fixed shapes that can be repeated blindly, and one wait a round."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from models import Lab, Traced, random_llama, shared_lab
from torch.overrides import TorchFunctionMode

from specrig.decoding import verify_tree
from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Draft, Generation
from specrig.heads.eagle import module as eagle
from specrig.runtime import device
from specrig.runtime.replay import Replay
from specrig.runtime.transformers_model import cached_model, float32_logits
from specrig.runtime.types import FALLBACKS, FallbackWarning

METHODS = sorted(registry())
READS = {"tolist", "item", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__", "__iter__"}
"""Calls on a tensor after which the host knows what it holds, and on a GPU has waited for it."""
SENDS = {"tensor", "as_tensor", "from_numpy"}
"""Calls that bring host values to a device, and wait for it unless they come from pinned memory."""


class Waits(TorchFunctionMode):
    """Counts what would make the host wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        by_list = name in {"__getitem__", "__setitem__"} and any(
            isinstance(part, list) for part in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        if name in READS | SENDS or by_list:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def lab() -> Lab:
    return shared_lab(vocab_size=40, replayed=True)


PROMPTS = [[5, 9, 11, 5, 9, 5], [3, 7, 3, 7]]


def decoded_and_waits(
    lab: Lab, drafter: Any, temperature: float, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Generation], int]:
    """What is decoded, and how often the host waited meanwhile."""
    with monkeypatch.context() as patch:
        # As on a GPU: host values travel in one way that does not wait, trees are judged at once, the highest logit is
        # found there.
        patch.setattr(verify_tree, "_walked", verify_tree._judged)
        waits = Waits()
        quiet = sent_quietly(waits)
        for module in modules_with("on_device"):
            patch.setattr(module, "on_device", quiet)
        for module in modules_with("on_host"):
            patch.setattr(module, "on_host", lambda _: False)
        for module in modules_with("argmax"):
            patch.setattr(module, "argmax", lambda logits: logits.argmax(-1))
        with waits:
            found = generate(lab.target, drafter, PROMPTS, k=3, max_new_tokens=tokens, temperature=temperature)
    return found, sum(waits.found.values())


def rounds_of(generations: list[Generation]) -> int:
    return max(len(generation.rounds) for generation in generations)


def sent_quietly(waits: Waits) -> Any:
    send = device.on_device

    def quiet(*args: Any) -> Any:
        before = waits.found.copy()
        result = send(*args)
        waits.found = before
        return result

    return quiet


def modules_with(function: str) -> list[Any]:
    import sys

    return [
        module
        for name, module in sys.modules.items()
        if name.startswith(("specrig.decoding", "specrig.heads", "specrig.runtime")) and hasattr(module, function)
    ]


@pytest.mark.parametrize("method", METHODS)
def test_the_host_waits_once_a_round(lab: Lab, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted as the difference of two lengths, so that what the first rounds of a shape cost does not count. What was
    recorded and is repeated blindly says what passes say that run anew.
    """
    drafter, anew = lab.drafter(method), shared_lab(vocab_size=40)
    for temperature in (0.0, 1.0):
        decoded_and_waits(lab, drafter, temperature, 14, monkeypatch)  # every shape is recorded
        few, waits_few = decoded_and_waits(lab, drafter, temperature, 5, monkeypatch)
        many, waits_many = decoded_and_waits(lab, drafter, temperature, 14, monkeypatch)
        # Besides the verdict, lookahead reads its window, which rides along, and dspark how sure its head is; what goes
        # over a network passes through the host: random numbers on their way out, probabilities (converted, then sent)
        # on their way in.
        allowed = {"lookahead": 2, "dspark": 2, "remote_draft": 3 if temperature else 1}.get(method, 1)
        assert rounds_of(many) > rounds_of(few)
        assert waits_many - waits_few <= allowed * (rounds_of(many) - rounds_of(few))
        expected = generate(anew.target, anew.drafter(method), PROMPTS, k=3, max_new_tokens=14, temperature=temperature)
        assert [row.tokens for row in many] == [row.tokens for row in expected]
        assert [row.rounds for row in many] == [row.rounds for row in expected]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("nodes", [0, 6])
def test_a_cut_vocabulary_is_mapped_without_a_wait(
    nodes: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(vocab_size=40, replayed=True)
    lab.cut_vocabulary(list(range(39, 0, -3)))
    drafter = lab.drafter("eagle3", nodes=nodes)
    found = [decoded_and_waits(lab, drafter, temperature, tokens, monkeypatch) for tokens in (24, 8, 24)]
    (few, waits_few), (many, waits_many) = found[1:]
    assert rounds_of(many) > rounds_of(few) and waits_many - waits_few <= rounds_of(many) - rounds_of(few)


@pytest.mark.parametrize("drawn", [True, False])
def test_judging_all_nodes_is_walking_one_path(drawn: bool) -> None:
    """Both forms of multi-candidate rejection sampling decide alike on the same uniforms."""
    torch.manual_seed(0)
    V, B = 12, 400
    parents = [-1, -1, -1, 0, 0, 1, 3, 3, 5]
    logits = torch.randn(B, len(parents) + 2, V)
    q = torch.softmax(logits[:, :7] + torch.randn(B, 7, V), -1)
    sampler = Sampler(1.0, range(B))
    width = {-1: 3, 0: 2, 1: 1, 3: 2, 5: 1}
    chosen = {node: torch.multinomial(q[:, node + 1], count) for node, count in width.items()}
    births = [parents[:node].count(parent) for node, parent in enumerate(parents)]
    tokens = torch.stack([chosen[parent][:, birth] for parent, birth in zip(parents, births, strict=True)], 1)
    tokens = torch.cat((tokens, torch.zeros(B, 1, dtype=torch.long)), 1)  # a probe
    lengths = [9 if row % 3 else row % 10 for row in range(B)]
    p = sampler.probs(logits)
    uniforms = torch.rand(B, len(parents) + 2)

    def draft() -> Draft:
        tree = [[*parents, 8]] * B
        return Draft(tokens, tree, q if drawn else None, lengths, probes=1)

    walked, judged = verify_tree._walked(draft(), p, uniforms), verify_tree._judged(draft(), p, uniforms)
    assert walked.tokens == judged.tokens and walked.paths == judged.paths and walked.reached == judged.reached
    assert walked.overlap == pytest.approx(judged.overlap, abs=1e-5)
    assert len({tuple(path) for path in walked.paths}) > 5
    by_device = draft()
    by_device.parents = grown = torch.tensor(by_device.parents)
    found = verify_tree._judged(by_device, p, uniforms)
    assert found.tokens == judged.tokens
    assert found.parents == judged.parents == draft().parents, "read once, the host knows them from the verdict"
    assert by_device.parents is grown, "judging a draft does not change it"


def test_a_recording_repeats_what_it_recorded() -> None:
    """The stand-in for CUDA graphs is as blind as they are: it would show a pass that depends on the host's state."""
    state, memory = [1.0], torch.zeros(3)

    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        memory[1] = x[0]
        return (x + state[0],)

    replay = Traced(torch.device("cpu"))

    def run(x: torch.Tensor) -> torch.Tensor:
        return replay.recorded("key", function, [x])([x])[0]

    before = Replay.spent
    first = run(torch.ones(2))
    assert Replay.spent > before  # recording is no decoding: clocks leave it out
    assert first.tolist() == [2.0, 2.0]
    state[0] = 100.0
    before = Replay.spent
    assert run(torch.full((2,), 5.0)) is first and Replay.spent == before
    assert first.tolist() == [6.0, 6.0] and memory.tolist() == [0.0, 5.0, 0.0]
    assert run(torch.ones(3)).tolist() == [101.0] * 3  # another shape is another recording
    replay.clear()
    assert run(torch.ones(2)).tolist() == [101.0, 101.0]


def test_where_recording_fails_passes_run_as_they_are() -> None:
    class Refused(Replay):
        def record(self, function: Any, inputs: Any) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    replay = Refused(torch.device("cpu"))
    with pytest.warns(FallbackWarning, match="CUDA graphs cannot be used.*not permitted"):
        run = replay.recorded("key", lambda x: (x + 1,), [torch.ones(1)])
    assert "not permitted" in FALLBACKS.pop(), "the records of this process say so"
    assert run([torch.ones(1)])[0].item() == 2
    assert replay.recorded("key", lambda x: (x + 2,), [torch.ones(1)])([torch.ones(1)])[0].item() == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_recordings_on_a_gpu_go_on_when_the_cache_has_grown() -> None:
    """CUDA frees the memory of recordings with the last one, and refuses to record into it again."""
    model = cached_model(random_llama(40), device="cuda")
    for batch, slots in ((1, 128), (4, 128), (1, 600), (4, 1200)):
        model.start(batch, slots)
        for token in range(3):
            model.forward(torch.full((batch, 1), token, device="cuda"))
            model.keep([[0]] * batch)
        assert model.replay is not None and model.replay.failure is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_in_padded_passes_a_token_does_not_feel_its_neighbours(dtype: torch.dtype) -> None:
    """The logits of each token of a verification are those of plain decoding, to the last bit; in a wider tree, within
    rounding.
    """
    model = cached_model(random_llama(64, hidden=256, layers=3).to(dtype), device="cpu")
    model.pad_passes()
    prompt, tokens = torch.arange(20)[None], [7, 9, 11, 13, 21]

    def begun() -> None:
        model.start(1, 128)
        model.forward(prompt, last=[19])
        model.keep([range(20)])

    begun()
    plain = []
    for token in tokens:
        plain.append(model.forward(torch.tensor([[token]]))[0][0, 0])
        model.keep([[0]])
    begun()
    together, _ = model.forward(torch.tensor([tokens]))
    assert torch.equal(torch.stack(plain), together[0])
    begun()
    tree = [*tokens, 1, 2, 3, 4, 5, 6]  # eleven nodes: another width
    branches = [-1, 0, 1, 2, 3, -1, 5, 0, 1, 2, 3]
    wide, _ = model.forward(torch.tensor([tree]), parents=[branches])
    torch.testing.assert_close(torch.stack(plain), wide[0, :5])


@pytest.mark.parametrize("direct", [True, False])
def test_float32_logits_are_those_of_the_hidden_states_as_they_are(direct: bool, tmp_path: Path) -> None:
    """The head's weights are 64 x 2048 numbers, which compiled code multiplies where there is some; the embedding shares
    them.
    """
    source = random_llama(2048, hidden=64, layers=3).to(torch.bfloat16)
    weight = source.lm_head.weight.detach().clone()
    model = cached_model(source, direct=direct)
    float32_logits(model)
    model.start(1, 64)
    logits, hidden = model.forward(torch.arange(9)[None])
    assert hidden.dtype == torch.bfloat16 and logits.dtype == torch.float32
    torch.testing.assert_close(logits, hidden.float() @ weight.float().T)
    assert len(logits.unique()) > 2 * len(logits.bfloat16().unique()), "more than bfloat16 can tell apart"
    eagle.initialise(tmp_path / "eagle", model.config, seed=1)
    head = eagle.load(tmp_path / "eagle", model)
    assert head.head(hidden).equal(logits), "EAGLE's head reads the same LM head"


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_an_attention_kernel_lays_its_result_out_as_it_likes(kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's kernels put the heads behind the tokens, a processor's before them."""
    model = cached_model(random_llama(40, kv_heads=kv_heads))
    model.pad_passes()
    kernel = torch.nn.functional.scaled_dot_product_attention

    def other_layout(*given: Any, **settings: Any) -> torch.Tensor:
        return kernel(*given, **settings).transpose(1, 2).contiguous().transpose(1, 2)

    def logits() -> torch.Tensor:
        model.start(2, 128)
        model.forward(torch.arange(18).view(2, 9))
        model.keep([range(9)] * 2)
        return model.forward(torch.tensor([[1, 2, 3], [4, 5, 6]]), parents=[[-1, 0, 0]] * 2)[0]

    plain = logits()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", other_layout)
    torch.testing.assert_close(logits(), plain)
