"""Passes in compiled code: the same logits as torch's, and the same bits whatever runs beside a token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from ctypes import addressof
from math import exp, isqrt, log
from typing import Any

import pytest
import torch
from models import Lab, shared_lab
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.heads.eagle import module as eagle
from specrig.heads.eagle.module import EagleHead
from specrig.heads.eagle3 import module as eagle3
from specrig.heads.eagle3.module import Eagle3Head
from specrig.heads.likeliest import likeliest
from specrig.heads.markov import MarkovBias
from specrig.heads.mtp import module as mtp
from specrig.heads.mtp.module import MtpHead
from specrig.heads.p_eagle import module as p_eagle
from specrig.heads.p_eagle.module import PEagleHead
from specrig.runtime import compiled, compiler, decode_pass, llama_model
from specrig.runtime.compiled import MAX_TOKENS
from specrig.runtime.linear import Linear, kernel_choice
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.pruned import follow, prune
from specrig.runtime.replay import Replay
from specrig.runtime.transformers_model import cached_model

SHAPE: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}


def wider(size: int, heads: int) -> dict[str, Any]:
    """SHAPE with another hidden size; a layer's gain stays, else it would enlarge what bfloat16 rounds off."""
    spread = SHAPE["initializer_range"] * (SHAPE["hidden_size"] / size) ** 0.5
    return SHAPE | {"hidden_size": size, "num_attention_heads": heads, "initializer_range": spread}


MODELS: dict[str, Callable[[], Any]] = {
    "grouped heads": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "biases": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True)),
    "norms of queries and keys": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=32)),
    "biases of queries, keys and values": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "a window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8)),
    "a key head for each query": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE | {"num_key_value_heads": 4})),
    "three queries a key head": lambda: LlamaForCausalLM(LlamaConfig(**wider(96, heads=6), head_dim=64)),
    "heads of 96 numbers": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE | {"initializer_range": 0.2, "head_dim": 96})),
    "seven queries a key head": lambda: LlamaForCausalLM(LlamaConfig(**wider(224, heads=14))),
    "a width that matrix registers do not serve": lambda: LlamaForCausalLM(
        LlamaConfig(**wider(48, heads=3) | {"num_key_value_heads": 3})
    ),
}


@pytest.fixture(autouse=True)
def back_to_timing() -> Iterator[None]:
    if compiled.library() is None:
        pytest.skip("no C compiler here: passes run in torch, which the other tests cover")
    yield
    kernel_choice.pin()


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models of the tests are so small that one thread would compute them."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(decode_pass, "SINGLE_THREAD_BYTES", 0)
    monkeypatch.setattr(compiled, "SINGLE_THREAD_BYTES", 0)
    yield
    torch.set_num_threads(before)


def model(make: Callable[[], Any], way: Any, dtype: torch.dtype = torch.float32) -> LlamaModel:
    torch.manual_seed(0)
    kernel_choice.pin(compiled=way)
    made = make()
    with torch.no_grad():  # biases begin as zeros and norms as ones, which would hide that they are left out
        for weight in made.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    found = cached_model(made.to(dtype))
    assert isinstance(found, LlamaModel)
    assert (found.compiled is not None) == (way == "always")
    return found


