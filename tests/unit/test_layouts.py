"""Heads as people publish them draft what their authors' formulas say, and a plan knows what loading will say.

The layouts are those that `speculators` 0.9 writes (its `save_pretrained` of each kind was compared name by name), and
those of vLLM 0.32's loaders. `speculators` itself is no dependency of the tests: it needs torchvision, torchaudio, openai
and an older datasets. The formulas below were compared with its own forward passes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM

from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.heads import part
from specrig.heads.contents import head_fault
from specrig.heads.layouts import LAYOUTS
from specrig.runtime import compiled
from specrig.runtime.linear import kernel_choice
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError

V, D, H, K, d, INNER, VD, EPS = 40, 32, 4, 2, 16, 48, 12, 1e-5
CONFIG = LlamaConfig(
    vocab_size=V, hidden_size=D, intermediate_size=INNER, num_hidden_layers=8, num_attention_heads=H, num_key_value_heads=K,
    head_dim=d, max_position_embeddings=256, initializer_range=0.4, tie_word_embeddings=False,
)  # fmt: skip
BASE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D, "intermediate_size": INNER,
    "num_attention_heads": H, "num_key_value_heads": K, "head_dim": d, "num_hidden_layers": 1, "vocab_size": V,
    "max_position_embeddings": 16, "rms_norm_eps": EPS, "hidden_act": "silu", "rope_theta": 500.0,
}  # fmt: skip
"""Positions turn faster than the target's, and fewer are named than a text has."""
ROW = [5, 9, 2, 11, 7, 3, 17, 30, 4, 8, 21, 1, 6, 12, 39, 33, 2, 19, 28, 14]


@pytest.fixture(scope="module")
def source() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).eval()


@pytest.fixture(params=["never", "always"])
def target(source: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """With heads whose passes torch runs, and with heads whose passes compiled code runs, where there is some."""
    if request.param == "always" and not compiled.supports(torch.device("cpu"), torch.float32):
        pytest.skip("no compiled code here")
    kernel_choice.pin(compiled=request.param)
    yield cached_model(source)
    kernel_choice.pin()


class Numbers:
    """Random tensors, one after the other."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator) * (0.3 if len(shape) > 1 else 0.2)

    def norm(self, width: int) -> Tensor:
        """Weights of a norm."""
        return 1 + self(width)

    def layer(self, prefix: str, reads: int, *, biases: bool = False, head_norms: bool = False) -> dict[str, Tensor]:
        """A decoder layer without the norm of its input."""
        shapes = {
            "self_attn.q_proj": (H * d, reads), "self_attn.k_proj": (K * d, reads), "self_attn.v_proj": (K * d, reads),
            "self_attn.o_proj": (D, H * d), "mlp.gate_proj": (INNER, D), "mlp.up_proj": (INNER, D), "mlp.down_proj": (D, INNER),
        }  # fmt: skip
        found = {f"{prefix}{name}.weight": self(*shape) for name, shape in shapes.items()}
        if biases:
            found |= {
                f"{prefix}self_attn.{part}_proj.bias": self(shapes[f"self_attn.{part}_proj"][0]) for part in "qkv"
            }
        if head_norms:
            found |= {f"{prefix}self_attn.{part}_norm.weight": self.norm(d) for part in "qk"}
        return found | {f"{prefix}post_attention_layernorm.weight": self.norm(D)}


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def projected(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def decoder_layer(w: dict[str, Tensor], prefix: str, theta: float, x: Tensor, reads: Tensor) -> Tensor:
    """A causal Llama or Qwen3 layer on the stream x `[n, D]`, whose attention reads `[n, R]`."""
    n, split = len(x), (len(x), -1, d)
    q, k, v = (projected(w, f"{prefix}self_attn.{part}_proj", reads).view(split) for part in "qkv")
    if f"{prefix}self_attn.q_norm.weight" in w:
        q, k = rms(q, w[f"{prefix}self_attn.q_norm.weight"]), rms(k, w[f"{prefix}self_attn.k_norm.weight"])
    angles = torch.arange(n).unsqueeze(1) * theta ** (-torch.arange(0, d, 2) / d)
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)

    def turned(y: Tensor) -> Tensor:
        one, two = y.chunk(2, -1)
        return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)

    q, k, v = turned(q), turned(k).repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) / d**0.5
    hidden = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
    x = x + projected(w, f"{prefix}self_attn.o_proj", torch.einsum("hnm,mhd->nhd", hidden, v).flatten(1))
    y = rms(x, w[f"{prefix}post_attention_layernorm.weight"])
    return x + projected(
        w,
        f"{prefix}mlp.down_proj",
        F.silu(projected(w, f"{prefix}mlp.gate_proj", y)) * projected(w, f"{prefix}mlp.up_proj", y),
    )


Outputs = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Tokens `[n]`, features `[n, D]` -> logits of all V tokens `[n, V]`, and what is fed back `[n, D]`."""


def drafts_by_formula(outputs: Outputs, tokens: list[int], features: Tensor, steps: int) -> tuple[list[int], Tensor]:
    """A chain of tokens behind the true features, and the logits of each."""
    drafted, logits = [], []
    for _ in range(steps):
        scores, fed_back = outputs(torch.tensor([*tokens, *drafted]), features)
        logits.append(scores[-1])
        drafted.append(int(scores[-1].argmax()))
        features = torch.cat((features, fed_back[-1:]))
    return drafted, torch.stack(logits)


def drafts_of(head: Any, features: Tensor, steps: int) -> tuple[list[int], Tensor]:
    """The same by a head that was loaded."""

    def widened(logits: Tensor) -> Tensor:
        ids = head.target_ids(torch.arange(logits.shape[-1]))
        return torch.full((V,), -torch.inf).index_copy(0, ids, logits)

    head.target.start(1, 64)
    head.begin([ROW], features.unsqueeze(0))
    scores, feature = head.advance([ROW])
    drafted, logits = [], []
    for _ in range(steps):
        logits.append(widened(scores[0]))
        drafted.append(int(logits[-1].argmax()))
        scores, feature = head.step(torch.tensor([drafted[-1]]), feature)
    return drafted, torch.stack(logits)


def put(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], file: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file, metadata={"format": "pt"}
        )
    elif file:
        torch.save(tensors, folder / file)
    return folder


