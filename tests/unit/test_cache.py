"""The cache and the two forward passes: rollback, tree paths and ragged rows must not change what the model says."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specrig.runtime.cache import KeyValueCache, LayerShape
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.model import CachedModel
from specrig.runtime.transformers_model import TransformersModel, cached_model
from specrig.runtime.types import DecodingError

SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip
ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters={"rope_theta": 1e4, **ROPE})),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3)
    ),
    "gpt-neox": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(**{key: value for key, value in SMALL.items() if key != "num_key_value_heads"})
    ),
}


@pytest.fixture(scope="module", params=[*MODELS, "llama/transformers"])
def pair(request: pytest.FixtureRequest) -> tuple[CachedModel, torch.nn.Module]:
    torch.manual_seed(0)
    name, _, through = request.param.partition("/")
    source = MODELS[name]().eval()
    model = cached_model(source, direct=not through)
    expected = TransformersModel if through or name in {"gpt2", "gpt-neox"} else LlamaModel
    assert type(model) is expected
    return model, source


def reference(source: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return source(input_ids=torch.tensor([tokens])).logits[0]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=2e-4, rtol=1e-3)


def test_steps_equal_one_pass(pair: tuple[CachedModel, torch.nn.Module]) -> None:
    model, source = pair
    tokens = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
    whole = reference(source, tokens)
    model.start(1, 32)
    for chunk in ([0, 1, 2], [3], [4, 5, 6, 7], [8], [9]):
        logits, _ = model.forward(torch.tensor([[tokens[i] for i in chunk]]))
        model.keep([range(len(chunk))])
        assert close(logits[0], whole[chunk])


def test_rejected_tokens_leave_no_trace(pair: tuple[CachedModel, torch.nn.Module]) -> None:
    model, source = pair
    model.start(1, 32)
    model.forward(torch.tensor([[3, 14, 15]]))
    model.keep([range(3)])
    model.forward(torch.tensor([[9, 40, 41, 42]]))
    model.keep([[0]])  # 9 stays, 40 41 42 were rejected
    logits, _ = model.forward(torch.tensor([[26, 5]]))
    assert close(logits[0], reference(source, [3, 14, 15, 9, 26, 5])[4:])


def test_a_tree_scores_each_path_as_if_alone(pair: tuple[CachedModel, torch.nn.Module]) -> None:
    """Root 9; children 4 and 5; 6 under 4; 7 under 5; 8 under 7. Then the path 9 5 7 8 is kept and continued."""
    model, source = pair
    prefix, nodes, parents = [3, 14, 15], [9, 4, 5, 6, 7, 8], [-1, 0, 0, 1, 2, 4]
    model.start(1, 32)
    model.forward(torch.tensor([prefix]))
    model.keep([range(3)])
    logits, _ = model.forward(torch.tensor([nodes]), parents=[parents])
    for node in range(6):
        path, at = [], node
        while at >= 0:
            path, at = [nodes[at], *path], parents[at]
        assert close(logits[0, node], reference(source, prefix + path)[-1])
    model.keep([[0, 2, 4, 5]])
    logits, _ = model.forward(torch.tensor([[11, 12]]))
    assert close(logits[0], reference(source, [*prefix, 9, 5, 7, 8, 11, 12])[-2:])


def test_ragged_rows_do_not_see_each_other(pair: tuple[CachedModel, torch.nn.Module]) -> None:
    model, source = pair
    rows = [[3, 14, 15, 9, 26], [5, 35], [8, 9, 7]]
    model.start(3, 32)
    padded = torch.tensor([row + [0] * (5 - len(row)) for row in rows])
    logits, _ = model.forward(padded, last=[len(row) - 1 for row in rows])
    model.keep([range(len(row)) for row in rows])
    for row, tokens in enumerate(rows):
        assert close(logits[row, 0], reference(source, tokens)[-1])
    # Two of each row.
    few, _ = model.forward(torch.tensor([[1, 2, 7], [3, 4, 7], [5, 6, 7]]), last=[range(2), range(1, 3), range(2)])
    for row, (tokens, more) in enumerate(zip(rows, ([1, 2], [3, 4, 7], [5, 6]), strict=True)):
        assert close(few[row], reference(source, tokens + more)[-2:])
    logits, _ = model.forward(torch.tensor([[1, 2], [3, 4], [5, 6]]))
    model.keep([[0, 1], [0], []])
    for row, tokens in enumerate(rows):
        more = [[1, 2], [3, 4], [5, 6]][row]
        assert close(logits[row], reference(source, tokens + more)[-2:])
    logits, _ = model.forward(torch.tensor([[20], [21], [22]]))
    for row, context in enumerate(([*rows[0], 1, 2, 20], [*rows[1], 3, 21], [*rows[2], 22])):
        assert close(logits[row, 0], reference(source, context)[-1])


def test_a_full_cache_is_refused(pair: tuple[CachedModel, torch.nn.Module]) -> None:
    model, _ = pair
    model.start(1, 128)
    room = model.cache.slots
    with pytest.raises(DecodingError, match="do not fit"):
        model.forward(torch.zeros(1, room + 1, dtype=torch.long))


def test_keys_and_values_lie_where_the_model_does_in_its_precision() -> None:
    alike, other = LayerShape(4, 6, 6), LayerShape(1, 8, 2)
    cache = KeyValueCache([alike, other, alike], 3, 5, dtype=torch.bfloat16, device=torch.device("meta"))
    for layer, shape in enumerate((alike, other, alike)):
        new = [
            torch.zeros(3, shape.heads, 2, d, dtype=torch.bfloat16, device="meta")
            for d in (shape.key_width, shape.value_width)
        ]
        for part, width in zip(
            cache.write(layer, *new, slice(0, 2), 5), (shape.key_width, shape.value_width), strict=True
        ):
            assert (part.shape, part.dtype, part.device.type) == ((3, shape.heads, 5, width), torch.bfloat16, "meta")


def test_a_roll_back_never_lengthens_and_asks_for_every_row() -> None:
    cache = KeyValueCache([LayerShape(1, 2, 2)], 3, 8, dtype=torch.float32, device=torch.device("cpu"))
    cache.keep([range(5), range(2), []])
    assert (cache.lengths, cache.aligned) == ([5, 2, 0], False)
    cache.truncate([3, 4, 0])
    assert cache.lengths == [3, 2, 0]
    with pytest.raises(ValueError, match="shorter"):
        cache.truncate([1, 1])