def outputs(model: LlamaModel) -> list[torch.Tensor]:
    """Logits, hidden states and streams: of two rows of different length, of trees, after the kept paths; of a chain;
    of a prompt; of trees, and of a chain, behind contexts of one length.
    """
    model.aux_layers = (0, 2)
    model.start(2, 128)
    found = [model.catch_up([list(range(11)), [3, 4, 5]], [False, False])]
    logits, hidden = model.forward(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), parents=[[-1, -1, 0, 1], [-1, 0, 0, 2]])
    assert model.aux_hidden_states is not None
    found += [logits, hidden, model.aux_hidden_states]
    model.keep([[1, 3], [0, 2]])
    found += model.forward(torch.tensor([[21], [22]]))
    model.start(1, 128)
    found += [model.catch_up([list(range(40))], [False]), *model.forward(torch.tensor([[1, 2, 3, 4]]))]
    model.start(2, 256)  # rows behind longer contexts, one of them far behind the other
    found.append(model.catch_up([[place % 60 for place in range(130)], list(range(12))], [False, False]))
    found += model.forward(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), parents=[[-1, -1, 0, 1], [-1, 0, 0, 2]])
    model.start(2, 128)
    found.append(model.catch_up([list(range(11)), list(range(20, 31))], [False, False]))
    found += model.forward(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), parents=[[-1, -1, 0, 1], [-1, 0, 0, 2]])
    found += model.forward(torch.tensor([[1, 2, 3], [5, 6, 7]]), last=[range(1, 3)] * 2)
    return found


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)])
def test_compiled_passes_say_what_torch_says(name: str, dtype: torch.dtype, tolerance: float) -> None:
    """Held against torch in float32: torch's own bfloat16 is up to .10 off it."""
    mine, exact = outputs(model(MODELS[name], "always", dtype)), outputs(model(MODELS[name], "never", torch.float32))
    for ours, theirs in zip(mine, exact, strict=True):
        assert ours.shape == theirs.shape
        assert (ours.float() - theirs).norm() <= tolerance * theirs.norm()


def followed(kind: Any, config: Any, target: LlamaModel, way: Any) -> list[torch.Tensor]:
    """Logits and predicted features of a head: of two rows of different length, of a step, of two levels of a tree; the same
    behind rows of one length.
    """
    kernel_choice.pin(compiled=way)
    torch.manual_seed(1)
    weights = untrained(kind)(config, 3, 0.1)
    head: EagleHead = kind(
        config, {n: x + 0.2 * torch.randn_like(x) if "norm" in n else x for n, x in weights.items()}, target
    )
    assert (head.compiled is not None) == (way == "always")
    width = head.hidden_size if head.entry_fc is None else head.entry_fc.width
    features = torch.randn((2, 12, width)).to(target.dtype)
    above, found = torch.tensor([[0, 1, 1], [1, 0, 0]]), list[torch.Tensor]()
    for second in (5, 12):
        head.limit_to_first(target.vocab_size)  # as `begin` does: its logits are then of its own vocabulary alone
        head.start(2, 128)
        found += head.run(torch.arange(12).expand(2, 12), features, last=[11, second - 1])
        head.keep([range(12), range(second)])
        found += head.step(torch.tensor([7, 8]), features[:, 0])
        head._base = list(head.lengths)
        found += head.branch(torch.tensor([[1, 2], [3, 4]]), features[:, 1:3])
        found += head.branch(torch.tensor([[5, 6, 7], [8, 9, 10]]), features[:, 3:6], above)
        head.rewind()
    return found


@pytest.mark.parametrize("name", ["grouped heads", "biases", "heads of 96 numbers"])
def test_drafts_of_eight_bits_say_nearly_what_torch_says(name: str) -> None:
    if not compiled.supports_eight_bits():
        pytest.skip("this processor has no instructions for products of 8 bits")
    ways = ("never", torch.float32), ("always", torch.bfloat16)
    exact, usual = (outputs(model(MODELS[name], *way)) for way in ways)
    rounded = model(MODELS[name], "always", torch.bfloat16)
    kernel_choice.pin(compiled="always", draft_weights="int8")
    assert decode_pass.round_weights(rounded, "draft")
    assert kernel_choice.record()["draft_weights"] == {"draft": "int8"}
    found = outputs(rounded)
    assert not torch.equal(found[0], usual[0]), "nothing was rounded"
    for mine, theirs in zip(found, exact, strict=True):
        assert (mine.float() - theirs).norm() <= 0.4 * theirs.norm()


def of_mean_square(mean: int, count: int) -> list[int]:
    """`count` whole numbers below 127 which have this mean square together with 127."""
    chance = random.Random(0)
    while True:
        found = [chance.randrange(110) for _ in range(count - 2)]
        rest = mean * (count + 1) - 127**2 - sum(each * each for each in found)
        for one in range(127):
            other = isqrt(max(0, rest - one * one))
            if one * one + other * other == rest and other < 127:
                return [*found, one, other]


