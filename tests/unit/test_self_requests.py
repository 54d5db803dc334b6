"""Requests that a target writes itself: its template cut where a user's text begins, what is dropped, and shards."""

from __future__ import annotations

import json
import lzma
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tiny import TINY
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specrig.corpus.wording import Overlap, normalized
from specrig.heads.base import TrainingError
from specrig.planning.estimate import teacher_shape, training
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.tasks.sources import PromptError
from specrig.training import generate, text_shards
from specrig.training.budget import training_flop
from specrig.training.conversations import Written
from specrig.training.generate import Piece, Script, Writer, sample
from specrig.training.recipe import Recipe
from specrig.training.self_requests import SENTINEL, Template, is_request, looping, template
from specrig.training.target_text import read_text, write_text
from specrig.training.text_shards import TextShards

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
WORDS = [
    "please",
    "write",
    "about",
    "summary",
    "river",
    "stone",
    "paper",
    "window",
    "garden",
    "winter",
    "summer",
    "letters",
    "numbers",
    "colours",
    "answers",
    "questions",
    "people",
    "houses",
    "mountains",
    "forests",
    "rivers",
    "cities",
    "schools",
    "teachers",
    "students",
    "machines",
    "engines",
    "bridges",
    "islands",
    "oceans",
    "weather",
    "morning",
    "evening",
]
TEMPLATE = (
    "{% for m in messages %}<|start|> {{ m.role }} {{ m.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|start|> assistant{% endif %}"
)
MIXED: dict[str, Any] = {
    "prompts": [{"source": "corpus", "share": 2}, {"source": "self"}, {"source": "self_long"}],
    "text": {"sequences": 60, "sequence": 200, "heldout_sequences": 12, "batch": 8, "temperatures": [0.0, 1.0]},
    "own_requests": {"tokens": 90, "turns": 0.6},
}


def recipe(**settings: Any) -> Recipe:
    return Recipe.model_validate(TINY | MIXED | settings)


@pytest.fixture(autouse=True, scope="module")
def one_precision() -> Iterator[None]:
    """Which precision is faster is timed, and on a busy machine not always the same one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specrig.training.text_shards.fastest", lambda *_: "float32")
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random chat model whose tokens are words: what it writes ends by itself after some dozens of them."""
    folder = tmp_path_factory.mktemp("chat") / "target"
    names = ["<unk>", "<|start|>", "<|end|>", "user", "assistant", "system", ".", ":", "?", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<|end|>", additional_special_tokens=["<|start|>"]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(names), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, eos_token_id=2, bos_token_id=None, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def opened(folder: Path) -> Template:
    return template(PreTrainedTokenizerFast.from_pretrained(folder), folder)


def test_a_template_is_cut_where_a_users_text_begins(target: Path) -> None:
    cut = opened(target)
    assert cut.before_user([]) == "<|start|> user " and cut.end == "<|end|>"
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    assert cut.before_user(turns) == "<|start|> user Hi <|end|> <|start|> assistant Yes <|end|> <|start|> user "
    assert cut.before_answer(turns[:1]) == "<|start|> user Hi <|end|> <|start|> assistant" and cut.takes("Be brief.")
    # Where no special token ends a user's text, the first word behind it does; a template may refuse system lines.
    cut.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ '[INST] ' if m.role == 'user' else '' }}{{ m.content }}{{ ' [/INST]' if m.role == 'user' else '' }}"
        "{% endfor %}"
    )
    other = Template(cut.tokenizer)
    assert other.end == "[/INST]" and other.before_user([]) == "[INST] " and not other.takes("Be brief.")
    cut.tokenizer.chat_template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    assert SENTINEL.upper() != SENTINEL
    with pytest.raises(PromptError, match="does not hold a user's text as it stands"):
        Template(cut.tokenizer)


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs ../shared/data/stories260K, which is not here")
def test_a_target_without_a_template_is_refused_before_it_is_loaded(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_shards, "Writer", lambda *_: pytest.fail("the model was loaded"))
    reason = r"the tokenizer of .*stories260K has no chat template, which training\.prompts: self needs.* or name a file of prompts"
    with pytest.raises(PromptError, match=reason):
        write_text(recipe(), tiny_corpus / "corpus", tmp_path, STORIES)


