"""What cannot be used is refused before weights are read, each kind with a sentence of its own, which docs/models.md
prints; and the target's tokens are its own, whatever drafts.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import language_model, tokenizer
from safetensors.torch import load_file, save_file

from runs import own_study
from specrig.cell import Cell
from specrig.cli import main
from specrig.decoding.drafters import registry
from specrig.engines.native import Native
from specrig.engines.transformers import Transformers
from specrig.models import gate, needs
from specrig.models.pair import ModelError, PairFiles
from specrig.models.weights import PretrainedWeights
from specrig.runtime.types import DecodingError

PAGE = Path(__file__).parents[2] / "docs/models.md"
SPECIAL = ("<s>", "</s>", "<pad>", "<turn>", "<end>")
"""Of a target with 261 tokens, the last of which ends a text; a draft with 259 rows lacks the last two."""
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "model"
    language_model(folder, 258, max_position_embeddings=4096)
    return folder


def config(**keys: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | keys))

    return change


def tensors(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        read = load_file(folder / WEIGHTS)
        change(read)
        save_file(read, folder / WEIGHTS, metadata={"format": "pt"})

    return rewrite


def only(*files: str, content: str = "{}") -> Callable[[Path], None]:
    """Nothing but these files."""

    def replace(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for file in files:
            (folder / file).write_text(content)

    return replace


def renamed(**names: str) -> Callable[[Path], None]:
    def move(folder: Path) -> None:
        for new, old in names.items():
            (folder / old).rename(folder / new.replace("__", "."))

    return move


def adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "its/base"}))


def lone_adapter(folder: Path) -> None:
    only("adapter_model.safetensors")(folder)
    adapter(folder)


def pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def shards(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


def torch_file(content: object) -> Callable[[Path], None]:
    """Weights in a file of torch alone."""

    def replace(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        torch.save(content, folder / "pytorch_model.bin")

    return replace


def cut_torch_file(folder: Path) -> None:
    torch_file({"weight": torch.zeros(100)})(folder)
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-100])


def far_end(folder: Path) -> None:
    config(eos_token_id=300)(folder)
    (folder / "generation_config.json").unlink()


def lacking(name: str) -> Callable[[Path], None]:
    return tensors(lambda read: read.__delitem__(name))


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def larger_tokenizer(folder: Path) -> None:
    tokenizer(*SPECIAL, eos="<end>").save_pretrained(folder)


def autogptq(folder: Path) -> None:
    (folder / "quantize_config.json").write_text("{}")


def eight_bits(read: dict[str, Any]) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    read[name] = read[name].to(torch.float8_e4m3fn)


def with_bias(read: dict[str, Any]) -> None:
    read["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)


KINDS: dict[str, Callable[[Path], None]] = {
    "an empty folder": only(),
    "a folder of something else": only("notes.txt"),
    "an adapter (LoRA)": lone_adapter,
    "an adapter beside a model": adapter,
    "pointers of Git LFS": pointer,
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "weights in their authors' layout": only("consolidated.00.pth", "params.json"),
    "an ONNX export": renamed(model__onnx=WEIGHTS),
    "a diffusers pipeline": only("model_index.json"),
    "a folder of GGUF files": only("model.Q4_0.gguf"),
    "missing shards": shards,
    "a file that is cut short": cut,
    "a file of torch that is cut short or none": cut_torch_file,
    "an unknown scaling of rotary positions": config(rope_scaling={"rope_type": "of tomorrow", "factor": 2.0}),
    "no tokenizer": no_tokenizer,
    "a tokenizer with more tokens than the embedding has rows": larger_tokenizer,
    "an end of text beyond the rows": far_end,
    "padding beyond the rows": config(pad_token_id=300),
    "other numbers of tokens": config(vocab_size=300),
    "another width": config(hidden_size=64),
    "other layers": config(num_hidden_layers=1),
    "other heads of attention": config(num_key_value_heads=1),
    "tensors that nothing reads": tensors(with_bias),
    "tensors that are missing": lacking("model.norm.weight"),
    "no LM head": lacking("lm_head.weight"),
    "a quantized model": config(quantization_config={"quant_method": "gptq", "bits": 4}),
    "a quantization of MLX": config(quantization={"group_size": 64, "bits": 4}),
    "8 bits that config.json does not name": tensors(eight_bits),
    "code of its own": config(model_type="nobodys", auto_map={"AutoModelForCausalLM": "modeling.Own"}),
    "an unknown architecture": config(model_type="nobodys"),
    "a head": config(architectures=["LlamaForCausalLMEagle3"]),
    "an encoder": config(model_type="bert", architectures=["BertForMaskedLM"]),
    "an encoder-decoder": config(is_encoder_decoder=True),
    "a model of images": config(model_type="vit", architectures=["ViTForImageClassification"]),
    "a model that reads more than text": config(model_type="x", architectures=["XForConditionalGeneration"]),
}
OTHER_WAYS: dict[str, Callable[[Path], None]] = {
    "a quantized model": autogptq,
    "pointers of Git LFS": lambda folder: (folder / "tokenizer.json").write_bytes(b"version https://git-lfs.github"),
}
"""The same sentences for other files."""


def sentences() -> dict[str, str]:
    """Kind -> the sentence that the page prints."""
    rows = re.findall(r"^\| ([^|]+) \| `(.+)` \|$", PAGE.read_text(), re.MULTILINE)
    return dict(rows)


def broken(model: Path, to: Path, change: Callable[[Path], None]) -> Path:
    folder = Path(shutil.copytree(model, to))
    change(folder)
    return folder


def refusal(folder: Path) -> str:
    try:
        gate.check_model(str(folder))
        return f"{folder}: {needs.unreadable(gate.config(str(folder)))}"
    except ModelError as error:
        return str(error)


def says(sentence: str, text: str) -> bool:
    """Whether a text holds a sentence, whose `…` stand for anything."""
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in sentence.split("…"))
    return re.search(pattern, " ".join(text.split())) is not None


def test_the_page_lists_every_kind() -> None:
    assert list(sentences()) == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_pages_sentence(kind: str, model: Path, tmp_path: Path) -> None:
    for number, change in enumerate(filter(None, (KINDS[kind], OTHER_WAYS.get(kind)))):
        text = refusal(broken(model, tmp_path / f"model{number}", change))
        assert str(tmp_path) in text and says(sentences()[kind], text), text


def test_the_whole_model_is_taken(model: Path) -> None:
    gate.check_model(str(model))
    assert needs.unreadable(gate.config(str(model))) is None


@pytest.mark.parametrize("kind", KINDS)
def test_plan_and_decode_say_the_same(
    kind: str, model: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = broken(model, workplace / "mine", KINDS[kind])
    Path("configs/pairs.tsv").write_text(f"pair\ttarget\nmine\t{folder}\n")
    Path("configs/own.yaml").write_text("study: own\npairs: [mine]\ntasks: [code]\nmethods: [{method: ngram, k: 2}]\n")
    texts = []
    for arguments in (
        ["plan", "configs/own.yaml"],
        ["decode", "a", "--target", str(folder), "--method", "ngram", "--device", "cpu"],
    ):
        assert main(arguments) == 2, kind
        captured = capsys.readouterr()
        texts.append(captured.out + captured.err)
    for text in texts:
        assert "unexpected error" not in text and "report it" not in text
        assert says(sentences()[kind], text), text


def test_a_file_of_torch_that_would_run_code_is_refused_when_it_is_loaded(model: Path, tmp_path: Path) -> None:
    folder = broken(model, tmp_path / "mine", torch_file({"weight": Path}))
    with pytest.raises(ModelError, match="holds more than weights, which torch does not load"):
        PretrainedWeights(PairFiles("p", str(folder))).model("target", "cpu")


def test_a_token_for_images_without_a_row_is_let_pass(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "images"))
    tokenizer("<s>", "</s>", "<image_soft_token>").save_pretrained(folder)
    gate.check_model(str(folder))
    with Native(PairFiles("p", str(folder)), threads=1) as engine:
        assert engine.target.vocab_size == 258
        with pytest.raises(DecodingError, match="holds token 258, the model's embedding has 258 rows"):
            prompt = engine.encode("a<image_soft_token>")
            engine.generate(cell("autoregressive", 0), [prompt], max_new_tokens=2, seeds=[0])


def test_settings_that_transformers_refuses_do_no_harm(model: Path, tmp_path: Path) -> None:
    """Only the ids that end a text are read of generation_config.json."""
    folder = Path(shutil.copytree(model, tmp_path / "odd"))
    settings = {"num_return_sequences": 2, "do_sample": False, "temperature": "hot", "eos_token_id": [257, 256]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert gate.stop_ids(str(folder)) == (257, 256)
    engine = Native(PairFiles("odd", str(folder)), threads=1)
    assert engine.eos == {256, 257}
    engine.generate(cell("autoregressive", 0), [[5, 9]], max_new_tokens=2, seeds=[0])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target of 261 tokens in 264 rows that ends its text with token 260, and a draft that is the same but for its rows:
    259.
    """
    root = tmp_path_factory.mktemp("pair")
    for seed in range(20):
        target = language_model(root / "target", 264, special=SPECIAL, seed=seed)
        rows, text = target.lm_head.weight, list[int]()
        with torch.no_grad():
            rows[259:] *= 0.01
            while len(text) < 4 or (text[-1] in text[:-1] and len(text) < 12):
                text.append(int(target(torch.tensor([[97, *text]])).logits[0, -1].argmax()))
            if text[-1] in text[:-1] or max(text) >= 259:
                continue
            rows[[text[-1], 260]] = rows[[260, text[-1]]]  # the first new token after three is now the end
        break
    target.save_pretrained(root / "target")
    draft = language_model(root / "draft", 259, special=SPECIAL)
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            weight.copy_(target.get_parameter(name)[: len(weight)])
    draft.save_pretrained(root / "draft")
    return root / "target", root / "draft"