def whole_numbers() -> Any:
    """A model whose layers add nothing, so that its LM head reads whole numbers up to 127, divided by 64: bfloat16 holds
    them.
    """
    made = MODELS["grouped heads"]()
    with torch.no_grad():
        for layer in made.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding = made.model.embed_tokens.weight
        others = torch.tensor(of_mean_square(64**2, embedding.shape[1] - 1))
        for row in embedding:
            numbers = others[torch.randperm(len(others))] * (2 * torch.randint(2, others.shape) - 1)
            row.copy_(torch.cat((numbers[:1], torch.tensor([127]), numbers[1:])))  # 127 is each token's highest
    return made


def test_weights_of_eight_bits_are_multiplied_exactly() -> None:
    """Whole numbers up to 127 need no rounding, in passes of every width."""
    if not compiled.supports_eight_bits():
        pytest.skip("this processor has no instructions for products of 8 bits")
    rounded = model(whole_numbers, "always", torch.bfloat16)
    with torch.no_grad():
        rounded.norm.fill_(1.0)
    weight = torch.randint(-127, 128, rounded.head.weight.shape).bfloat16()
    weight[:, 0] = 127  # each output's highest
    kernel_choice.pin(compiled="always", draft_weights="int8")
    assert decode_pass.round_weights(rounded, "draft") and rounded.compiled is not None
    rounded.compiled.replace_head(Linear(weight, few_rows=False))
    for width in range(1, 20):
        rounded.start(1, 128)
        tokens = torch.arange(width).unsqueeze(0)
        logits, hidden = rounded.forward(tokens)
        assert torch.equal(hidden, rounded.embedding[tokens] / 64)
        expected = hidden.float() @ weight.float().T
        assert torch.allclose(logits.float(), expected, rtol=0.01, atol=0), width


MODULES = {EagleHead: eagle, MtpHead: mtp, Eagle3Head: eagle3, PEagleHead: p_eagle}


def untrained(kind: Any) -> Callable[..., dict[str, torch.Tensor]]:
    return MODULES[kind].random_tensors


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)])
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("most", [MAX_TOKENS, 5])
def test_compiled_passes_of_a_head_say_what_torch_says(
    kind: Any, dtype: torch.dtype, tolerance: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """most: tokens that run at once; of 5 each row of a tree's second level runs by itself."""
    for module in (decode_pass, llama_model):
        monkeypatch.setattr(module, "MAX_TOKENS", most)
    target = model(MODELS["grouped heads"], "never", dtype)
    module, few = MODULES[kind], torch.arange(0, 48, 3) if kind in (EagleHead, MtpHead) else 16
    for config in (module.head_config(target.config), module.head_config(target.config, few)):
        config.num_hidden_layers = 3 if kind is PEagleHead else 1
        both = (followed(kind, config, target, way) for way in ("always", "never"))
        for mine, theirs in zip(*both, strict=True):
            assert mine.shape == theirs.shape and theirs.isfinite().all()
            assert (mine - theirs).float().norm() <= tolerance * theirs.float().norm()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("threads", "context"), [(1, 20), (3, 150)], indirect=["threads"])
def test_a_token_does_not_feel_its_neighbours(name: str, dtype: torch.dtype, context: int) -> None:
    """To the last bit: one by one, as a chain, on a tree's path, and in a batch beside a longer row."""
    found = model(MODELS[name], "always", dtype)
    tokens = [(7 * place + 3) % SHAPE["vocab_size"] for place in range(MAX_TOKENS)]

    def begun(*prompts: list[int]) -> None:
        found.start(len(prompts), 256)
        for count in range(
            max(map(len, prompts))
        ):  # one by one: prompts of different widths may be computed differently
            rows = [prompt[: count + 1] for prompt in prompts]
            found.catch_up(rows, [False] * len(rows))

    prompt = [place % 60 for place in range(context)]
    begun(prompt)
    plain = []
    for token in tokens:
        plain.append(found.forward(torch.tensor([[token]]))[0][0, 0])
        found.keep([[0]])
    expected = torch.stack(plain)
    begun(prompt)
    for width in (
        *range(2, 19),
        24,
        25,
        26,
        31,
        32,
        33,
        49,
        MAX_TOKENS - 1,
        MAX_TOKENS,
    ):  # every tile, and passes of several
        assert torch.equal(found.forward(torch.tensor([tokens[:width]]))[0][0], expected[:width]), width
        found.keep([[]])
    tokens, expected = tokens[:5], expected[:5]
    tree = torch.tensor([[3, *tokens, 1, 2]])
    assert torch.equal(found.forward(tree, parents=[[-1, -1, 1, 2, 3, 4, 0, 0]])[0][0, 1:6], expected)
    begun([*prompt, *range(10)], prompt)
    assert torch.equal(found.forward(torch.tensor([[1, 2, 3, 4, 5], tokens]))[0][1], expected)