def assert_drafts(kind: str, folder: Path, target: Any, outputs: Outputs, features: Tensor, states: Tensor) -> None:
    """The plan takes the head, and it drafts what the formula drafts. features: by the formula; states: of the target."""
    assert head_fault(kind, folder, CONFIG.to_dict()) is None
    head = part(kind, "module").load(folder, target)
    given = states if kind == "eagle" else head.fuse(states.unsqueeze(0))[0]
    if kind != "p_eagle":
        torch.testing.assert_close(given, features, atol=1e-4, rtol=1e-4)
    expected, theirs = drafts_by_formula(outputs, ROW[1:], features, 4)
    found, ours = drafts_of(head, given, 4)
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=2e-3)
    assert found == expected


EAGLES = {
    "paper": set(), "authors": {"fc.bias", "embed"}, "qwen": {"fc.bias", "biases"}, "normed": {"input_norm"},
    "own": {"embed", "own embed", "lm_head"}, "deep": {"two layers"}, "speculators": {"nested"},
    "vllm": {"within model"}, "speculators normed": {"nested", "fc.bias", "input_norm", "outer norms"},
}  # fmt: skip


@pytest.mark.parametrize("kind", EAGLES)
def test_eagle(kind: str, target: Any, source: Any, tmp_path: Path) -> None:
    has, r = EAGLES[kind], Numbers(1)
    w = {"fc.weight": r(D, 2 * D)} | r.layer("layers.0.", D, biases="biases" in has)
    w |= {"fc.bias": r(D)} if "fc.bias" in has else {}
    embedding, output = source.model.embed_tokens.weight.detach(), source.lm_head.weight.detach()
    w |= {"embed_tokens.weight": r(V, D) if "own embed" in has else embedding.clone()} if "embed" in has else {}
    w |= {"lm_head.weight": r(V, D)} if "lm_head" in has else {}
    w |= {"layers.0.input_layernorm.weight": r.norm(D)} if "input_norm" in has else {}
    w |= r.layer("layers.1.", D) | {"layers.1.input_layernorm.weight": r.norm(D)} if "two layers" in has else {}
    w |= (
        {name: r.norm(D) for name in ("embedding_layernorm.weight", "pre_lm_head_layernorm.weight")}
        if "outer norms" in has
        else {}
    )
    config, theirs = BASE | {"num_hidden_layers": 2 if "two layers" in has else 1}, w
    if "within model" in has:
        config = {"architectures": ["EAGLEModel"], "model_type": "eagle", "model": BASE}
    if "nested" in has:
        config = {
            "speculators_model_type": "eagle",
            "architectures": ["EagleSpeculator"],
            "transformer_layer_config": BASE,
        }
        theirs = {
            name.replace("fc.", "fusion_fc.").replace("layers.0.", "transformer."): tensor for name, tensor in w.items()
        }

    def outputs(tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        embedded = w.get("embed_tokens.weight", embedding)[tokens]
        if "outer norms" in has:
            embedded = rms(embedded, w["embedding_layernorm.weight"])
        x = projected(w, "fc", torch.cat((embedded, features), -1))
        x = decoder_layer(
            w, "layers.0.", 500.0, x, rms(x, w["layers.0.input_layernorm.weight"]) if "input_norm" in has else x
        )
        if "two layers" in has:
            x = decoder_layer(w, "layers.1.", 500.0, x, rms(x, w["layers.1.input_layernorm.weight"]))
        if "outer norms" in has:
            x = rms(x, w["pre_lm_head_layernorm.weight"])
        return x @ w.get("lm_head.weight", output).T, x

    states = Numbers(2)(len(ROW) - 1, D) * 3
    folder = put(tmp_path, config, theirs, "model.safetensors" if kind != "authors" else "pytorch_model.bin")
    assert_drafts("eagle", folder, target, outputs, states, states)


EAGLE3S = {
    "authors": set(), "whole": {"whole"}, "zeros": {"whole", "zeros"}, "first tokens": {"no ids"}, "mask": {"t2d alone"},
    "biases": {"biases", "own embed"}, "deep": {"two layers"}, "four states": {"four"},
    "speculators": {"nested", "own embed"}, "speculators normed": {"nested", "residual"}, "qwen3": {"nested", "head_norms"},
    "eagle-3.1": {"nested", "fc_norm", "norm_output"}, "gpt-oss": {"norm_before_fc", "residual"},
    "all": {"nested", "residual", "fc_norm", "norm_output", "two layers", "biases"},
}  # fmt: skip


@pytest.mark.parametrize("kind", EAGLE3S)
def test_eagle3(kind: str, target: Any, source: Any, tmp_path: Path) -> None:
    has, r = EAGLE3S[kind], Numbers(3)
    ids, first = [2, 3, 4, 5] if "four" in has else [2, 4, 5], "layers.0." if "nested" in has else "midlayer."
    rows = V if "whole" in has else VD
    reached = torch.arange(rows) if has & {"whole", "no ids"} else 3 * torch.arange(VD) + 1
    w = {"fc.weight": r(D, len(ids) * D)} | r.layer(
        first, 2 * D, biases="biases" in has, head_norms="head_norms" in has
    )
    w |= {f"{first}{name}.weight": r.norm(D) for name in ("input_layernorm", "hidden_norm")}
    w |= {"norm.weight": r.norm(D), "lm_head.weight": r(rows, D)}
    w |= {"embed_tokens.weight": r(V, D)} if "own embed" in has else {}
    w |= (
        r.layer("layers.1.", D, biases="biases" in has) | {"layers.1.input_layernorm.weight": r.norm(D)}
        if "two layers" in has
        else {}
    )
    w |= {f"fc_norm.{at}.weight": r.norm(D) for at in range(3)} if "fc_norm" in has else {}
    w |= {"input_norm.weight": r.norm(3 * D)} if "norm_before_fc" in has else {}
    t2d = torch.zeros(V, dtype=torch.bool).index_fill(0, reached, True)
    maps = {"d2t": reached - torch.arange(rows), "t2d": t2d}
    if has & {"whole", "no ids", "t2d alone"} and "zeros" not in has:
        maps = {"t2d": t2d} if "t2d alone" in has else {}
    flags = {
        "norm_before_residual": "residual" in has, "norm_before_fc": "norm_before_fc" in has, "fc_norm": "fc_norm" in has,
        "norm_output": "norm_output" in has,
    }  # fmt: skip
    layer = (
        BASE
        | {"num_hidden_layers": 2 if "two layers" in has else 1}
        | ({"model_type": "qwen3"} if "head_norms" in has else {})
    )
    config = layer | flags | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": rows}
    config |= (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}}
        if "four" in has
        else {}
    )
    if "nested" in has:
        config = flags | {
            "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
            "draft_vocab_size": rows, "transformer_layer_config": layer, "eagle_aux_hidden_state_layer_ids": ids,
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x"}},
        }  # fmt: skip
    embedding = w.get("embed_tokens.weight", source.model.embed_tokens.weight.detach())

    def outputs(tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        normed = rms(features, w[f"{first}hidden_norm.weight"])
        reads = torch.cat((rms(embedding[tokens], w[f"{first}input_layernorm.weight"]), normed), -1)
        x = decoder_layer(w, first, 500.0, normed if "residual" in has else features, reads)
        if "two layers" in has:
            x = decoder_layer(w, "layers.1.", 500.0, x, rms(x, w["layers.1.input_layernorm.weight"]))
        logits = torch.full((len(tokens), V), -torch.inf)
        logits[:, reached] = rms(x, w["norm.weight"]) @ w["lm_head.weight"].T
        return logits, rms(x, w["norm.weight"]) if "norm_output" in has else x

    states = Numbers(4)(len(ROW) - 1, len(ids) * D) * 3
    read = rms(states, w["input_norm.weight"]) if "norm_before_fc" in has else states
    if "fc_norm" in has:
        read = torch.cat([rms(chunk, w[f"fc_norm.{at}.weight"]) for at, chunk in enumerate(read.chunk(3, -1))], -1)
    folder = put(tmp_path, config, w | maps)
    assert_drafts("eagle3", folder, target, outputs, projected(w, "fc", read), states)
    if "norm_before_fc" not in has:
        _as_p_eagle(folder, config, w | maps, target, r)


def _as_p_eagle(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], target: Any, r: Numbers) -> None:
    """With a state for its masks the same head is one of P-EAGLE: masks are entries of the mask token and that state."""
    masks = r(len(tensors["fc.weight"][0]))
    listed = {"mask_token_id": 7} if "speculators_model_type" in config else {"ptd_token_id": 7}
    made = {"speculators_model_type": "peagle"} if "speculators_model_type" in config else {}
    put(folder / "parallel", config | listed | made, tensors | {"mask_hidden": masks.view(1, 1, -1)})
    assert head_fault("p_eagle", folder / "parallel", CONFIG.to_dict()) is None
    head, plain = (
        part(name, "module").load(folder / at, target) for name, at in (("p_eagle", "parallel"), ("eagle3", "."))
    )
    states = Numbers(5)(1, len(ROW) - 1, len(masks))
    target.start(1, 64)
    head.begin([ROW], states)
    logits = head.draft([ROW], [False], 3)
    every = torch.cat((states, masks.expand(1, 2, -1)), 1)
    plain.begin([[*ROW, 7, 7]], plain.fuse(every))
    expected, _ = plain.advance([[*ROW, 7, 7]])
    torch.testing.assert_close(logits[0, -1], expected[0], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("kind", ["authors", "biases", "own", "speculators", "speculators cut"])
def test_dflash(kind: str, target: Any, source: Any, tmp_path: Path) -> None:
    r, cut = Numbers(6), kind == "speculators cut"
    w = {"fc.weight": r(D, 2 * D), "hidden_norm.weight": r.norm(D), "norm.weight": r.norm(D)}
    for layer in range(2):
        w |= r.layer(f"layers.{layer}.", D, biases=kind == "biases", head_norms=True)
        w[f"layers.{layer}.input_layernorm.weight"] = r.norm(D)
    reached = 3 * torch.arange(VD) + 1 if cut else torch.arange(V)
    if kind == "own" or cut:
        w["lm_head.weight"] = r(len(reached), D)
    embedding, output = (
        source.model.embed_tokens.weight.detach(),
        w.get("lm_head.weight", source.lm_head.weight.detach()),
    )
    layers = BASE | {"model_type": "qwen3", "num_hidden_layers": 2}
    config = layers | {"architectures": ["DFlashDraftModel"], "block_size": 4, "num_target_layers": 8}
    config["dflash_config"] = {"mask_token_id": 7, "target_layer_ids": [1, 4]}
    if kind.startswith("speculators"):
        config = {
            "architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash", "transformer_layer_config": layers,
            "draft_vocab_size": len(reached), "block_size": 4, "aux_hidden_state_layer_ids": [2, 5], "mask_token_id": 7,
            "sliding_window_non_causal": False, "sample_from_anchor": False,
        }  # fmt: skip
    maps = {"d2t": reached - torch.arange(VD)} if cut else {}
    folder = put(tmp_path, config, w | maps)
    if kind == "own":  # a separate file says what its masks are embedded as
        embedding = embedding.clone()
        embedding[7] = r(D)
        torch.save({"mask_token_id": 7, "embedding": embedding[7].clone()}, folder / "mask_embedding.pt")
    assert head_fault("dflash", folder, CONFIG.to_dict()) is None
    head, states = part("dflash", "module").load(folder, target), Numbers(7)(len(ROW) - 1, 2 * D)
    assert head.target_layers == (2, 5)
    target.start(1, 64)
    head.begin([ROW], head.fuse(states.unsqueeze(0)))
    found = head.draft([ROW], [False], 3)[0]
    # Context and block side by side: each layer makes keys and values of the context from the features alone.
    features, x = rms(projected(w, "fc", states), w["hidden_norm.weight"]), embedding[torch.tensor([ROW[-1], 7, 7, 7])]
    angles = torch.arange(len(ROW) + 3).unsqueeze(1) * 500.0 ** (-torch.arange(0, d, 2) / d)
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)

    def turned(y: Tensor, start: int) -> Tensor:
        one, two, at = *y.chunk(2, -1), slice(start, start + len(y))
        return torch.cat((one * cos[at] - two * sin[at], two * cos[at] + one * sin[at]), -1)

    for prefix in ("layers.0.", "layers.1."):
        own = rms(x, w[f"{prefix}input_layernorm.weight"])
        both = torch.cat((features, own))
        q = rms(projected(w, f"{prefix}self_attn.q_proj", own).view(4, H, d), w[f"{prefix}self_attn.q_norm.weight"])
        k = rms(projected(w, f"{prefix}self_attn.k_proj", both).view(-1, K, d), w[f"{prefix}self_attn.k_norm.weight"])
        v = projected(w, f"{prefix}self_attn.v_proj", both).view(-1, K, d).repeat_interleave(H // K, 1)
        q, k = turned(q, len(features)), turned(k, 0).repeat_interleave(H // K, 1)
        weights = (torch.einsum("nhd,mhd->hnm", q, k) / d**0.5).softmax(-1)
        x = x + projected(w, f"{prefix}self_attn.o_proj", torch.einsum("hnm,mhd->nhd", weights, v).flatten(1))
        y = rms(x, w[f"{prefix}post_attention_layernorm.weight"])
        x = x + projected(
            w,
            f"{prefix}mlp.down_proj",
            F.silu(projected(w, f"{prefix}mlp.gate_proj", y)) * projected(w, f"{prefix}mlp.up_proj", y),
        )
    torch.testing.assert_close(found, rms(x[1:], w["norm.weight"]) @ output.T, atol=2e-3, rtol=2e-3)
    assert head.target_ids(torch.arange(found.shape[-1])).tolist() == reached.tolist()


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "model.safetensors"])
@pytest.mark.parametrize(("layers", "biases"), [(1, True), (2, True), (2, False)])
def test_medusa(file: str, layers: int, biases: bool, target: Any, tmp_path: Path) -> None:
    """Its authors' file, under their names and vLLM's."""
    r, named = Numbers(8), {"base_model_name_or_path": "x", "medusa_num_heads": 3, "medusa_num_layers": layers}
    blocks = [[(r(D, D), r(D)) for _ in range(layers)] for _ in range(3)]
    outputs, theirs = [r(V, D) for _ in range(3)], file != "model.safetensors"
    w: dict[str, Tensor] = {}
    for head, own in enumerate(blocks):
        for at, (weight, bias) in enumerate(own):
            name = f"{head}.{at}.linear" if theirs else f"blocks.{head}.layers.{at}"
            w |= {f"{name}.weight": weight} | ({f"{name}.bias": bias} if biases else {})
        w[f"{head}.{layers}.weight" if theirs else f"lm_heads.{head}.weight"] = outputs[head]
    if not theirs:
        named = {
            "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": D, "vocab_size": V, "num_heads": 3,
            "num_hidden_layers": layers, "medusa_fc_bias": biases, "truncated_vocab_size": V,
        }  # fmt: skip
    fewer = put(tmp_path / "fewer", named | {"medusa_num_heads" if theirs else "num_heads": 5}, w, file)
    planned = head_fault("medusa", fewer, CONFIG.to_dict())
    assert planned is not None and "says that there are 5 heads, its weights have 3" in planned
    with pytest.raises(DecodingError, match=re.escape(planned)):
        part("medusa", "module").load(fewer, target)
    folder = put(tmp_path, named, w, file)
    assert head_fault("medusa", folder, CONFIG.to_dict()) is None
    hidden = r(2, D)
    found = part("medusa", "module").load(folder, target)(hidden, 3)
    for head, own in enumerate(blocks):
        x = hidden
        for weight, bias in own:
            x = x + F.silu(x @ weight.T + (bias if biases else 0))
        torch.testing.assert_close(found[:, head], x @ outputs[head].T, atol=1e-4, rtol=1e-4)


