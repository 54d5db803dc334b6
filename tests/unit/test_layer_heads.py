"""Heads of decoder layers: the one that trains computes what the one that decodes does, and it learns from nothing but
what the target wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import LlamaForCausalLM

from llamas import saved_llama
from specrig import heads
from specrig.heads.anchors import Copies
from specrig.heads.learner import Texts
from specrig.heads.teacher import Teacher
from specrig.runtime.transformers_model import cached_model

V, D = 23, 32
EVERY = [0, 3, 4, 11, 20, 22]
"""The tokens that a head can draft."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target."""
    saved_llama(tmp_path, V, layers=4)
    return tmp_path


def learner_of(name: str, folder: Path, **keys: Any) -> Any:
    """A head whose weights are all of some size."""
    teacher = Teacher(LlamaForCausalLM.from_pretrained(folder), (V,), torch.device("cpu"))
    settings = heads.registry()[name].model_validate(keys)
    learner = heads.learner_class(name)(settings, teacher, teacher, torch.tensor(EVERY), 1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in learner.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    if hasattr(learner, "fc"):
        learner.fc.scale = torch.linspace(0.5, 2.0, len(learner.fc.scale))  # what a checkpoint's fc holds
    return learner


def decoding(name: str, learner: Any, folder: Path, tokens: Tensor) -> tuple[Any, Tensor, Tensor]:
    """The head as it decodes, the target's states that it reads of `tokens`, and the features that it makes of them."""
    learner.save(folder / "head")
    target = cached_model(LlamaForCausalLM.from_pretrained(folder))
    head = heads.part(name, "module").load(folder / "head", target)
    target.start(len(tokens), 64)
    with torch.no_grad():
        states = learner.teacher.states(tokens, learner.aux_layers)
    return head, states, states if name in ("eagle", "mtp") else head.fuse(states[..., :-D])


@pytest.mark.parametrize(("name", "keys"), [("eagle", {}), ("eagle3", {}), ("eagle3", {"norms": True}), ("mtp", {})])
def test_a_head_that_drafts_step_by_step_trains_as_it_decodes(folder: Path, name: str, keys: dict[str, Any]) -> None:
    learner = learner_of(name, folder, **keys)
    tokens = torch.randint(0, V, (1, 12), generator=torch.Generator().manual_seed(4))
    head, states, features = decoding(name, learner, folder, tokens)
    with torch.no_grad():
        steps = list(learner(F.embedding(tokens[:, 1:], learner.model.embedding), states[:, :-1], 3))
        # Step j + 1's last entry is what the head drafts after true features up to j positions before the end.
        for back, expected in enumerate(steps):
            row = tokens[0, : 12 - back].tolist()
            head.begin([row], features[:, : len(row) - 1])
            logits, output = head.advance([row])
            for token in tokens[0, 12 - back :]:
                logits, output = head.step(token.unsqueeze(0), output)
            torch.testing.assert_close(learner.module.fed_back(expected[0, -1]), output[0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(learner.logits(expected[0, -1]), logits[0], atol=1e-4, rtol=1e-4)
            assert head.target_ids(torch.arange(6)).tolist() == EVERY


@pytest.mark.parametrize(("name", "layers"), [("p_eagle", 1), ("p_eagle", 2), ("dflash", 1), ("dflash", 3)])
def test_a_head_that_drafts_in_one_pass_trains_as_it_decodes(folder: Path, name: str, layers: int) -> None:
    """Rows of different lengths, before and after a round that accepted some; entries that were kept say the same
    without the masks.
    """
    learner = learner_of(name, folder, layers=layers)
    tokens = torch.randint(0, V, (2, 12), generator=torch.Generator().manual_seed(4))
    head, states, features = decoding(name, learner, folder, tokens)
    with torch.no_grad():  # [rows, the position before a draft's first token, depths, Vd]
        if name == "dflash":
            every = torch.arange(12).expand(2, 12)
            expected = learner.output(learner.predicted(tokens, states[..., :-D], every, 4))
        else:
            copies = Copies.of(torch.ones(4, 1, 11, dtype=torch.bool))
            found = learner.predicted(tokens[:, 1:], states[:, :-1], copies)
            parts = [found[:, copies.at(depth)] for depth in range(4)]
            expected = F.pad(torch.stack([learner.logits(part) for part in parts], 2), (0, 0, 0, 0, 1, 0))
    ends = [9, 5]  # tokens of each row that the first round knows
    head.begin([row[:end].tolist() for row, end in zip(tokens, ends, strict=True)], features)
    for accepted in ([0, 0], [2, 1]):
        if any(accepted):  # and the target's own token
            verified = torch.stack([row[end - 1 : end + 3] for row, end in zip(features, ends, strict=True)])
            head.accept(verified, [list(range(count)) for count in accepted])
            ends = [end + count + 1 for end, count in zip(ends, accepted, strict=True)]
        rows = [row[:end].tolist() for row, end in zip(tokens, ends, strict=True)]
        calls = sum(count for count, _ in head.pass_totals().values())
        found = head.draft(rows, [False, False], 4)
        assert sum(count for count, _ in head.pass_totals().values()) == calls + 1
        for row, end in enumerate(ends):
            torch.testing.assert_close(found[row], expected[row, end - 1], atol=1e-4, rtol=1e-4)
    assert head.target_ids(torch.arange(6)).tolist() == EVERY


def test_dspark_trains_as_it_decodes(folder: Path) -> None:
    learner = learner_of("dspark", folder)
    tokens = torch.randint(0, V, (2, 12), generator=torch.Generator().manual_seed(4))
    head, states, features = decoding("dspark", learner, folder, tokens)
    with torch.no_grad():
        every = torch.arange(12).expand(2, 12)
        said = learner.predicted(tokens, states[..., :-D], every, 4)
        before = F.pad(tokens, (0, 3)).unfold(1, 4, 1)  # [rows, anchors, 4]: where texts end nothing is compared
        expected = learner.logits(said, before)
        confident = learner.confidence(said, F.embedding(before, learner.markov.embedding)).sigmoid()
    ends = [9, 5]
    rows = [row[:end].tolist() for row, end in zip(tokens, ends, strict=True)]
    head.begin(rows, features)
    found = head.draft(rows, [False, False], 4)
    drafted = torch.stack([row[end : end + 4] for row, end in zip(F.pad(tokens, (0, 4)), ends, strict=True)])
    found[:, 1:] += head.markov(drafted[:, :-1])
    confidences = head.confidences(rows, drafted)
    for row, end in enumerate(ends):
        torch.testing.assert_close(found[row, :3], expected[row, end - 1, :3], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(confidences[row, :3], confident[row, end - 1, :3], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("position_weights", ["decay", "d_pace"])
@pytest.mark.parametrize("loss", ["kl", "lk"])
@pytest.mark.parametrize(("name", "keys"), [("p_eagle", {}), ("dflash", {"anchors": 0.5})])
def test_only_what_the_target_wrote_is_learnt(
    folder: Path, name: str, keys: dict[str, Any], loss: str, position_weights: str
) -> None:
    """Neither other rows' tokens nor those behind the text's end change the loss of what is written."""
    losses = []
    for end in (3, 19):
        learner = learner_of(name, folder, k=4, position_weights=position_weights, loss=loss, **keys)
        tokens = torch.randint(0, V, (2, 15), generator=torch.Generator().manual_seed(4))
        written = torch.ones_like(tokens, dtype=torch.bool)
        written[:, :5], written[:, 12:] = False, False
        tokens[:, 12:] = end
        states = learner.teacher.states(tokens, learner.aux_layers)
        found = learner.loss(Texts(tokens, written), states, states[..., -D:])
        found.backward()
        losses.append(found.item())
        assert all(each.grad is not None and each.grad.abs().sum() > 0 for each in learner.parameters())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
