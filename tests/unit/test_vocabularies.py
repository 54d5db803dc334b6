"""Drafts of another vocabulary: what two tokenizers have in common, and that the target's output stays its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from specrig.audit.toy_pair import OTHER_TOKENS, PROMPT, TARGET_TOKENS, build_other
from specrig.cell import Cell
from specrig.decoding import vocabularies
from specrig.decoding.drafters import registry
from specrig.engines import registry as engines
from specrig.engines.native import Native
from specrig.models.pair import ModelError
from specrig.models.vocabularies import TokenMap, Vocabulary, token_map

METHODS: dict[str, tuple[int, dict[str, Any]]] = {
    "draft_model": (4, {}),
    "adaptive_k": (8, {}),
    "tree": (3, {"branching": (2, 2, 1)}),
    "suffix_hybrid": (6, {"draft_k": 4}),
}
TEXT = "the cat’s the thé\n\n  a🙂 the"


def saved(folder: Path, tokenizer: Tokenizer, **config: Any) -> str:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(sizes | config))
    return str(folder)


def byte_level(folder: Path) -> str:
    """GPT-2's kind: all bytes, a few words, and a special token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "t"), ("t", "h"), ("th", "e"), ("Ġ", "the"), ("c", "at")]
    tokens = [*letters, "at", "th", "the", "Ġthe", "cat"]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return saved(folder, tokenizer, eos_token_id=tokenizer.token_to_id("<end>"))