def test_a_study_whose_target_has_no_template_is_refused(workplace: Path) -> None:
    settings = yaml.safe_load(Path("configs/test.yaml").read_text())
    settings["training"] |= {"prompts": "self"}
    Path("configs/mine.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(
        StudyError, match=r"the target of pair .* has no chat template, which training\.prompts needs"
    ) as caught:
        load_study(Path("configs/mine.yaml"))
    assert "leave training.prompts out for the study's corpus, or name a file of prompts" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("Write a poem about the sea.", True),
        ("Hello there you", False),
        ("1 + 1 = 2 ? 3 4", False),
        ("Tell me about <|end|> the sea", False),
        ("no no no no no no no no no no", False),
        ("What is this?\nWhat is this?\nWhat is this?\nand why is it here", False),
        ("the cat sat on the mat and the cat sat on the mat and the cat sat on the mat", False),
    ],
)
def test_what_is_a_request(text: str, good: bool) -> None:
    assert is_request(text, ["<|end|>"]) is good


def test_loops_are_seen_and_lists_are_not() -> None:
    assert looping([9, 8, *[1] * 24]) and looping([7, *[1, 2, 3] * 8]) and looping([*range(20)] * 4)
    assert not looping([1] * 20) and not looping([*range(100)]) and not looping([*range(30)] * 3)
    assert not looping([each for n in range(12) for each in (1, n, 2)])


def test_what_comes_near_to_an_evaluated_prompt() -> None:
    evaluated = Overlap(
        normalized(text)
        for text in ("Who wrote the novel Dracula and when?", "Write a long story about a dog that learns to fly")
    )
    assert evaluated.near("who wrote the novel Dracula, and when")
    assert evaluated.near("Write a long story about a dog that learns to swim")
    assert evaluated.near(
        "Please do this. Write a long story about a dog that learns to fly. Make it funny and add a moral."
    )
    assert not evaluated.near("Write a long poem about a cat") and not evaluated.near("Who wrote it?")


def test_samples_follow_temperature_and_nucleus() -> None:
    """Against the distribution itself: 40,000 draws over a vocabulary that no block divides."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(1, 700, generator=generator)
    for temperature, top_p in ((1.0, 1.0), (0.7, 0.9)):
        probs = torch.softmax(logits[0].double() / temperature, 0)
        order = probs.argsort(descending=True)
        inside = order[: int((probs[order].cumsum(0) < top_p).sum()) + 1]
        expected = torch.zeros(700, dtype=torch.double)
        expected[inside] = probs[inside] / probs[inside].sum()
        piece, n = Piece([0], 9, bool, temperature, top_p), 4000
        stream = np.random.Generator(np.random.Philox(5))
        drawn = Counter(token for _ in range(10) for token in sample(logits.expand(n, -1), [piece] * n, [stream] * n))
        assert set(drawn) <= set(inside.tolist())
        counts = torch.tensor([drawn[token] for token in range(700)], dtype=torch.double)
        often = expected * 10 * n > 5
        squares = ((counts - expected * 10 * n) ** 2 / (expected * 10 * n))[often].sum()
        assert squares < often.sum() + 4 * (2 * often.sum()) ** 0.5
    assert sample(logits, [Piece([0], 9, bool, 0.0)], [stream]) == [int(logits.argmax())]


@pytest.mark.parametrize("tokens", [1, 30, 1 << 14])
def test_a_text_does_not_depend_on_its_neighbours(tokens: int, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of several lengths, some that go on from what was written and one that goes back; what they lack is run
    row by row, as on a processor, or together, as on a GPU.
    """
    monkeypatch.setitem(generate.TOGETHER, "cpu", tokens)

    def script(n: int) -> Script[list[int]]:
        context = [1, 3, *range(9, 9 + n), 2, 1, 4]
        first = yield Piece(context, 5 + 3 * n % 11, lambda tokens: tokens[-1] == 2, 1.0, 0.9)
        second = yield Piece([*context, *first, 2, 1, 3], 6, bool, float(n % 2))
        third = yield Piece([*context, *first[:2], 9], 4, lambda _: False, 0.0)
        return [*first, *second, *third]

    writer = Writer(target, torch.device("cpu"), "float32")
    alone = {n: next(writer.write([script(n)], [n], 1, 80))[1] for n in range(12)}
    found = list(writer.write((script(n) for n in range(12)), range(12), 4, 80))
    assert dict(found) == alone and [n for n, _ in found] != sorted(n for n, _ in found)
    # And each token is the model's own, given all that stands before it.
    model = LlamaForCausalLM.from_pretrained(target)
    context = [1, 3, 9, 10, 11, 2, 1, 4]
    first = alone[3][: -4 - 1]
    tail = alone[3][-4:]
    text = [*context, *first[:2], 9]
    for token in tail:
        assert int(model(torch.tensor([text])).logits[0, -1].argmax()) == token
        text.append(token)