def cell(method: str, k: int, temperature: float = 0.0, **options: Any) -> Cell:
    chosen = registry()[method].Options.model_validate(options).model_dump()
    return Cell(
        engine="native", pair="p", method=method, k=k, task="t", temperature=temperature, batch_size=1, options=chosen
    )


METHODS = {
    "draft_model": (4, {}),
    "adaptive_k": (4, {}),
    "tree": (2, {"branching": [3, 2]}),
    "suffix_hybrid": (4, {}),
    "layer_skip": (3, {"skip": (1,)}),
    "ngram": (3, {}),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_draft_without_the_last_tokens_takes_none_of_them_from_the_target(
    method: str, pair: tuple[Path, Path]
) -> None:
    k, options = METHODS[method]
    target, draft = map(str, pair)
    with Native(PairFiles("p", target), threads=1) as alone:
        assert alone.target.vocab_size == 261 and alone.eos == {260}
        (plain,) = alone.generate(cell("autoregressive", 0), [[97]], max_new_tokens=24, seeds=[0])
        (lacking,) = alone.generate(cell("autoregressive", 0), [[97, 260, 259, 98]], max_new_tokens=24, seeds=[0])
    assert plain.tokens[-1] == 260 and 4 <= len(plain.tokens) <= 12
    with Native(PairFiles("p", target, draft), threads=1) as engine:
        for name, (width, chosen) in {"autoregressive": (0, {}), method: (k, options)}.items():
            # Also behind a prompt that holds tokens which the draft has no embedding of.
            for prompt, expected in (([97], plain), ([97, 260, 259, 98], lacking)):
                (found,) = engine.generate(cell(name, width, **chosen), [prompt], max_new_tokens=24, seeds=[0])
                assert found.tokens == expected.tokens
        model = engine.model("draft")
        model.start(1, 16)
        logits, _ = model.forward(torch.tensor([[97, 260]]))
        assert logits.shape[-1] == 261 and logits[..., 259:].isneginf().all() and logits[..., :259].isfinite().all()


@pytest.mark.parametrize("method", ["draft_model", "tree"])
def test_samples_follow_the_target_with_a_draft_that_lacks_tokens(method: str, pair: tuple[Path, Path]) -> None:
    """The second token's distribution, the lacking tokens' share included, by a G-test against the exact one."""
    from scipy.stats import chisquare

    k, options = METHODS[method]
    with Native(PairFiles("p", *map(str, pair)), threads=1) as engine:
        target, prompt, rows = engine.target, [97], 2_000
        target.start(1, 8)
        first = torch.softmax(target.forward(torch.tensor([prompt]))[0][0, -1].double(), -1)
        token = int(first.argmax())
        target.start(1, 8)
        expected = torch.softmax(target.forward(torch.tensor([[*prompt, token]]))[0][0, -1].double(), -1)
        engine.eos = frozenset()
        counts, given = torch.zeros(261), 0
        for start in range(0, rows, 500):
            found = engine.generate(
                cell(method, k, 1.0, **options), [prompt] * 500, max_new_tokens=3, seeds=range(start, start + 500)
            )
            for row in found:
                if row.tokens[0] == token:
                    given += 1
                    counts[row.tokens[1]] += 1
    assert given > 100 and expected[259:].sum() > 0
    likely = expected * given >= 5
    observed = [*counts[likely].tolist(), float(counts[~likely].sum())]
    wanted = [*(expected[likely] * given).tolist(), float(expected[~likely].sum() * given)]
    assert chisquare(observed, wanted).pvalue > 1e-4


def test_padding_of_the_embedding_is_masked_for_the_target_alone_too(tmp_path: Path) -> None:
    """Two rows beyond the tokenizer of which one wins everywhere; a row between named ids may be written."""
    folder = tmp_path / "padded"
    language_model(folder, 264)
    read = load_file(folder / WEIGHTS)
    read["lm_head.weight"][:262] *= 1e-3
    read["lm_head.weight"][263] = -read["lm_head.weight"][262]
    save_file(read, folder / WEIGHTS, metadata={"format": "pt"})
    assert gate.vocab_size(str(folder)) == 258
    with Native(PairFiles("p", str(folder)), threads=1) as engine:
        (found,) = engine.generate(cell("autoregressive", 0), [[5, 9, 11]], max_new_tokens=20, seeds=[0])
    assert max(found.tokens) < 258
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 261]}))
    gate._json.cache_clear()
    assert gate.vocab_size(str(folder)) == 262, "what ends a text is no padding, and ids below it stay"


