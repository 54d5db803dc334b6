"""MTP layers that a target's own checkpoint carries: they draft what transformers' own code says, or are refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, modeling_layers
from transformers.cache_utils import DynamicCache
from transformers.models.glm4_moe import Glm4MoeForCausalLM

from specrig.cell import Cell
from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.engines import registry as engines
from specrig.errors import EngineError
from specrig.heads.contents import head_fault
from specrig.heads.layouts import MTP_LAYERS
from specrig.heads.mtp.module import CarriedHead, load
from specrig.models.gate import check_weights
from specrig.models.pair import PairFiles
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError
from specrig.runtime.whole import load_whole
from specrig.study.load import load_study

LAYERS, V, D = 2, 60, 64
SIZES = {
    "vocab_size": V, "hidden_size": D, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
"""The smallest that vLLM's kernels take."""
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "head_dim": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
EXACT = {"acceptance": "exact"}
OWN = {"deepseek_v3": LATENT, "glm4_moe": {"head_dim": 32}, "glm4_moe_lite": LATENT}


def checkpoint(kind: str, folder: Path) -> Path:
    """A model of this architecture as its authors publish it: its further layer has the number behind the last one's. The
    next token depends most on the last one, for the model and for that layer.
    """
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES | OWN[kind] | {"num_hidden_layers": LAYERS + 1})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            size = {"o_proj": 0.06, "down_proj": 0.06, "embed_tokens": D**0.5}.get(name.split(".")[-2], 1.5)
            size = 0.06 if name.endswith("experts.down_proj") else size
            weight.normal_(0.0, size / weight.shape[-1] ** 0.5) if weight.dim() > 1 else weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    tensors, layer = load_file(folder / "model.safetensors"), f"model.layers.{LAYERS}"
    tensors |= {f"{layer}.{name}.weight": 0.5 + torch.rand(D) for name in ("enorm", "hnorm")}
    tensors[f"{layer}.shared_head.norm.weight"] = tensors["model.norm.weight"] + 0.1 * torch.rand(D)
    tensors[f"{layer}.eh_proj.weight"] = torch.cat((torch.eye(D), 0.3 * torch.randn(D, D) / D**0.5), 1)
    tensors[f"{layer}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder, num_hidden_layers=LAYERS, num_nextn_predict_layers=1)
    tokenizer = Tokenizer(models.WordLevel({chr(65 + token): token for token in range(V)}, unk_token="A"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="A").save_pretrained(folder)
    return folder


def edit(folder: Path, **keys: Any) -> None:
    """Change config.json; lists of layers lose their last one."""
    config = json.loads((folder / "config.json").read_text())
    cut = {key: config[key][:LAYERS] for key in ("layer_types", "mlp_layer_types") if config.get(key)}
    (folder / "config.json").write_text(json.dumps({**config, **cut, **keys}))


@pytest.fixture(scope="module", params=MTP_LAYERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target's, with layers."""
    return checkpoint(request.param, tmp_path_factory.mktemp(request.param))


def drafter(folder: Path, target: Any) -> Any:
    kind = registry()["mtp"]
    return kind(kind.Options(), SimpleNamespace(target=target, head=lambda _: folder))


def test_they_draft_what_transformers_says(folder: Path) -> None:
    """Its `MtpModel` runs a layer once; a second step on its own state is that layer again."""
    if not hasattr(modeling_layers, "MtpModel"):
        pytest.skip("this transformers has no MtpModel")
    main = AutoModelForCausalLM.from_pretrained(folder)
    main.config.num_mtp_layers, main.config.mtp_mlp_layer_types = 1, ["sparse"]  # GLM-4 MoE Lite's has no such keys
    main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{LAYERS}\..*"]
    theirs = modeling_layers.MtpModel.from_pretrained(main).eval()
    layer, text = theirs.layers[0], torch.tensor([[5, 9, 2, 11, 7, 3, 41, 8]])
    target = cached_model(load_whole(str(folder)))
    target.start(1, 64)
    _, hidden = target.forward(text[:, :-1])
    head = load(folder, target)
    assert isinstance(head, CarriedHead)
    head.begin(text.tolist(), hidden)
    logits, feature = head.advance(text.tolist())
    further, _ = head.step(torch.tensor([17]), feature)

    def states(tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        embedded, n = theirs.embed_tokens(tokens), tokens.shape[1]
        places = torch.arange(n).unsqueeze(0)
        hidden = torch.full((n, n), torch.finfo(torch.float32).min).triu(1).view(1, 1, n, n)
        found: torch.Tensor = layer(
            embedded, states, position_embeddings=theirs.rotary_emb(embedded, position_ids=places), position_ids=places,
            attention_mask=hidden, past_key_values=DynamicCache(),
        )  # fmt: skip
        return found

    with torch.inference_mode():
        first = states(text[:, 1:], hidden)
        second = states(torch.cat((text[:, 1:], torch.tensor([[17]])), 1), torch.cat((hidden, first[:, -1:]), 1))
        expected = [theirs.shared_head(found[:, -1]) for found in (first, second)]
    torch.testing.assert_close(logits, expected[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(further, expected[1], atol=1e-4, rtol=1e-4)


def test_output_stays_the_targets(folder: Path) -> None:
    """Of a folder that planning lets pass, in a batch of two lengths; a place off, hardly a draft would be accepted."""
    assert head_fault("mtp", folder, json.loads((folder / "config.json").read_text())) is None
    check_weights(folder)
    target = cached_model(load_whole(str(folder)))
    prompts = [[5, 9, 2, 11, 7, 3], [8, 1]]

    def outputs(method: Any, k: int) -> list[Any]:
        return generate(target, method, prompts, k=k, max_new_tokens=40, temperature=0)

    plain, found = registry()["autoregressive"], outputs(drafter(folder, target), 3)
    expected = outputs(plain(plain.Options(), SimpleNamespace(target=target)), 0)
    assert [row.tokens for row in found] == [row.tokens for row in expected]
    assert all(39 / len(row.rounds) > 1.5 for row in found)


@pytest.mark.vllm
@pytest.mark.skipif(engines()["vllm"].missing() is not None, reason="vLLM is not installed")
def test_vllm_drafts_what_is_drafted_here(tmp_path: Path) -> None:
    """Round for round, with GLM-4's experts; one token, since vLLM feeds another state back (`Vllm.differences`)."""
    folder = checkpoint("glm4_moe", tmp_path / "glm")
    options = {"vllm": {"eager": True, "multiprocessing": False}}
    pair = PairFiles("tiny", str(folder), heads={"mtp": folder}, engine_options=options)
    found = []
    for name in ("native", "vllm"):
        cell = Cell(engine=name, pair="tiny", method="mtp", k=1, task="t", temperature=0.0, options=EXACT)
        with engines()[name](pair) as engine:
            found.append(engine.generate(cell, [[3, 5, 9, 5, 7, 3, 41]], max_new_tokens=40, seeds=[0])[0])
    mine, theirs = found
    assert mine.tokens == theirs.tokens
    assert [(entry.drafted, entry.accepted) for entry in mine.rounds[:-1]] == [
        (entry.drafted, entry.accepted) for entry in theirs.rounds[:-1]
    ]
    assert any(entry.accepted for entry in mine.rounds)


def test_transformers_drafts_with_the_layers_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is the target's, and of one token a round it accepts what is accepted here. It knows the layers by the numbers
    that they have in published checkpoints, of 46 and 92 layers.
    """
    folder = checkpoint("glm4_moe", tmp_path / "glm")
    pair = PairFiles("tiny", str(folder), heads={"mtp": folder})
    cell = Cell(engine="transformers", pair="tiny", method="mtp", k=1, task="t", temperature=0.0, options=EXACT)
    with engines()["transformers"](pair) as engine, pytest.raises(EngineError, match="of a glm4_moe of 2 layers"):
        engine.generate(cell, [[3, 5]], max_new_tokens=8, seeds=[0])
    numbers = [rf"model\.layers\.{LAYERS}.*"]
    monkeypatch.setattr(Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", numbers)
    found = []
    for name in ("native", "transformers"):
        cell = Cell(engine=name, pair="tiny", method="mtp", k=1, task="t", temperature=0.0, options=EXACT)
        with engines()[name](pair) as engine:
            found.append(engine.generate(cell, [[3, 5, 9, 5, 7, 3, 41]], max_new_tokens=40, seeds=[0])[0])
            if name == "transformers":
                with pytest.raises(EngineError, match="this target has 1: set k: 1"):
                    engine.generate(cell.model_copy(update={"k": 2}), [[3, 5]], max_new_tokens=8, seeds=[0])
    mine, theirs = found
    assert mine.tokens == theirs.tokens
    assert sum(entry.accepted for entry in theirs.rounds) > 0
    assert [(entry.drafted, entry.accepted) for entry in mine.rounds[:-1]] == [
        (entry.drafted, entry.accepted) for entry in theirs.rounds[1:-1]
    ]


def test_layers_of_another_model_or_in_another_form_are_refused(tmp_path: Path) -> None:
    folder = checkpoint("glm4_moe", tmp_path / "glm")
    target = cached_model(load_whole(str(folder)))
    tensors = load_file(folder / "model.safetensors")
    for name, words in (
        (f"model.layers.{LAYERS}.eh_proj.weight", "its MTP layer lacks fc"),
        (f"model.layers.{LAYERS}.self_attn.q_proj.weight", r"its MTP layer lacks model\.layers\.0\.self_attn\.q_proj"),
    ):
        save_file({key: tensor for key, tensor in tensors.items() if key != name}, folder / "model.safetensors")
        with pytest.raises(DecodingError, match=f"{folder}: {words}.*; take all of its weights from one place"):
            load(folder, target)
    edit(folder, hidden_size=32)
    words = "its MTP layers are of a model whose hidden_size is 32, the target's is 64: name the target itself"
    assert head_fault("mtp", folder, target.config.to_dict()) == f"{folder}: {words}"
    with pytest.raises(DecodingError, match=words):
        load(folder, target)
    edit(folder, hidden_size=64, num_nextn_predict_layers=0)
    with pytest.raises(DecodingError, match="no head for multi-token prediction"):
        load(folder, target)
    qwen = SimpleNamespace(model_type="qwen2", to_dict=lambda: {"model_type": "qwen2"})
    edit(folder, model_type="qwen2", num_nextn_predict_layers=1)
    with pytest.raises(DecodingError, match=r"MTP layers of qwen2 are not read here, those of deepseek_v3, .* are"):
        load(folder, SimpleNamespace(config=qwen))  # type: ignore[arg-type]


def test_engines_draft_with_layers_of_the_checkpoint_alone() -> None:
    """Whose config.json counts them by one of several keys."""
    vllm, llamacpp = engines()["vllm"], engines()["llamacpp"]
    cell = Cell(engine="vllm", pair="x", method="mtp", k=2, task="t", temperature=0.0, options=EXACT)
    assert vllm.refuses(cell) is None
    assert "acceptance: exact" in str(vllm.refuses(cell.model_copy(update={"options": {"acceptance": "block"}})))
    assert vllm.refuses_model("mtp", {"text_config": {"mtp_num_hidden_layers": 1}}) is None
    assert "its config.json names none" in str(vllm.refuses_model("mtp", {"num_nextn_predict_layers": 0}))
    assert vllm.refuses_model("eagle", {}) is None
    assert "draft-mtp" in str(llamacpp.refuses(cell))


def test_engines_that_need_the_checkpoints_layers_are_refused_with_a_gguf_file() -> None:
    study = load_study(Path("configs/equal_text.yaml"))
    assert study.grid.impossible("native", "smollm2_135m", "mtp") is None
    for engine in ("vllm", "transformers"):
        assert "its config.json names none" in str(study.grid.impossible(engine, "smollm2_135m", "mtp"))
