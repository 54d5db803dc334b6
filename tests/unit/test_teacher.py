"""Training for any decoder-only target: each architecture teaches, text, draft and heads are made, and all of it
decodes losslessly.
"""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from llamas import RECIPE as TAUGHT
from llamas import TINY, random_llama
from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.engines.native import Native
from specrig.heads import acceptance
from specrig.heads.base import TrainingError
from specrig.heads.learner import Texts, draft_ids
from specrig.heads.teacher import Teacher, autocast, copy_tokenizer, end_tokens, load_teacher
from specrig.models.pair import PairFiles
from specrig.runtime.linear import Linear
from specrig.training import stages
from specrig.training.draft import DraftLearner
from specrig.training.generate import Writer
from specrig.training.recipe import Recipe
from specrig.training.states import StoredStates, prepare
from specrig.training.target_text import frequent, read_text, write_text

V, D = 1024, 32
SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": False}
CONFIGS = {
    "gpt2": GPT2Config(
        vocab_size=V,
        n_embd=D,
        n_layer=3,
        n_head=4,
        n_positions=128,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,
    ),
    "gpt_neox": GPTNeoXConfig(**SIZES, tie_word_embeddings=False),
    "llama": LlamaConfig(**GROUPED, head_dim=12, rope_parameters={"rope_type": "default", "rope_theta": 50_000.0}),
    "mistral": MistralConfig(**GROUPED, sliding_window=24),
    "qwen3": Qwen3Config(**GROUPED, head_dim=16),
}
HEAD = {"steps": 3, "batch": 2}
RECIPE = Recipe.model_validate(
    TAUGHT
    | {
        "draft": {"layers": 1, "hidden": 16, "heads": 1, "intermediate": 24},
        "draft_training": {"steps": 3, "batch": 2},
        "distillation": {"draft_vocabulary": 200, "start": "embedding"},
        "text": {"sequences": 12, "heldout_sequences": 8, "sequence": 72},
        "medusa": HEAD | {"heads": 2, "draft_vocabulary": 200, "joint": {"steps": 2}},
        "eagle": HEAD | {"rollout": 2, "draft_vocabulary": 200, "loss": "lk"},
        "eagle3": HEAD | {"rollout": 2, "draft_vocabulary": 200},
        "dflash": HEAD | {"k": 4, "draft_vocabulary": 200, "loss": "lk"},
        "p_eagle": HEAD | {"layers": 2, "draft_vocabulary": 200, "position_weights": "d_pace"},
    }
)
MODELS = ("draft", "medusa", "draft_medusa", "eagle", "eagle3", "p_eagle", "dflash")


def made(kind: str, tokenizer: Path, folder: Path) -> Path:
    """A random model of that architecture with the tokenizer of another folder."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[kind]).save_pretrained(folder)
    copy_tokenizer(tokenizer, folder)
    return folder


ONE = pytest.mark.parametrize("trained", ["qwen3"], indirect=True)
"""For what no architecture changes."""


@pytest.fixture(scope="module", params=["gpt2", "gpt_neox", "mistral", "qwen3"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target's folder, and the folder of what was trained for it."""
    folder = tmp_path_factory.mktemp(request.param)
    target, models = made(request.param, TINY / "target", folder / "given"), folder / "models"
    write_text(RECIPE, models, target)
    for name in MODELS:
        stages.train(name, RECIPE, models, target, False, "cpu")
    return target, models


def test_a_teacher_says_what_the_model_says(trained: tuple[Path, Path]) -> None:
    teacher = load_teacher(trained[0], torch.device("cpu"))
    tokens = torch.randint(0, V, (2, 40), generator=torch.Generator().manual_seed(1))
    found = teacher.states(tokens, (1, 2))
    with torch.no_grad(), autocast(torch.device("cpu")):
        generated = teacher.model(input_ids=tokens, output_hidden_states=True)
        logits = teacher.logits(found[..., -D:])
    assert found.shape == (2, 40, 3 * D) and teacher.eos == (0,)
    for part, expected in zip(
        found.split(D, -1), (*generated.hidden_states[1:3], generated.hidden_states[-1]), strict=True
    ):
        assert torch.equal(part, expected.to(part.dtype))
    torch.testing.assert_close(logits.float(), generated.logits.float())