@pytest.mark.parametrize(("flag", "input_bytes"), [("-mno-avx512bf16", 4), ("-mno-amx-bf16", 2)])
def test_without_the_processors_bfloat16_instructions_it_says_the_same(
    monkeypatch: pytest.MonkeyPatch, flag: str, input_bytes: int
) -> None:
    """Also in products outside compiled passes: behind a long prompt, and in padded passes."""

    def outputs_of(way: Any) -> list[torch.Tensor]:
        found = model(MODELS["grouped heads"], way, torch.bfloat16)
        kept = outputs(found)
        found.start(1, 256)
        kept.append(found.catch_up([[place % 60 for place in range(MAX_TOKENS + 6)]], [False]))
        found.pad_passes()
        return [*kept, *found.forward(torch.tensor([[1, 2, 3]]))]

    expected = outputs_of("never")
    compiled.library.cache_clear()
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, flag))
    try:
        if compiled.library() is None:
            pytest.skip("this compiler knows no such processor")
        if compiled.library().input_bytes() != input_bytes:
            pytest.skip("this processor has none of them")
        for mine, theirs in zip(outputs_of("always"), expected, strict=True):
            assert (mine - theirs).float().norm() <= 0.15 * theirs.float().norm()
    finally:
        compiled.library.cache_clear()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["grouped heads", "a window"])
