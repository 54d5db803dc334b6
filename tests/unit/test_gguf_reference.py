"""A folder that was made from a GGUF file is held against llama.cpp on the file: a right one passes, and each way of
losing something on the way is seen. Files and folders are written here, each from the same tiny model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pandas as pd
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from runs import own_study
from specrig.audit import references
from specrig.audit.multiple_testing import BASELINE_TESTS, LLAMA_CPP
from specrig.audit.run import audit_records
from specrig.engines.llamacpp import LlamaCpp
from specrig.measurement.records import study_records
from specrig.measurement.runner import measure
from specrig.models import gate
from specrig.report.audit_tables import baseline_warning, sentence
from specrig.study.load import load_study

pytest.importorskip("xllamacpp")

TOKENS = [*bytes_to_unicode().values(), "Ġt", "<bos>", "<eos>", "<turn>"]
BOS, EOS, TURN = 257, 258, 259
LLAMA = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = LLAMA | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
SIZES: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": BOS,
    "eos_token_id": [EOS, TURN],
    "pad_token_id": None,
    "initializer_range": 0.3,
}
PROMPTS = ["two small things", "The seventh train to the town went late through the thin mist, and then it stopped."]


def config(kind: str) -> Any:
    if kind == "llama":
        return LlamaConfig(
            **SIZES, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
        )
    return Gemma3TextConfig(**SIZES, sliding_window=8, query_pre_attn_scalar=8, layer_types=["sliding_attention"] * 2)


def write_folder(folder: Path, model: Any, *, bos: bool = True) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(TOKENS[:BOS])}, merges=[("Ġ", "t")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in TOKENS[BOS:]])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>").save_pretrained(folder)
    (folder / "source.json").write_text(json.dumps({"source": "model.gguf"}))


def write_file(file: Path, model: Any, kind: str, *, factors: list[float] | None = None) -> None:
    """As llama.cpp's converter does. factors: of the rotary frequencies, of which only a tensor tells."""
    shape, out = model.config, gguf.GGUFWriter(file, kind)
    out.add_context_length(shape.max_position_embeddings)
    out.add_embedding_length(shape.hidden_size)
    out.add_block_count(shape.num_hidden_layers)
    out.add_feed_forward_length(shape.intermediate_size)
    out.add_head_count(shape.num_attention_heads)
    out.add_head_count_kv(shape.num_key_value_heads)
    out.add_key_length(shape.head_dim)
    out.add_value_length(shape.head_dim)
    out.add_layer_norm_rms_eps(shape.rms_norm_eps)
    if kind == "llama":
        out.add_rope_dimension_count(shape.head_dim)
        out.add_rope_freq_base(1e4)
    else:
        out.add_sliding_window(shape.sliding_window)
        out.add_rope_freq_base(1e6)
    out.add_vocab_size(shape.vocab_size)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("default")
    out.add_token_list(TOKENS)
    out.add_token_types([gguf.TokenType.NORMAL] * BOS + [gguf.TokenType.CONTROL] * 3)
    out.add_token_merges(["Ġ t"])
    out.add_bos_token_id(BOS)
    out.add_eos_token_id(EOS)
    out.add_eot_token_id(TURN)
    out.add_add_bos_token(True)
    state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    moved = 0.0 if kind == "llama" else 1.0  # llama.cpp's file holds what Gemma multiplies with
    out.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    out.add_tensor("output_norm.weight", state["model.norm.weight"] + moved)
    if factors:
        out.add_tensor("rope_freqs.weight", torch.tensor(factors).numpy())
    for layer in range(shape.num_hidden_layers):
        for ours, theirs in (LLAMA if kind == "llama" else GEMMA).items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if kind == "llama" and theirs in ("attn_q", "attn_k"):
                heads = shape.num_attention_heads if theirs == "attn_q" else shape.num_key_value_heads
                weight = weight.reshape(heads, 2, -1, shape.hidden_size).swapaxes(1, 2).reshape(weight.shape)
            out.add_tensor(f"blk.{layer}.{theirs}.weight", weight + moved if weight.ndim == 1 else weight)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def write(kind: str, *, bos: bool = True, factors: list[float] | None = None) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(kind)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # all ones could be left out unnoticed
                weight.add_(0.3 * torch.randn_like(weight))
    write_folder(Path("model"), model, bos=bos)
    write_file(Path("model.gguf"), model, kind, factors=factors)