def heldout_prompts(models: Path) -> list[list[int]]:
    """What stands before the target's first token in each held-out text."""
    heldout = read_text(models).heldout
    return [
        row[: int(written.int().argmax())].tolist()
        for row, written in zip(heldout.tokens, heldout.written, strict=True)
    ]


def test_what_was_trained_decodes_losslessly(trained: tuple[Path, Path]) -> None:
    target, models = trained
    heads = {name: models / name for name in MODELS if name != "draft"}
    engine = Native(PairFiles("any", str(target), str(models / "draft"), heads=heads))
    prompts = heldout_prompts(models)[:2]

    def outputs(method: str, k: int) -> list[list[int]]:
        kind = registry()[method]
        drafter = kind(kind.Options(), engine)
        generated = generate(engine.target, drafter, prompts, k=k, max_new_tokens=24, temperature=0)
        assert all(len(generation.tokens) == 24 for generation in generated)
        return [generation.tokens for generation in generated]

    plain = outputs("autoregressive", 0)
    for method in ("draft_model", "tree", "medusa", "medusa_draft", "eagle", "eagle2", "eagle3", "p_eagle", "dflash"):
        assert outputs(method, 3) == plain, method


def test_the_text_is_what_the_target_says(trained: tuple[Path, Path]) -> None:
    text, teacher = read_text(trained[1]), load_teacher(trained[0], torch.device("cpu"))
    logits = teacher.logits(teacher.states(text.heldout.tokens[:, :-1])).float()
    said = logits.gather(-1, text.heldout.tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    short = (logits.amax(-1) - said)[text.heldout.written[:, 1:]]
    assert short.max() < 0.2 * logits.std()  # the teacher may compute in bfloat16


@ONE
def test_the_curves_tell_the_acceptance_to_expect(trained: tuple[Path, Path]) -> None:
    for name in MODELS:
        last = json.loads((trained[1] / name / "training.jsonl").read_text().splitlines()[-1])
        assert last["tau_sim"] == pytest.approx(acceptance.expected(last["acceptance"]), abs=2e-3)
        assert not (trained[1] / name / ".states").exists()


def test_medusa_2_trains_any_target_with_its_heads(tmp_path: Path) -> None:
    from specrig.training.fit import train_jointly

    target = made("qwen3", TINY / "target", tmp_path / "given")
    write_text(RECIPE, tmp_path / "base", target)
    stages.train("medusa", RECIPE, tmp_path / "base", target, False, "cpu")
    train_jointly(RECIPE, tmp_path / "base", tmp_path / "joint", target, False)
    before, after = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (target, tmp_path / "joint/target")
    )
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(before)
    assert (tmp_path / "joint/medusa/model.safetensors").is_file() and (
        tmp_path / "joint/target/tokenizer.json"
    ).is_file()


def test_expected_acceptance_is_that_of_rounds() -> None:
    """Of four rounds one drafts three right tokens, one two, one one, and one none: 1 + (3 + 2 + 1) / 4."""
    right = torch.tensor([[[1, 1, 1, 0]], [[1, 1, 0, 1]], [[1, 0, 1, 1]]], dtype=torch.bool)
    found = acceptance.accuracies(right, torch.ones_like(right))
    assert found == pytest.approx([3 / 4, 2 / 3, 1 / 2]) and acceptance.expected(found) == pytest.approx(2.5)
    evaluated = torch.ones_like(right)
    evaluated[2] = False
    assert acceptance.accuracies(right, evaluated)[2] == 0.0