def test_a_draft_that_holds_fewer_positions_is_named(
    model: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    language_model(workplace / "draft", 258, max_position_embeddings=64)
    table = f"pair\ttarget\tdraft\nmine\t{model}\t{workplace}/draft\n"
    methods = [{"method": "draft_model", "k": 2}]
    main(["plan", str(own_study("own", table, ["one two"], max_new_tokens=8, methods=methods))])
    captured = capsys.readouterr()
    assert "the draft holds 64 positions, texts may reach 1,032" in " ".join((captured.out + captured.err).split())


def test_a_draft_is_served_with_its_targets_tokens(pair: tuple[Path, Path]) -> None:
    served = PretrainedWeights(PairFiles("the draft service", str(pair[1])), drafts=True)
    assert served.cached("target", "cpu").vocab_size == 261
    with pytest.raises(ModelError, match=r"261 tokens up to id 260 .*, its embedding has 259 rows"):
        PretrainedWeights(PairFiles("p", str(pair[1])))


@pytest.mark.parametrize("method", ["autoregressive", "draft_model", "ngram"])
def test_transformers_own_generation_has_the_targets_tokens_too(method: str, pair: tuple[Path, Path]) -> None:
    with Native(PairFiles("p", str(pair[0])), threads=1) as engine:
        (expected,) = engine.generate(cell("autoregressive", 0), [[97, 260, 98]], max_new_tokens=12, seeds=[0])
    with Transformers(PairFiles("p", *map(str, pair)), threads=1) as other:
        k = 0 if method == "autoregressive" else 3
        (found,) = other.generate(cell(method, k), [[97, 260, 98]], max_new_tokens=12, seeds=[0])
    assert found.tokens == expected.tokens
