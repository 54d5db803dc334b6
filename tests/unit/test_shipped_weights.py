"""The drafts and heads in weights/: whole, described truly, small enough to clone, and worth loading."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from specrig.cell import Cell
from specrig.decoding.drafters import registry
from specrig.engines.native import Native
from specrig.models.pair import PairFiles
from specrig.study.learning_curve import read_learning_curve
from specrig.study.load import load_study
from specrig.study.problems import Positions, Problems
from specrig.tasks.trained_on import trained_on

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.parent for path in (ROOT / "weights").glob("*/*/config.json"))
REQUESTS = ["Write a Python function that adds two numbers.", "Tell me a story about a fox and a river."]


def test_they_are_small_enough_to_clone() -> None:
    assert SHIPPED
    assert sum(file.stat().st_size for file in (ROOT / "weights").rglob("*") if file.is_file()) < 40e6


def test_the_learning_curve_holds_what_the_log_says() -> None:
    problems = Problems(Positions([]))
    points = read_learning_curve(ROOT / "weights/smollm2_135m/p_eagle", problems)
    problems.stop()
    found = {(each.commit, each.method, each.variant): each for each in points}
    assert len(found) == len(points)
    table = (ROOT / "docs/log/training.md").read_text().partition("### The learning curve")[2].partition("|--:|\n")[2]
    said = 0
    for line in table.partition("\n\n")[0].splitlines():
        commit, texts, tokens, steps, *lengths = (cell.strip() for cell in line.strip("|").replace(",", "").split("|"))
        for way, length in zip((("p_eagle", ""), ("p_eagle", "nodes10"), ("eagle3", "")), lengths, strict=True):
            if length:
                point, said = found[commit.split()[0], *way], said + 1
                assert (point.texts, point.texts_seen) == (int(texts), 8 * int(steps))
                assert point.tokens == round(1e6 * float(tokens.removesuffix("M")))
                assert (point.acceptance_length, point.k) == (float(length), 4)
    assert said == 16


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_the_card_names_the_weights_that_lie_beside_it(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    found = re.search(r"\| SHA-256 \| ([0-9a-f]{64}) \|", card)
    assert found and found[1] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert "| Licence | Apache-2.0 |" in card
    assert trained_on(folder), "it says which requests it learnt from"


def test_the_default_studys_methods_draft_for_its_model(
    default_target: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    study = load_study(Path("configs/quick.yaml"))
    row = study.rows.pairs["smollm2_135m_shipped"]
    target = default_target[1]
    heads = {name: Path(folder) for name, folder in row.head_folders.items()}
    engine = Native(PairFiles(row.pair, str(target), row.draft, dtype=row.dtype, heads=heads))
    tokenizer = engine.weights.tokenizer
    chats = [[{"role": "user", "content": text}] for text in REQUESTS]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    outputs = {}
    tree = {"nodes": "auto"}
    for method, k, own in (
        ("autoregressive", 0, {}), ("p_eagle", 3, {}), ("p_eagle", 4, tree), ("suffix_p_eagle", 8, {"draft_nodes": 5}),
        ("hydra", 4, tree), ("medusa", 4, tree), ("draft_model", 4, {}),
    ):  # fmt: skip
        options = registry()[method].Options.model_validate(own).model_dump()
        cell = Cell(engine="native", pair=row.pair, method=method, k=k, task="code", temperature=0.0, options=options)
        made = [engine.generate(cell, [prompt], max_new_tokens=16, seeds=[0])[0] for prompt in prompts]
        outputs[method, k] = [one.tokens for one in made]
        if k:
            emitted = sum(len(one.tokens) - 1 for one in made)
            assert emitted / sum(len(one.rounds) for one in made) > 1.1, f"{method}: tokens a round"
    if engine.target.compiled is not None:  # there a token's logits have the same bits in passes of any width
        assert all(tokens == outputs["autoregressive", 0] for tokens in outputs.values())