def test_an_end_token_inside_a_prompt_ends_no_text() -> None:
    """As in ChatML, whose turns end with it: only what the target wrote is measured, and all of it."""
    tokens = torch.tensor([[5, 0, 7, 8, 9, 0, 0]])
    written = torch.tensor([[0, 0, 0, 1, 1, 1, 0]], dtype=torch.bool)
    teacher = Teacher(random_llama(12, hidden=16, heads=1, intermediate=24), (0,), torch.device("cpu"))
    _, evaluated = DraftLearner(RECIPE, teacher, None).measured(Texts(tokens, written), torch.empty(0))
    assert evaluated[:3].sum((1, 2)).tolist() == [2, 1, 0]  # token 4 after 3, token 5 after 4; both after 3


@ONE
def test_states_on_disk_are_those_in_memory_and_are_not_made_twice(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, texts = load_teacher(trained[0], torch.device("cpu")), read_text(trained[1]).train
    N, T = texts.tokens.shape
    monkeypatch.setattr("specrig.training.states.SHARD", 3 * 2 * T * D)  # three texts a shard
    run, model = tmp_path / "run", tmp_path / "model"
    run.mkdir()
    shutil.copytree(trained[0], model)
    stored = StoredStates(run, model, teacher, texts, (1,))
    rows = torch.tensor([N - 1, 0, 2])
    expected = teacher.states(texts.tokens[rows], (1,)).bfloat16().to(teacher.products)
    behind = torch.arange(T) >= texts.lengths()[rows].unsqueeze(1)
    torch.testing.assert_close(stored[rows][~behind], expected[~behind], atol=0.1, rtol=0.05)
    assert not stored[rows][behind].any(), "nothing is computed behind the end of a text"
    files = sorted((tmp_path / ".states").glob("*.safetensors"))
    assert len(files) == 2 * -(-N // 3), "a file for each stream"
    before = [file.stat().st_mtime_ns for file in files]
    assert capsys.readouterr().err.endswith(f"hidden states: {N} of {N} texts\n")
    StoredStates(run, model, teacher, texts, (1,))
    assert [file.stat().st_mtime_ns for file in files] == before and not capsys.readouterr().err
    last = StoredStates(run, model, teacher, texts)
    assert torch.equal(last[rows], stored[rows].chunk(2, -1)[1])
    assert sorted((tmp_path / ".states").glob("*.safetensors")) == files, (
        "the pair's other trainings find them, streams by streams"
    )
    weights = model / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    StoredStates(run, model, teacher, texts, (1,))
    assert [file.stat().st_mtime_ns for file in files] != before, "of another model they are others"
    monkeypatch.setattr("specrig.training.states.KEPT", 0)
    StoredStates(run, model, teacher, texts)
    assert (
        list((run / ".states").glob("*.safetensors")) and sorted((tmp_path / ".states").glob("*.safetensors")) == files
    ), "large ones go with the training"


@ONE
def test_the_job_that_writes_the_text_computes_all_states(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(trained[1] / stages.TEXT, tmp_path / stages.TEXT)
    prepare(RECIPE, tmp_path, trained[0], ("draft", "rest"))
    make = StoredStates._make
    monkeypatch.setattr(StoredStates, "_make", lambda *_: pytest.fail("states were made again"))
    stages.train("draft", RECIPE, tmp_path, trained[0], False, "cpu")
    monkeypatch.setattr(StoredStates, "_make", make)
    prepare(RECIPE, tmp_path, trained[0], ("draft", "eagle", "eagle3"))
    monkeypatch.setattr(StoredStates, "_make", lambda *_: pytest.fail("states were made again"))
    for name in ("eagle", "eagle3"):
        stages.train(name, RECIPE, tmp_path, trained[0], False, "cpu")


@ONE
def test_a_cut_vocabulary_holds_the_most_frequent_tokens(trained: tuple[Path, Path]) -> None:
    text = read_text(trained[1]).train
    counts = torch.bincount(text.tokens[text.written], minlength=V)
    drafted = frequent(text, 50, V)
    assert drafted is not None and drafted.tolist() == sorted(drafted.tolist())
    rest = torch.ones(V, dtype=torch.bool)
    rest[drafted] = False
    assert counts[drafted].min() >= counts[rest].max()
    found = draft_ids(torch.arange(V), drafted)
    assert torch.equal(found[drafted], torch.arange(50)) and bool((found[rest] == -1).all())
    assert frequent(text, V, V) is None


@ONE
def test_a_writing_that_was_cut_goes_on(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that are there are not written again, and one that was cut in its line is."""

    class Killed(BaseException):
        pass

    write = Writer.write

    def killed(self: Writer, *args: Any) -> Any:
        yield from islice(write(self, *args), 5)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Writer, "write", killed)
        write_text(RECIPE, tmp_path / "cut", trained[0])
    (file,) = (tmp_path / "cut/text").glob("*.jsonl")
    there = file.read_bytes()
    assert there.count(b"\n") == 5
    file.write_bytes(there + b'{"number": 99, "tem')
    write_text(RECIPE, tmp_path / "cut", trained[0])
    assert file.read_bytes().startswith(there)
    write_text(RECIPE, tmp_path / "whole", trained[0])
    (whole,) = (tmp_path / "whole/text").glob("*.jsonl")
    assert whole.name == file.name
    numbers = [[json.loads(line)["number"] for line in each.read_text().splitlines()] for each in (file, whole)]
    assert sorted(numbers[0]) == sorted(numbers[1]) and len(set(numbers[0])) == len(numbers[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [40, 700])  # below and above the size from which on compiled code multiplies
def test_some_outputs_of_a_layer_are_those_of_the_whole(rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = (
        torch.randn(rows, 256, generator=generator).to(dtype),
        torch.randn(rows, generator=generator).to(dtype),
    )
    x, some = torch.randn(5, 256, generator=generator).to(dtype), torch.tensor([3, 4, 39])
    found = Linear(weight, bias).select_outputs(some)
    assert torch.equal(found.weight, weight[some])
    torch.testing.assert_close(
        found(x), Linear(weight, bias)(x)[:, some], atol=1e-1 if dtype == torch.bfloat16 else 1e-4, rtol=1e-2
    )


def test_a_model_that_cannot_teach_is_refused(tmp_path: Path) -> None:
    from transformers import CohereConfig

    config = CohereConfig(**GROUPED | {"tie_word_embeddings": True}, logit_scale=0.1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "cohere")
    with pytest.raises(TrainingError, match=r"cohere: a cohere model scales or caps its logits.* Take methods"):
        load_teacher(tmp_path / "cohere", torch.device("cpu"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrainingError, match="transformers cannot load this model"):
        load_teacher(tmp_path / "empty", torch.device("cpu"))
    CONFIGS["llama"].save_pretrained(tmp_path / "endless")
    settings = json.loads((tmp_path / "endless/config.json").read_text())
    (tmp_path / "endless/config.json").write_text(json.dumps({**settings, "eos_token_id": None}))
    with pytest.raises(TrainingError, match="no eos_token_id"):
        end_tokens(tmp_path / "endless")


def test_an_end_that_only_the_config_names(tmp_path: Path) -> None:
    CONFIGS["llama"].save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True}))
    assert end_tokens(tmp_path) == (0,)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma"])
def test_the_scale_of_the_final_norm_whatever_norm_it_is(kind: str) -> None:
    """Gemma's multiplies by 1 + weight."""
    from transformers import GemmaConfig

    config = GemmaConfig(**GROUPED | {"tie_word_embeddings": True}, head_dim=8) if kind == "gemma" else CONFIGS[kind]
    teacher = Teacher(AutoModelForCausalLM.from_config(config), (0,), torch.device("cpu"))
    norm: Any = teacher.body.ln_f if kind == "gpt2" else teacher.body.norm
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(teacher.final_norm(), norm.weight + (kind == "gemma"), rtol=1e-4, atol=1e-4)