@pytest.mark.parametrize("level", [False, True])
def test_a_pass_of_many_rows_is_to_the_last_bit_that_of_each_row(name: str, dtype: torch.dtype, level: bool) -> None:
    """More tokens than compiled code runs at once. level: whether the contexts have one length."""
    found = model(MODELS[name], "always", dtype)
    found.aux_layers = (0, 2)
    trees, kept = ([-1, 0, 0, 1], [-1, -1, 0, 1]), ([0, 2], [1])

    def passes(rows: Sequence[int]) -> list[torch.Tensor]:
        found.start(len(rows), 64)
        contexts = [[(7 * row + place) % 60 for place in range(5 if level else 1 + row % 7)] for row in rows]
        for count in range(max(map(len, contexts))):  # prompts of different widths may be computed differently
            found.catch_up([context[: count + 1] for context in contexts], [False] * len(rows))
        tokens = torch.tensor([[row, row + 1, row + 2, row + 3] for row in rows])
        outputs = [*found.forward(tokens, parents=[trees[row % 2] for row in rows])]
        assert found.aux_hidden_states is not None and found.choices is not None
        outputs += [found.aux_hidden_states, found.choices]
        found.keep([kept[0 if level else row % 2] for row in rows])
        return [*outputs, *found.forward(tokens, last=[range(1, 3)] * len(rows))]

    rows = range(37)
    assert 4 * len(rows) > 2 * MAX_TOKENS
    alone = [passes([row]) for row in rows]
    for whole, parts in zip(passes(rows), zip(*alone, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize(("compiled_s", "torch_s"), [(1.0, 3.0), (3.0, 1.0)])
def test_wide_passes_run_where_they_take_less_time(
    compiled_s: float, torch_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is timed both ways, which is no time of the measurement."""
    found = model(MODELS["grouped heads"], "always")
    assert isinstance(found.compiled, decode_pass.DecodePass)
    found.compiled.wide = None
    passed, ways = [0.0], list[str]()

    def counting(way: str, seconds: float, run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            ways.append(way)
            passed[0] += seconds
            return run(*given, **named)

        return counted

    monkeypatch.setattr(found, "now", lambda: passed[0])
    monkeypatch.setattr(found, "_hidden", counting("torch", torch_s, found._hidden))
    monkeypatch.setattr(found.compiled, "_rows", counting("compiled", compiled_s, found.compiled._rows))
    monkeypatch.setattr(Replay, "spent", 0.0)
    tokens = torch.ones((MAX_TOKENS, 2), dtype=torch.long)
    found.start(len(tokens), 8)
    monkeypatch.setattr(found.watch, "start", counting("the pass's own time", 0.0, found.watch.start))
    logits, _ = found.forward(tokens)
    chosen = "compiled" if 2 * compiled_s < torch_s else "torch"
    begun = ways.index("the pass's own time")
    assert Counter(ways[:begun]) == {"torch": 2, "compiled": 4} and set(ways[begun + 1 :]) == {chosen}
    assert Replay.spent == 2 * torch_s + 4 * compiled_s
    assert found.choices is None if chosen == "torch" else torch.equal(found.choices, compiled.argmax(logits))
    del ways[:]
    found.forward(tokens)
    assert set(ways) == {"the pass's own time", chosen}


def test_large_gates_close_and_open() -> None:
    """SiLU of -90 is 0 and of 90 is 90, beyond what e^x can be in float32."""

    def wide() -> Any:
        found = MODELS["grouped heads"]()
        for layer in found.model.layers:
            layer.mlp.gate_proj.weight.data *= 40
        return found

    for mine, theirs in zip(outputs(model(wide, "always")), outputs(model(wide, "never")), strict=True):
        assert (mine - theirs).norm() <= 1e-3 * theirs.norm()


def test_a_copy_without_layers_sees_no_mask_of_an_earlier_pass() -> None:
    whole = model(MODELS["grouped heads"], "always")

    def drafted() -> torch.Tensor:
        """Behind rows of different length, whose masks the pass does not make itself."""
        whole.start(2, 64)
        whole.catch_up([[3, 4, 5, 6], [8, 9]], [False, False])
        follow(thin, whole, whole.lengths)
        return thin.forward(torch.tensor([[7], [7]]))[0]

    thin = prune(whole, [1])
    expected = drafted()
    whole.forward(torch.tensor([[1, 2, 3]] * 2), parents=[[-1, -1, 0]] * 2)  # its masks are gone with the pass
    thin = prune(whole, [1])
    assert isinstance(thin, LlamaModel) and isinstance(thin.compiled, decode_pass.DecodePass)
    assert torch.equal(drafted(), expected)
    assert thin.compiled.args.masks == addressof(thin.compiled.masks)


def test_what_compiled_passes_do_not_know_runs_in_torch() -> None:
    kernel_choice.pin(compiled="always")
    biased = cached_model(LlamaForCausalLM(LlamaConfig(**SHAPE, mlp_bias=True)))
    assert isinstance(biased, LlamaModel) and biased.compiled is None


def test_a_model_too_large_for_compiled_passes_multiplies_few_rows_in_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there is memory for its weights twice; a bias needs no exception."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**wider(128, 4))).eval()
    plain = cached_model(model)
    monkeypatch.setattr(decode_pass, "MAX_WEIGHT_BYTES", 0)
    large = cached_model(model)
    monkeypatch.setattr(decode_pass, "available_memory", lambda: 1)
    short = cached_model(model)
    assert isinstance(large, LlamaModel) and isinstance(short, LlamaModel) and large.compiled is None
    assert any(layer.blocks is not None for layer in large.linears())
    assert all(layer.blocks is None for layer in short.linears())
    tokens = torch.randint(0, 67, (1, 5))
    logits = []
    for cached in (plain, large, short):
        cached.start(1, 16)
        logits.append(cached.forward(tokens)[0])
    torch.testing.assert_close(logits[1], logits[2], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[0], logits[2], atol=1e-4, rtol=1e-4)


def test_a_head_leaves_its_targets_kernels_alone() -> None:
    target = model(MODELS["grouped heads"], "never")
    kernel_choice.pin(compiled="always")
    config = eagle.head_config(target.config)
    head = EagleHead(config, eagle.random_tensors(config, 0), target)
    assert head.compiled is not None and head.head.blocks is not None
    assert target.head.blocks is None


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    kernel_choice.pin(compiled="always")
    yield shared_lab(vocab_size=40, hidden=64)
    kernel_choice.pin()


@pytest.mark.parametrize("method", sorted(registry()))
def test_methods_decode_what_plain_decoding_does(lab: Lab, method: str) -> None:
    assert isinstance(lab.target, LlamaModel)
    if not decode_pass.supports_model(lab.target):
        pytest.fail(f"the tests' own model has widths that compiled passes do not serve: {lab.target.config}")
    prompts = [[5, 9, 11, 5, 9, 5], [3, 7, 3, 7]]
    plain, found = (
        generate(lab.target, lab.drafter(name), prompts, k=3, max_new_tokens=24, temperature=0.0)
        for name in ("autoregressive", method)
    )
    assert [generation.tokens for generation in found] == [generation.tokens for generation in plain]


def test_without_a_compiler_passes_run_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    compiled.library.cache_clear()
    try:
        kernel_choice.pin(compiled="always")
        assert cached_model(MODELS["grouped heads"]()).compiled is None
    finally:
        compiled.library.cache_clear()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("drafted", [False, True])
def test_a_greedy_chain_is_that_of_torch(dtype: torch.dtype, drafted: bool) -> None:
    """Sums are exact here: whole numbers, with ties, of which the first counts."""
    drawn = torch.Generator().manual_seed(0)
    V, Vd, rank, B, k = 150, 96, 32, 3, 5
    embedding, lm_head = (torch.randint(-1, 2, (size, rank), generator=drawn).to(dtype) for size in (V, Vd))
    logits = torch.randint(-9, 10, (B, k, Vd), generator=drawn).to(dtype)
    ids = torch.randperm(V, generator=drawn)[:Vd].sort().values if drafted else None
    bias = MarkovBias.of({"markov.embedding.weight": embedding, "markov.lm_head.weight": lm_head}, slice(None))
    assert bias is not None
    found = bias.greedy(logits, ids)
    assert found is not None
    for row, places in zip(logits, found.tolist(), strict=True):
        before: int | None = None
        for slot, place in zip(row, places, strict=True):
            expected = slot if before is None else slot + lm_head @ embedding[before]
            assert place == int(expected.float().numpy().argmax())
            before = int(ids[place]) if ids is not None else place
    assert bias.greedy(logits[..., :-1], ids) is None, "of fewer tokens than it has"


@pytest.mark.usefixtures("threads")
def test_a_bias_of_8_bits_is_nearly_that_of_torch() -> None:
    if not compiled.supports_eight_bits():
        pytest.skip("no products of 8 bits here")
    drawn = torch.Generator().manual_seed(0)
    V, rank, k = 96, 64, 5
    embedding, lm_head = (torch.randn(V, rank, generator=drawn).bfloat16() for _ in range(2))
    bias = MarkovBias.of({"markov.embedding.weight": embedding, "markov.lm_head.weight": lm_head}, slice(None))
    assert bias is not None
    logits = torch.randn(2, k, V, generator=drawn).bfloat16()
    bias.round_weights()
    assert bias.blocks is not None and bias.blocks.dtype == torch.uint8
    found = bias.greedy(logits, None)
    assert found is not None
    for row, places in zip(logits.float(), found.tolist(), strict=True):
        for level in range(1, k):
            scores = row[level] + lm_head.float() @ embedding[places[level - 1]].float()
            # A sum of 64 products of 8 bits is off by about a tenth; scores spread by 8.
            assert scores[places[level]] > scores.max() - 0.5 and scores.std() > 5


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("V", [5, 96, 150])
def test_the_highest_of_equals_is_the_first(dtype: torch.dtype, V: int) -> None:
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randint(-4, 5, (3, 7, V), generator=drawn).to(dtype)
    logits[0, 0] = -torch.inf
    assert compiled.argmax(logits).tolist() == logits.float().numpy().argmax(-1).tolist()
    assert compiled.argmax(logits[:, :1]).shape == (3, 1)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pass_names_the_highest_of_its_logits(dtype: torch.dtype) -> None:
    """Also where the last tokens are no text; where torch computes, it names none."""
    decoded = model(MODELS["grouped heads"], "always", dtype)
    decoded.start(2, 128)
    decoded.catch_up([list(range(11)), [3, 4, 5]], [False, False])
    tokens, parents = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), [[-1, -1, 0, 1], [-1, 0, 0, 2]]
    logits, _ = decoded.forward(tokens, parents=parents)
    assert decoded.choices is not None and torch.equal(decoded.choices, compiled.argmax(logits))
    decoded.vocab_size = limit = int(decoded.choices.max())  # without the highest token that was chosen
    fewer, _ = decoded.forward(tokens, parents=parents)
    assert fewer.shape[-1] == limit and torch.equal(decoded.choices, compiled.argmax(logits[..., :limit]))
    last, _ = decoded.forward(tokens, last=[range(1, 3)] * 2)
    assert decoded.choices.shape == (2, 2) and torch.equal(decoded.choices, compiled.argmax(last))
    decoded.catch_up([[*range(11), *range(40, 45)] * 8, [3, 4, 5, 6]], [False, False])
    assert decoded.choices is None, "a pass of many tokens runs in torch"


def best_first(
    logits: torch.Tensor,
    bias: MarkovBias | None,
    ids: torch.Tensor | None,
    least: list[float],
    children: int,
    trust: float,
) -> list[tuple[int, int, float]]:
    """The nodes of one row's logits `[k, V]` as (token's place, parent, value), by the search in plain Python."""

    def below(node: tuple[int, int]) -> Iterator[tuple[float, int, int, tuple[int, int]]]:
        level, place = node
        own = logits[level].float()
        if bias is not None and level:
            own = own + bias(torch.tensor(place if ids is None else int(ids[place]))).float()
        best = own.log_softmax(-1).topk(children)
        for rank, (value, token) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            yield min(1.0, exp(value + trust)), rank, token, (level + 1, token)

    shares, places, parents = likeliest((0, -1), below, len(least), len(logits), least)
    return [(place, parent, log(share)) for place, parent, share in zip(places, parents, shares, strict=True)]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("least", "trust"), [([0.0] * 12, 0.0), ([0.0] * 3 + [0.05] * 9, 0.3), ([1.0], 0.0)])
def test_a_greedy_tree_is_the_best_first_one(
    dtype: torch.dtype, with_bias: bool, least: list[float], trust: float
) -> None:
    drawn = torch.Generator().manual_seed(0)
    V, Vd, rank, B, k = 150, 96, 32, 3, 3
    embedding, lm_head = (torch.randn(size, rank, generator=drawn).mul(0.3).to(dtype) for size in (V, Vd))
    logits, ids = torch.randn(B, k, Vd, generator=drawn).mul(2).to(dtype), torch.arange(0, V)[:Vd] + 7
    bias = MarkovBias.of({"markov.embedding.weight": embedding, "markov.lm_head.weight": lm_head}, slice(None))
    assert bias is not None and bias.blocks is not None
    wide = MarkovBias(embedding.float(), lm_head.float()).requires_grad_(False)
    found = compiled.greedy_tree(logits, (bias.embedding, bias.blocks) if with_bias else None, ids, least, 4, trust)
    for row, (places, parents, values) in zip(range(B), found, strict=True):
        expected = best_first(logits[row], wide if with_bias else None, ids, least, 4, trust)
        assert len(places) == len(expected) and (len(places) > 3 or len(least) == 1)
        assert places == [place for place, _, _ in expected]
        assert parents == [parent for _, parent, _ in expected]
        assert values == pytest.approx([value for _, _, value in expected], abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_path_through_a_tree_is_kept_as_torch_keeps_it(dtype: torch.dtype) -> None:
    layers, B, heads, S, width = 3, 2, 2, 12, 16
    entries = torch.randn(layers, B, heads, S, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    for path in ([4, 6, 7, 10], [5], [4, 5, 6]):
        expected = entries.clone()
        expected[:, 1, :, 4 : 4 + len(path)] = entries[:, 1, :, path]
        found = entries.clone()
        compiled.keep_path(found, 1, 4, path)
        assert torch.equal(found, expected)