def changed(**keys: Any) -> None:
    for name in ("config.json", "generation_config.json"):
        file = Path("model", name)
        known = json.loads(file.read_text())
        file.write_text(json.dumps(known | {key: value for key, value in keys.items() if key in known}))


def baselines() -> pd.DataFrame:
    """The rows on plain decoding of a study of the folder, whose method equals it in any case."""
    gate._json.cache_clear()
    references.header.cache_clear()
    methods = [{"method": "ngram", "k": 3}]
    config = own_study("made", "pair\ttarget\ntiny\tmodel\n", PROMPTS, methods=methods, max_new_tokens=12)
    study = load_study(config)
    measure(study, "native", "tiny", ["ngram"])
    out = study.root / "audit" / "records.csv"
    audit_records(study, study_records(study.root / "records"), study.root, out)
    audit = pd.read_csv(out)
    own = audit["test"].isin(list(BASELINE_TESTS))
    assert audit[~own]["passed"].all(), "a method agrees with a wrong baseline"
    return audit[own]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_right_folder_passes(workplace: Path, kind: str) -> None:
    write(kind)
    rows = baselines()
    assert rows["passed"].all() and set(rows["test"]) == {LLAMA_CPP}, rows["finding"].tolist()
    assert len(rows) == (2 if kind == "llama" else 3), "the window of 8 is crossed by a prompt of its own"
    assert rows["finding"].str.contains("first-token logits within").all()
    assert "gives the same output as llama.cpp on the GGUF file" in sentence(rows)


def without_bos() -> None:
    write("llama", bos=False)


def with_another_base() -> None:
    write("llama")
    changed(rope_parameters={"rope_type": "default", "rope_theta": 5e5})


def without_a_tensor() -> None:
    write("llama", factors=[1.0, 1.0, 8.0, 8.0])


def without_a_stop_id() -> None:
    write("llama")
    changed(eos_token_id=EOS)


def with_another_window() -> None:
    write("gemma3")
    changed(sliding_window=9)


@pytest.mark.parametrize(
    ("flaw", "finding"),
    [
        (without_bos, "prompt ids differ from token 0 on"),
        (with_another_base, "first-token logits differ"),
        (without_a_tensor, "first-token logits differ"),
        (without_a_stop_id, f"stop ids differ: {TURN} ends an output in llama.cpp alone"),
        (with_another_window, "first-token logits differ"),
    ],
)
def test_what_the_folder_lost_is_seen(workplace: Path, flaw: Callable[[], None], finding: str) -> None:
    flaw()
    rows = baselines()
    failed = rows[rows["passed"].notna() & ~rows["passed"].fillna(True).astype(bool)]
    assert failed["finding"].str.contains(finding).any(), rows["finding"].tolist()
    assert not failed["finding"].str.contains(": the same ").any(), "what verification reads as passed"
    assert "differs from llama.cpp on the GGUF file (native/tiny)" in baseline_warning(rows)


def test_without_llama_cpp_the_row_says_how_to_get_it(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("llama")
    monkeypatch.setattr(
        LlamaCpp, "missing", classmethod(lambda _: "llama.cpp is not installed: pip install 'specrig[llamacpp]'")
    )
    rows = baselines()
    assert rows["passed"].isna().all() and baseline_warning(rows) == ""
    assert rows["finding"].tolist() == ["not compared: llama.cpp is not installed: pip install 'specrig[llamacpp]'"]
    assert "Plain decoding has no independent reference (native/tiny). The table says why." in sentence(rows)