@pytest.fixture(scope="module")
def written(target: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the target wrote."""
    folder = tmp_path_factory.mktemp("written")
    write_text(recipe(), tiny_corpus / "corpus", folder, target)
    return folder


def rows_of(folder: Path, part: str = "train") -> list[Written]:
    files = sorted(folder.glob(f"text/*/{part}-*.jsonl"))
    return [text for file in files for text in text_shards._texts_of(file)]


def test_what_a_target_writes_by_itself(written: Path, target: Path) -> None:
    texts, cut = rows_of(written), opened(target)
    kinds = Counter(text.kind for text in texts)
    assert {"self", "self_long", "code", "translation", "summarization", "creative_writing"} == set(kinds)
    assert {text.temperature for text in texts} == {0.0, 1.0}
    assert any(len(text.requests) > 1 for text in texts), "conversations of several turns"
    for text in texts:
        assert len(text.tokens) <= 201 and text.spans[-1][1] == len(text.tokens)
        if text.kind not in ("self", "self_long"):
            continue
        # Each answer stands behind the template's words for it, and nothing else counts as the target's.
        for start, end in text.spans:
            assert text.tokens[start - 2 : start] == [1, 4] and 2 not in text.tokens[start : end - 1]
        # First words that are given are no words of this vocabulary.
        turns = [turn for turn in text.requests if set(turn.split()) <= set(cut.tokenizer.get_vocab())]
        whole_text = cut.text(text.tokens)
        assert all(normalized(turn) in normalized(whole_text) and is_request(turn, cut.special) for turn in turns)
    long = [text for text in texts if text.kind == "self_long"]
    assert long and all(len(text.requests[0].split()) >= 40 for text in long)
    found = read_text(written)
    assert found.train.tokens.shape == (60, 201) and len(found.heldout.tokens) == 12
    first = [normalized("\n".join(text.requests)) for text in texts]
    assert len(set(first)) >= 60 and not set(first[:60]) & {
        normalized("\n".join(t.requests)) for t in rows_of(written, "heldout")[:12]
    }


def test_more_text_leaves_the_shards_that_are_there(
    written: Path, target: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    there = {path: path.read_bytes() for path in written.glob("text/*/*")}
    shards = TextShards(
        written / "text", recipe(text=MIXED["text"] | {"sequences": 90}), tiny_corpus / "corpus", target, "cpu"
    )
    more = shards.texts("train", 90)
    assert len(more) == 90 and all(path.read_bytes() == content for path, content in there.items())
    # Written elsewhere, one shard by itself has the same bytes; of other settings it lies in another folder.
    again = TextShards(tmp_path, recipe(), tiny_corpus / "corpus", target, "cpu")
    again.shard("train", 1)
    name = f"{again.folder.name}/train-00001.jsonl"
    assert (tmp_path / name).read_bytes() == (written / "text" / name).read_bytes()
    other = TextShards(tmp_path, recipe(seed=1), tiny_corpus / "corpus", target, "cpu")
    assert other.folder != again.folder


def test_shards_grow_but_those_of_an_earlier_version_go_on_as_they_began(
    written: Path, target: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    def ranges(folder: Path, **text: Any) -> list[tuple[float, float]]:
        shards = TextShards(folder, recipe(text=MIXED["text"] | text), tiny_corpus / "corpus", target, "cpu")
        batch = shards.recipe.text.batch
        return [(first / batch, end / batch) for first, end in map(shards._range, range(5))]

    growing = [(0, 2), (2, 6), (6, 14), (14, 22), (22, 30)]
    assert ranges(tmp_path / "new") == ranges(written / "text") == growing
    earlier = tmp_path / "earlier"
    shutil.copytree(written / "text", earlier)
    manifest = next(earlier.glob("*/manifest.json"))
    content = json.loads(manifest.read_bytes())
    del content["largest"]
    manifest.write_text(json.dumps(content))
    assert ranges(earlier) == ranges(tmp_path / "own", shards=earlier) == [(at, at + 2) for at in range(0, 10, 2)]


def test_shards_from_elsewhere_are_read_first(
    written: Path, target: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another recipe, in longer texts; those of another target are refused."""
    text = MIXED["text"] | {"sequence": 120, "sequences": 20, "heldout_sequences": 4, "shards": written / "text"}
    with monkeypatch.context() as patch:
        patch.setattr(text_shards, "Writer", lambda *_: pytest.fail("text was written anew"))
        write_text(recipe(seed=7, text=text), tiny_corpus / "corpus", tmp_path, target)
    found, whole = read_text(tmp_path).train, rows_of(written)
    assert found.tokens.shape == (20, 121) and found.written.any(1).all()
    first = next(text.tokens for text in whole if text.spans[0][0] < 121)
    assert found.tokens[0].tolist() == (first + [2] * 121)[:121]
    # Compressed as they are shared, and read by the recipe that wrote them: more of it is written behind them.
    packed = tmp_path / "packed" / next(written.glob("text/*")).name
    packed.mkdir(parents=True)
    for path in written.glob("text/*/*"):
        content = path.read_bytes()
        name, content = (path.name, content) if path.suffix == ".json" else (f"{path.name}.xz", lzma.compress(content))
        (packed / name).write_bytes(content)
    count, names = len(list(packed.glob("train-*"))), {normalized("\n".join(text.requests)) for text in whole}
    for number, folder in enumerate((packed, packed.parent)):
        shared = recipe(text=MIXED["text"] | {"shards": folder})
        shards = TextShards(tmp_path / f"own{number}", shared, tiny_corpus / "corpus", target, "cpu")
        with monkeypatch.context() as patch:
            patch.setattr(text_shards, "Writer", lambda *_: pytest.fail("a shard was written anew"))
            assert [text for text in shards.texts("train", len(names)) if text not in whole] == []
        assert len(shards.texts("train", len(names) + 1)) == len(names) + 1 and shards.folder.name == packed.name
        assert [path.name for path in shards.folder.glob("train-*")] == [f"train-{count:05}.jsonl"]
    damaged = packed / "train-00000.jsonl.xz"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(TrainingError, match=r"train-00000\.jsonl\.xz: not compressed by xz, or cut off \(Compressed"):
        shards.texts("train", 1)
    manifest = next(written.glob("text/*/manifest.json"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "manifest.json").write_text(json.dumps(json.loads(manifest.read_text()) | {"target": ["0"]}))
    with pytest.raises(TrainingError, match=r"another target than .* wrote these shards; correct text\.shards"):
        write_text(recipe(text=text | {"shards": other}), tiny_corpus / "corpus", tmp_path, target)


def test_nothing_evaluated_is_in_it(written: Path, target: Path, tiny_corpus: Path) -> None:
    """Also where a study evaluates something that the shards were written without knowing of."""
    texts = rows_of(written)
    own = next(text for text in texts if text.kind == "self")
    corpus = next(text for text in texts if text.kind == "code")
    without = {normalized(own.requests[0]), normalized(corpus.requests[0])}
    left = TextShards(written / "text", recipe(), tiny_corpus / "corpus", target, "cpu", without)
    assert left.overlap.near(own.requests[0])
    assert any(left._evaluated(text) for text in (own, corpus)) and not left._evaluated(texts[-1])
    for path in written.glob("text/*/manifest.json"):
        assert json.loads(path.read_text())["precision"] in ("float32", "bfloat16")


def test_the_plan_counts_requests_that_are_dropped(workplace: Path) -> None:
    study = load_study(Path("configs/test.yaml"))
    assert training(study) != "nothing"
    pair = next(pair for pair, _ in study.grid.trained)
    shape = teacher_shape(study, pair)
    assert shape is not None
    models = ["draft"]
    alone = training_flop(study.training, models, shape)
    own = training_flop(study.training.model_copy(update={"prompts": recipe(prompts="self").prompts}), models, shape)
    mixed = training_flop(study.training.model_copy(update={"prompts": recipe().prompts}), models, shape)
    assert alone < mixed < own


def test_a_target_that_writes_no_usable_request_is_given_up(target: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    """Here no sequence has room for a request and its answer, so that not one token is written."""
    short = recipe(prompts="self", text=MIXED["text"] | {"sequence": 32})
    with pytest.raises(TrainingError, match=r"no new request in 5 shards .*raise training\.text\.sequence or"):
        write_text(short, tiny_corpus / "corpus", tmp_path, target)
    assert len(list(tmp_path.glob("text/*/heldout-*.jsonl"))) == 5
