"""Requests that a target writes itself: its template cut where a user's text begins, and what is dropped."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specrig.heads.base import TrainingError
from specrig.planning.estimate import teacher_shape, training
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.tasks.sources import PromptError
from specrig.tasks.wording import Overlap, normalized
from specrig.training import generate
from specrig.training.budget import training_flop
from specrig.training.generate import Piece, Script, Writer, sample
from specrig.training.recipe import Recipe
from specrig.training.self_requests import SENTINEL, Template, is_request, looping, template
from specrig.training.source_text import SourceText
from specrig.training.target_text import read_text, write_text

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
SETTINGS: dict[str, Any] = {
    "text": {"sequences": 24, "sequence": 200, "heldout_sequences": 6, "batch": 8, "temperatures": [0.0, 1.0]},
    "own_requests": {"tokens": 90, "turns": 0.6},
}


def recipe(**settings: Any) -> Recipe:
    return Recipe.model_validate(SETTINGS | settings)


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


def test_a_study_whose_target_has_no_template_is_refused(workplace: Path) -> None:
    settings = yaml.safe_load(Path("configs/test.yaml").read_text())
    settings["training"] |= {"prompts": "self"}
    settings["tasks"] = ["context_512"]
    Path("configs/mine.yaml").write_text(yaml.safe_dump(settings))
    assert load_study(Path("configs/mine.yaml")).grid.trained
    bare = Path(shutil.copytree("tests/data/tiny/target", "bare"))
    (bare / "chat_template.jinja").unlink()
    pairs = Path("configs/pairs.tsv")
    pairs.write_text(pairs.read_text().replace("tests/data/tiny/target", "bare"))
    with pytest.raises(
        StudyError, match=r"the target of pair .* has no chat template, which training\.prompts needs"
    ) as caught:
        load_study(Path("configs/mine.yaml"))
    assert "name a file of prompts" in str(caught.value)


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

    writer = Writer(target, torch.device("cpu"))
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
def written(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the target wrote."""
    folder = tmp_path_factory.mktemp("written")
    write_text(recipe(), folder, target)
    return folder


def source(folder: Path, target: Path, without: frozenset[str] = frozenset(), **settings: Any) -> SourceText:
    own = recipe(**settings)
    return SourceText(folder / "text", own, own.prompts[0], target, without)


def test_what_a_target_writes_by_itself(written: Path, target: Path) -> None:
    there, cut = source(written, target), opened(target)
    texts = there.texts("train", 24)
    assert len(texts) == 24 and {text.temperature for text in texts} == {0.0, 1.0}
    assert any(len(text.requests) > 1 for text in texts), "conversations of several turns"
    for text in texts:
        assert len(text.tokens) <= 201 and text.spans[-1][1] == len(text.tokens)
        # Each answer stands behind the template's words for it, and nothing else counts as the target's.
        for start, end in text.spans:
            assert text.tokens[start - 2 : start] == [1, 4] and 2 not in text.tokens[start : end - 1]
        # First words that are given are no words of this vocabulary.
        turns = [turn for turn in text.requests if set(turn.split()) <= set(cut.tokenizer.get_vocab())]
        whole_text = cut.text(text.tokens)
        assert all(normalized(turn) in normalized(whole_text) and is_request(turn, cut.special) for turn in turns)
    found = read_text(written)
    assert found.train.tokens.shape == (24, 201) and len(found.heldout.tokens) == 6
    heldout = there.texts("heldout", 6)
    asked = [normalized("\n".join(text.requests)) for text in (*texts, *heldout)]
    assert len(set(asked)) == len(asked) and {text.temperature for text in heldout} == {0.0}


def test_more_texts_are_appended(written: Path, target: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "more"))
    (file,) = (folder / "text").glob("*.jsonl")
    before = file.read_bytes()
    write_text(recipe(text=SETTINGS["text"] | {"sequences": 32}), folder, target)
    assert file.read_bytes().startswith(before) and len(read_text(folder).train.tokens) == 32
    assert torch.equal(read_text(folder).heldout.tokens, read_text(written).heldout.tokens)
    assert source(folder, target, seed=1).file != file, "of other settings it is another file"


def test_nothing_evaluated_is_in_it(written: Path, target: Path) -> None:
    """Also where a study evaluates something that the texts were written without knowing of."""
    texts = source(written, target).texts("train", 24)
    left = source(written, target, frozenset({normalized(texts[0].requests[0])}))
    assert left.overlap.near(texts[0].requests[0]) and texts[0] not in left.texts("train", 24)


def test_the_plan_counts_requests_that_are_dropped(workplace: Path) -> None:
    study = load_study(Path("configs/test.yaml"))
    assert training(study) != "nothing"
    shape = teacher_shape(study, "tiny")
    assert shape is not None
    alone = training_flop(study.training, ["draft"], shape)
    own = training_flop(study.training.model_copy(update={"prompts": recipe().prompts}), ["draft"], shape)
    assert alone < own


def test_a_target_that_writes_no_usable_request_is_given_up(target: Path, tmp_path: Path) -> None:
    """Here no sequence has room for a request and its answer, so that not one token is written."""
    short = recipe(text=SETTINGS["text"] | {"sequence": 32})
    with pytest.raises(
        TrainingError,
        match=r"times in a row this target asked nothing that is new and usable.*raise training\.text\.sequence or",
    ):
        write_text(short, tmp_path, target)