def sentence_piece(folder: Path) -> str:
    """Llama's kind: byte tokens, `▁` in front of words, one put in front of every text, and special tokens."""
    pieces = ["▁", *"thecas", "th", "the", "▁the", "é", "at"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("a", "t")]
    tokenizer = Tokenizer(
        models.BPE({token: index for index, token in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return saved(folder, tokenizer, eos_token_id=2, bos_token_id=1)


def test_tokens_are_compared_by_the_bytes_that_they_stand_for(tmp_path: Path) -> None:
    target, draft = Vocabulary(sentence_piece(tmp_path / "t")), Vocabulary(byte_level(tmp_path / "d"))
    assert target.bytes[target.ids[b" the"]] == draft.bytes[draft.ids[b" the"]] == b" the"
    assert target.ids[b" the"] != target.ids[b"the"], "the space in front is kept"
    assert target.ids[b"\n"] == 3 + 10, "a byte token"
    assert target.ids[b"t"] == target.tokenizer.token_to_id("t"), "not the byte token of the letter"
    assert "é".encode() in target.ids and "é".encode() not in draft.ids
    for one in (target, draft):
        assert b"".join(one.bytes[token] for token in one.spell(TEXT.encode())) == TEXT.encode()
    assert target.spell(b"the") == [target.ids[b"the"]], "in the middle of a text nothing is put in front"
    assert [target.bytes[token] for token in target.spell("🙂".encode()[:2])] == [b"\xf0", b"\x9f"]


def test_the_draft_reads_all_of_the_text_and_speaks_only_common_tokens(tmp_path: Path) -> None:
    target, draft = sentence_piece(tmp_path / "t"), byte_level(tmp_path / "d")
    tokens = token_map(target, draft)
    ids = [1, *tokens.target.spell(TEXT.encode()), 2]
    read = tokens.read(ids)
    back = b"".join(tokens.draft.bytes.get(tokens.order[number], b"|") for number in read)
    assert back == b"<s>" + TEXT.encode() + b"|", "a special token that it lacks by its name"
    assert tokens.order[read[-1]] == tokens.draft.special["<end>"], "it ends a text in both"
    assert sorted(tokens.order) == list(range(tokens.draft.size)), "a new number for each of the draft's tokens"
    for number, token in enumerate(tokens.common):
        assert tokens.read([token]) == [number]
    both, share = tokens.shares()
    assert both == len(tokens.common) and 0 < share < 1
    assert tokens.said(tokens.target.spell("é".encode())) == 0 and tokens.said(tokens.target.spell(b" the")) == 1


def test_drafted_text_is_spelled_in_the_targets_tokens(tmp_path: Path) -> None:
    tokens = token_map(sentence_piece(tmp_path / "t"), byte_level(tmp_path / "d"), strings=True)
    assert not tokens.common

    def spelled(text: bytes) -> bytes:
        return b"".join(tokens.target.bytes[token] for token in tokens.spelled(tokens.draft.spell(text)))

    assert spelled(TEXT.encode()) == TEXT.encode()
    assert spelled("the 🙂".encode()[:-1]) == b"the ", "up to the last whole character"
    end = tokens.draft.special["<end>"]
    assert tokens.spelled([*tokens.draft.spell(b" the"), end]) == [tokens.target.ids[b" the"], 2]


def test_tokenizers_whose_tokens_hide_their_spaces_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        token_map(saved(tmp_path / "t", tokenizer), byte_level(tmp_path / "d"))


def cell(method: str, k: int = 0, **options: Any) -> Cell:
    made = registry()[method].Options.model_validate(options).model_dump(mode="json")
    return Cell(engine="native", pair="toy_pair", method=method, k=k, task="exact", temperature=0, options=made)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Native(build_other(tmp_path_factory.mktemp("other"))) as loaded:
        yield loaded


@pytest.mark.parametrize("way", ["intersection", "strings"])
def test_greedy_output_is_plain_decodings(engine: Native, way: str) -> None:
    prompts = [list(PROMPT), [3, 7, 2], [0, 4, 5, 1]]
    expected = [
        engine.generate(cell("autoregressive"), [prompt], max_new_tokens=40, seeds=[0])[0] for prompt in prompts
    ]
    for method, (k, options) in METHODS.items():
        made = engine.generate(
            cell(method, k, vocabularies=way, **options), prompts, max_new_tokens=40, seeds=[0, 1, 2]
        )
        assert [one.tokens for one in made] == [one.tokens for one in expected], method
        assert sum(entry.accepted for one in made for entry in one.rounds) > 10, method


def test_a_service_drafts_as_the_drafter_here_does(engine: Native) -> None:
    here, there = (
        engine.generate(
            cell(method, 4, vocabularies="intersection").model_copy(update={"temperature": 1.0}),
            [list(PROMPT)], max_new_tokens=20, seeds=[3],
        )[0]
        for method in ("draft_model", "remote_draft")
    )  # fmt: skip
    assert here.tokens == there.tokens and here.rounds == there.rounds
    assert any(entry.accepted for entry in there.rounds)


def test_a_row_that_outgrows_the_drafts_cache_goes_on_without_drafts(
    engine: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine.generate(cell("autoregressive"), [list(PROMPT)], max_new_tokens=20, seeds=[0])[0].tokens
    room = 2 * (engine.target.cache.slots - len(PROMPT)) + len(PROMPT)
    monkeypatch.setattr(vocabularies, "SPARE", room - 24)  # of the prompt and some more tokens
    made = engine.generate(cell("draft_model", 4), [list(PROMPT)], max_new_tokens=20, seeds=[0])[0]
    drafted = [entry.drafted for entry in made.rounds]
    assert made.tokens == expected and drafted[0] == 4 and drafted[-2] == 0


def test_an_engine_says_why_it_takes_no_draft_of_another_vocabulary(engine: Native) -> None:
    ways = {way: cell("draft_model", 4, vocabularies=way) for way in ("auto", "same", "intersection", "strings")}
    assert [way for way, one in ways.items() if Native.refuses_other_vocabulary(one)] == ["same"]
    assert "target's vocabulary alone" in str(Native.refuses_other_vocabulary(cell("medusa_draft", 4)))
    others = {name: kind for name, kind in engines().items() if name != "native"}
    assert all(kind.refuses_other_vocabulary(ways["same"]) for kind in others.values())
    assert others["transformers"].refuses_other_vocabulary(ways["strings"]) is None
    assert "strings" in str(others["transformers"].refuses_other_vocabulary(ways["intersection"]))
    assert others["vllm"].refuses_other_vocabulary(ways["intersection"]) is None
    with pytest.raises(ModelError, match="does not share the vocabulary"):
        engine.generate(cell("draft_model", 4, vocabularies="same"), [list(PROMPT)], max_new_tokens=4, seeds=[0])


def test_the_toy_pairs_draft_lacks_tokens_and_has_others() -> None:
    both = set(TARGET_TOKENS) & set(OTHER_TOKENS)
    assert len(both) < len(TARGET_TOKENS) and len(both) < len(OTHER_TOKENS)
    assert {" a", "a"} <= both


def test_a_map_without_common_tokens_is_refused(tmp_path: Path) -> None:
    def words(folder: str, *names: str) -> str:
        return saved(tmp_path / folder, Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, "?")))

    with pytest.raises(ModelError, match="strings"):
        token_map(words("t", "a", "b"), words("d", "c", "e"))
    assert isinstance(token_map(words("t2", "a"), words("d2", "b", "a")), TokenMap)