def eagle_tensors(prefix: str = "") -> dict[str, Tensor]:
    r = Numbers(9)
    return {
        f"{prefix}{name}": tensor for name, tensor in ({"fc.weight": r(D, 2 * D)} | r.layer("layers.0.", D)).items()
    }


def test_shards_prefixes_and_tables_of_positions(target: Any, tmp_path: Path) -> None:
    plain = part("eagle", "module").load(put(tmp_path / "plain", BASE, eagle_tensors()), target)
    w = eagle_tensors("model.") | {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(d // 2)}
    names = sorted(w)
    for ending, save in (("safetensors", save_file), ("bin", torch.save)):
        folder = put(tmp_path / ending, BASE, {}, "")
        shards = {f"part-{at}.{ending}": {name: w[name] for name in names[at::2]} for at in range(2)}
        for file, tensors in shards.items():
            save(tensors, folder / file)
        index = {name: file for file, tensors in shards.items() for name in tensors}
        one = "model.safetensors" if ending == "safetensors" else "pytorch_model.bin"
        (folder / f"{one}.index.json").write_text(json.dumps({"weight_map": index}))
        assert head_fault("eagle", folder, CONFIG.to_dict()) is None
        head = part("eagle", "module").load(folder, target)
        assert torch.equal(head.fc.weight, plain.fc.weight) and torch.equal(
            head.blocks[0].norm_2, plain.blocks[0].norm_2
        )
        (folder / f"part-1.{ending}").unlink()
        with pytest.raises(DecodingError, match=rf"names part-1\.{ending}, not there; fetch it"):
            part("eagle", "module").load(folder, target)


def test_layers_are_counted_as_the_trainers_count_them(target: Any, tmp_path: Path) -> None:
    """SpecForge, ModelOpt and NeMo name the layers whose output a head reads; their defaults are the authors' own."""
    r = Numbers(10)
    w = {"fc.weight": r(D, 3 * D), "norm.weight": r.norm(D), "lm_head.weight": r(V, D)} | r.layer("midlayer.", 2 * D)
    w |= {f"midlayer.{name}.weight": r.norm(D) for name in ("input_layernorm", "hidden_norm")}
    config = BASE | {"architectures": ["LlamaForCausalLMEagle3"]}
    for ids, read in (([1, 3, 4], (2, 4, 5)), ([1, 4, 7], (1, 4, 7)), ([2, 4, 5], (2, 4, 5)), (None, (2, 4, 5))):
        keys = {} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
        assert part("eagle3", "module").load(put(tmp_path, config | keys, w), target).target_layers == read
    lifted = config | {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}  # speculators', and vLLM's
    assert part("eagle3", "module").load(put(tmp_path, lifted, w), target).target_layers == (1, 3, 4)


NESTED = {"transformer_layer_config": BASE, "speculators_config": {}, "draft_vocab_size": V}
REFUSED = {
    "hidden": ("eagle", BASE | {"hidden_size": 48}, "the head is for a hidden size of 48, the target's is 32"),
    "vocabulary": ("eagle", BASE | {"vocab_size": 50}, "the head is for 50 tokens, the target has 40"),
    "layers": (
        "eagle3",
        BASE | {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}},
        r"eagle_aux_hidden_state_layer_ids are \[2, 16, 29\], not rising ones from 0 to 7",
    ),
    "other layers": (
        "dflash",
        BASE | {"dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 0}, "num_target_layers": 36},
        "the head is for a target of 36 layers, this one has 8",
    ),
    "anchor": (
        "dflash",
        NESTED | {"speculators_model_type": "dflash", "aux_hidden_state_layer_ids": [2], "mask_token_id": 1, "sample_from_anchor": True},
        "a DFlash head with sample_from_anchor in its config is not supported here",
    ),
    "mtp": ("eagle", NESTED | {"speculators_model_type": "mtp"}, r"it holds layers for multi-token prediction \(MTP\), no EAGLE head"),
    "dspark": ("dflash", NESTED | {"speculators_model_type": "dspark"}, "it holds a DSpark head, no DFlash head: name it as `dspark`"),
    "gated": (
        "dspark",
        BASE | {"architectures": ["Qwen3DSparkModel"], "target_layer_ids": [2], "mask_token_id": 1, "markov_rank": 4, "markov_head_type": "gated"},
        "a DSpark head whose bias is gated is not supported here",
    ),
    "domino": ("dflash", BASE | {"architectures": ["DominoModel"]}, "it holds a Domino head, no DFlash head: no method here"),
    "unknown": ("eagle3", NESTED | {"speculators_model_type": "new"}, "it holds a head of speculators' kind 'new'"),
    "eagle3 as eagle": ("eagle", BASE | {"architectures": ["LlamaForCausalLMEagle3"]}, "it holds an EAGLE-3 head, no EAGLE head: name it as `eagle3`"),
    "medusa as eagle": ("eagle", {"medusa_num_heads": 3}, "it holds Medusa heads, no EAGLE head: name it as `medusa`"),
    "pard as eagle": ("eagle", BASE | {"pard_token": 3}, "it holds a PARD draft, no EAGLE head: name it as `pard`"),
    "latent attention": ("eagle3", {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, r"latent attention \(MLA\), no EAGLE-3 head"),
    "layers as text": (
        "eagle3",
        BASE | {"architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": "2,4,5"},
        "eagle_aux_hidden_state_layer_ids are '2,4,5', no list of layers",
    ),
    "quantized outside": ("eagle3", NESTED | {"speculators_model_type": "eagle3", "quantization_config": {"quant_method": "fp8"}}, r"quantized \(fp8\)"),
    "rotary": ("eagle", BASE | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, r"depend on the text's length \(dynamic\)"),
    "window": ("eagle", BASE | {"layer_types": ["sliding_attention"]}, "layers of sliding_attention are not supported"),
    "activation": ("eagle", BASE | {"hidden_act": "gelu"}, "its MLP has gelu where heads have silu"),
    "quantized": ("eagle", BASE | {"quantization_config": {"quant_method": "fp8"}}, r"quantized \(fp8\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_plan_and_loading_refuse_with_the_same_sentence(case: str, source: Any, tmp_path: Path) -> None:
    kind, config, says = REFUSED[case]
    folder = put(tmp_path / "head", config, eagle_tensors())
    planned = head_fault(kind, folder, CONFIG.to_dict())
    assert planned is not None and re.search(says, planned) and "damaged" not in planned
    with pytest.raises(DecodingError) as refused:
        part(kind, "module").load(folder, cached_model(source))
    assert str(refused.value) == planned


@pytest.mark.parametrize("offsets", [torch.arange(VD) * 5, torch.tensor([1, *[0] * (VD - 1)])])
def test_a_plan_reads_which_tokens_a_head_drafts(offsets: Tensor, source: Any, tmp_path: Path) -> None:
    config = BASE | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VD}
    r = Numbers()
    w = {"fc.weight": r(D, 3 * D), "lm_head.weight": r(VD, D)} | r.layer("midlayer.", 2 * D)
    w |= {f"{name}.weight": r.norm(D) for name in ("norm", "midlayer.input_layernorm", "midlayer.hidden_norm")}
    folder = put(tmp_path / "right", config, w | {"d2t": torch.arange(VD)})
    assert head_fault("eagle3", folder, CONFIG.to_dict()) is None
    folder = put(tmp_path / "torch", config, w | {"d2t": torch.arange(VD)}, "pytorch_model.bin")
    assert head_fault("eagle3", folder, CONFIG.to_dict()) is None
    folder = put(tmp_path / "wrong", config, w | {"d2t": offsets})
    planned = head_fault("eagle3", folder, CONFIG.to_dict())
    assert planned is not None and f"d2t maps outside the {V} tokens or twice (token i of the head is" in planned
    with pytest.raises(DecodingError) as refused:
        part("eagle3", "module").load(folder, cached_model(source))
    assert str(refused.value) == planned


def test_other_contents_and_damaged_files_are_named(source: Any, tmp_path: Path) -> None:
    target = cached_model(source)

    def said(folder: Path, kind: str = "eagle") -> str:
        planned = head_fault(kind, folder, CONFIG.to_dict())
        with pytest.raises(DecodingError) as refused:
            part(kind, "module").load(folder, target)
        assert planned is None or planned.split(";")[0][:60] == str(refused.value).split(";")[0][:60]
        return str(refused.value)

    source.save_pretrained(tmp_path / "model")
    assert "it holds a draft model of its own, no EAGLE head: name it in the column `draft`" in said(tmp_path / "model")
    tensors = eagle_tensors()
    lacking = put(tmp_path / "lacking", BASE, {name: t for name, t in tensors.items() if "o_proj" not in name})
    assert "layers.0.self_attn.o_proj.weight is missing" in said(lacking) and "damaged" not in said(lacking)
    pointer = put(tmp_path / "pointer", BASE, {}, "")
    (pointer / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    assert "a pointer of Git LFS, not the weights; fetch them with `git lfs pull`" in said(pointer)
    assert "no EAGLE head there (none of the files model.safetensors" in said(put(tmp_path / "empty", BASE, {}, ""))
    assert "no EAGLE head there (no config.json)" in said(tmp_path / "nowhere")
    cut = put(tmp_path / "cut", BASE, tensors)
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-40])
    assert re.search("damaged .*copy, fetch or train it again", said(cut))
    (cut / "config.json").write_text("{")
    assert re.search("damaged, it is not JSON .*copy, fetch or train it again", said(cut))


def test_a_head_as_published_keeps_the_output(source: Any, tmp_path: Path) -> None:
    """Drafts of a head with all that the layouts vary, accepted or not, leave the target's text as it is."""
    kernel_choice.pin()
    target, r = cached_model(source), Numbers(3)
    w = {"fc.weight": r(D, 3 * D), "norm.weight": r.norm(D), "lm_head.weight": r(VD, D)} | r.layer("layers.0.", 2 * D)
    w |= {f"layers.0.{name}.weight": r.norm(D) for name in ("input_layernorm", "hidden_norm")}
    w |= {f"fc_norm.{at}.weight": r.norm(D) for at in range(3)} | {"d2t": torch.arange(VD)}
    config = NESTED | {"speculators_model_type": "eagle3", "draft_vocab_size": VD, "fc_norm": True, "norm_output": True}
    folder = put(tmp_path, config | {"norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]}, w)
    resources = SimpleNamespace(target=target, head=lambda _: folder)

    def output(method: str, **options: Any) -> list[list[int]]:
        kind = registry()[method]
        rows = generate(
            target, kind(kind.Options(**options), resources), [ROW[:4], [7]], k=3, max_new_tokens=20, temperature=0
        )
        return [row.tokens for row in rows]

    assert output("eagle3") == output("eagle3", nodes=6, top_k=2) == output("autoregressive")


def test_every_layout_is_listed_and_none_needs_torch(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in row.split("|")[1:3]] for row in page.splitlines() if row.startswith("| `")]
    for layout in (layout for layout in LAYOUTS if layout.kind != "hydra"):
        assert any(kind == f"`{layout.kind}`" and layout.writers in writers for kind, writers in cells), layout.writers
    folder = put(tmp_path, BASE, eagle_tensors())
    code = (
        "import sys; from pathlib import Path; from specrig.heads.contents import head_fault; "
        f"print(head_fault('eagle', Path({str(folder)!r}), {{}})); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "None\n"
