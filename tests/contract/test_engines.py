"""What every engine that loads a pair owes: the target's own greedy tokens, sound accounting, its stop rules, a reason
where it refuses.
"""

from __future__ import annotations

import importlib.util
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from specrig.audit.exact import exact_test
from specrig.audit.toy_pair import build
from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry
from specrig.engines.base import Engine, EngineError, foreign
from specrig.engines.vllm.speculation import speculation_of
from specrig.heads.base import Foreign
from specrig.heads.medusa import module as medusa
from specrig.heads.pard import module as pard
from specrig.models.pair import PairFiles
from specrig.study.load import load_study

FALSE_ALARM = 1e-4
PROMPTS = [[3, 5, 3, 5, 7, 3, 5], [1, 2, 3, 4, 5, 6, 7, 0, 1, 2], [4]]
OPTIONS: dict[str, dict[str, Any]] = {
    "medusa": {"tree": [1]},
    "dspark": {"confidence_threshold": 0.0},
    "layer_skip": {"skip": [2]},
}
"""Whole chains where a method's default is another, since not every engine has trees; the last of the target's three
layers.
"""
QUICK = {"vllm": {"eager": True, "multiprocessing": False, "cpu_sampling": "patched"}}
"""The stock CPU sampler reads uninitialised memory, so not even a seed gives one output twice."""
needs_vllm = pytest.mark.skipif(registry()["vllm"].missing() is not None, reason="vLLM is not installed")
needs_llamacpp = pytest.mark.skipif(registry()["llamacpp"].missing() is not None, reason="llama.cpp is not installed")
ENGINES = [
    "transformers",
    pytest.param("llamacpp", marks=needs_llamacpp),
    pytest.param("vllm", marks=[pytest.mark.vllm, needs_vllm]),
]
METHODS = [
    name
    for name in "autoregressive draft_model ngram medusa eagle eagle3 p_eagle dflash dspark suffix".split()
    if name in methods()
]


def cell(engine: str, method: str, k: int = 4, temperature: float = 0.0, batch_size: int = 1, **own: Any) -> Cell:
    options = methods()[method].Options.model_validate({**OPTIONS.get(method, {}), **own}).model_dump(mode="json")
    k = k if methods()[method].uses_k else 0
    return Cell(
        engine=engine, pair="toy_pair", method=method, k=k, task="t", temperature=temperature, batch_size=batch_size,
        options=options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def toy_pair(tmp_path_factory: pytest.TempPathFactory) -> PairFiles:
    needs = {need for method in METHODS for need in methods()[method].needs}
    return replace(build(tmp_path_factory.mktemp("toy_pair"), sorted(needs)), engine_options=QUICK)


@pytest.fixture(scope="module")
def native(toy_pair: PairFiles) -> Engine:
    return registry()["native"](toy_pair)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, toy_pair: PairFiles) -> Iterator[Engine]:
    with registry()[request.param](toy_pair) as opened:
        yield opened


@pytest.mark.parametrize("method", METHODS)
def test_greedy_output_is_the_targets_and_its_accounting_sound(engine: Engine, native: Engine, method: str) -> None:
    requested = cell(engine.name, method)
    if reason := engine.refuses(requested):
        pytest.skip(reason)
    for prompt in PROMPTS:
        (plain,) = native.generate(cell("native", "autoregressive"), [prompt], max_new_tokens=33, seeds=[0])
        (found,) = engine.generate(requested, [prompt], max_new_tokens=33, seeds=[0])
        assert found.tokens == plain.tokens
        assert found.stop == "length"
        assert found.ttft_s > 0 and found.decode_s > 0
        if not found.rounds and method == "autoregressive":
            continue  # an engine behind HTTP
        if found.counts is not None:  # an engine that tells totals
            rounds, drafted, accepted = found.counts.rounds, found.counts.drafted, found.counts.accepted
            assert drafted is not None and accepted is not None
            assert 0 <= accepted <= drafted <= requested.k * rounds
            assert accepted + rounds == 32
            continue
        # The prompt's pass is a round where it verifies drafts, as transformers' does; else its token is nobody's.
        assert sum(entry.emitted for entry in found.rounds) in (33, 32)
        for entry in found.rounds:
            assert 0 <= entry.accepted <= entry.drafted <= requested.k
            assert entry.cut or entry.emitted == entry.accepted + 1
        assert not any(entry.cut for entry in found.rounds[:-1])


def test_a_perfect_draft_is_always_accepted_and_k_is_k(engine: Engine, toy_pair: PairFiles) -> None:
    with registry()[engine.name](replace(toy_pair, draft=toy_pair.target)) as sure:
        (found,) = sure.generate(cell(engine.name, "draft_model"), [PROMPTS[0]], max_new_tokens=40, seeds=[0])
    if (
        found.counts is not None
    ):  # 39 tokens after the first: seven rounds of five, and one that has room for three drafted ones
        assert (found.counts.rounds, found.counts.drafted, found.counts.accepted) == (8, 31, 31)
        return
    full = [entry for entry in found.rounds if not entry.cut]
    assert len(full) >= 7
    assert {(entry.drafted, entry.accepted, entry.emitted) for entry in full} == {(4, 4, 5)}


@pytest.mark.parametrize("method", ["autoregressive", "draft_model", "ngram"])
def test_it_stops_behind_an_end_of_sequence(engine: Engine, native: Engine, method: str) -> None:
    (free,) = native.generate(cell("native", "autoregressive"), [PROMPTS[1]], max_new_tokens=30, seeds=[0])
    end = free.tokens[12]
    expected = free.tokens[: free.tokens.index(end) + 1]
    before, engine.eos = engine.eos, frozenset([end])  # type: ignore[attr-defined]
    try:
        (found,) = engine.generate(cell(engine.name, method), [PROMPTS[1]], max_new_tokens=30, seeds=[0])
    finally:
        engine.eos = before  # type: ignore[attr-defined]
    assert (found.tokens, found.stop) == (expected, "eos")


def test_a_batch_gives_each_row_its_own_tokens(engine: Engine, native: Engine) -> None:
    requested = cell(engine.name, "autoregressive", batch_size=3)
    together = engine.generate(requested, PROMPTS, max_new_tokens=12, seeds=[0, 0, 0])
    for prompt, found in zip(PROMPTS, together, strict=True):
        (alone,) = native.generate(cell("native", "autoregressive"), [prompt], max_new_tokens=12, seeds=[0])
        assert found.tokens == alone.tokens


@pytest.mark.parametrize("method", ["autoregressive", "draft_model"])
def test_a_seed_is_one_output(engine: Engine, method: str) -> None:
    requested = cell(engine.name, method, temperature=1.0)
    outputs = [
        tuple(engine.generate(requested, [PROMPTS[0]], max_new_tokens=12, seeds=[seed])[0].tokens)
        for seed in (5, 5, 6, 7)
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs)) == 3


def test_what_an_engine_cannot_run_is_refused_with_the_reason() -> None:
    for name, method, options, words in (
        ("transformers", "eagle", {}, "has no eagle"),
        ("transformers", "draft_model", {"batch_size": 2}, "one prompt at a time"),
        ("transformers", "ngram", {"min_n": 2}, "min_n: 1"),
        ("llamacpp", "medusa", {}, "has no medusa"),
        ("llamacpp", "eagle3", {"nodes": 8}, "nodes: 0"),
        ("llamacpp", "draft_model", {"acceptance": "block"}, "acceptance: exact"),
        ("vllm", "tree", {}, "has no tree"),
        ("vllm", "medusa", {"tree": None}, "tree: [1]"),
        ("vllm", "medusa", {"tree": [1], "acceptance": "typical"}, "acceptance: exact"),
    ):
        reason = registry()[name].refuses(cell(name, method, **options))
        assert reason is not None and words in reason
    assert registry()["vllm"].refuses(cell("vllm", "medusa")) is None
    assert registry()["llamacpp"].refuses(cell("llamacpp", "eagle3")) is None


@pytest.mark.parametrize(
    ("name", "option"),
    [("transformers", "confidence_threshold"), pytest.param("llamacpp", "p_min", marks=needs_llamacpp)],
)
def test_a_draft_that_is_not_sure_ends_early(toy_pair: PairFiles, name: str, option: str) -> None:
    drafted, outputs = [], []
    for threshold in (0.0, 0.7):
        with registry()[name](replace(toy_pair, engine_options={name: {option: threshold}})) as engine:
            (found,) = engine.generate(cell(name, "draft_model"), [PROMPTS[0]], max_new_tokens=33, seeds=[0])
            assert engine.environment()["engine"]["options"][option] == threshold
        outputs.append(found.tokens)
        drafted.append(found.counts.drafted if found.counts else sum(entry.drafted for entry in found.rounds))
    assert outputs[0] == outputs[1] and drafted[1] < drafted[0]


def test_early_exit_drafts_what_the_native_method_does(toy_pair: PairFiles, native: Engine) -> None:
    layers = AutoConfig.from_pretrained(toy_pair.target).num_hidden_layers
    skip = tuple(range(1, layers))
    refuses = registry()["transformers"].refuses
    assert refuses(cell("transformers", "layer_skip", skip=skip)) is None
    for other in (None, 0.5, (0, layers - 1) if layers > 2 else None):
        assert "give skip their numbers" in (refuses(cell("transformers", "layer_skip", skip=other)) or "")
    with registry()["transformers"](toy_pair) as engine:
        for prompt in PROMPTS:
            (ours,) = native.generate(cell("native", "layer_skip", skip=skip), [prompt], max_new_tokens=33, seeds=[0])
            (found,) = engine.generate(
                cell("transformers", "layer_skip", skip=skip), [prompt], max_new_tokens=33, seeds=[0]
            )
            (plain,) = engine.generate(cell("transformers", "autoregressive"), [prompt], max_new_tokens=33, seeds=[0])
            assert found.tokens == plain.tokens == ours.tokens
            assert {entry.drafted for entry in found.rounds if not entry.cut} == {4}
            # Its prefill verifies a draft too, so the rounds of the two begin at different tokens.
            assert sum(entry.emitted for entry in found.rounds) == 33
            assert found.draft_passes and not plain.draft_passes
        with pytest.raises(EngineError, match=f"end the list with {layers - 1}"):
            engine.generate(cell("transformers", "layer_skip", skip=(0,)), [PROMPTS[0]], max_new_tokens=8, seeds=[0])


def test_vllms_switches_reach_its_config(toy_pair: PairFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    options = registry()["vllm"].Options(num_speculative_tokens_per_batch_size=[(1, 8, 4), (9, 64, 1)], ngram_gpu=True)
    config = speculation_of(cell("vllm", "ngram"), toy_pair, **options.of_speculation())["speculative_config"]
    assert config["method"] == "ngram_gpu"
    assert config["num_speculative_tokens_per_batch_size"] == [(1, 8, 4), (9, 64, 1)]
    adaptive = registry()["vllm"].Options(adaptive_verification=True).of_speculation()
    monkeypatch.setitem(foreign("vllm"), "ngram", Foreign("dspark"))  # the one method that it is for
    config = speculation_of(cell("vllm", "ngram"), toy_pair, **adaptive)["speculative_config"]
    assert config["enable_adaptive_verification"] is True
    monkeypatch.undo()
    assert "enable_adaptive_verification" not in str(speculation_of(cell("vllm", "ngram"), toy_pair, **adaptive))
    plain = registry()["vllm"].Options().of_speculation()
    assert speculation_of(cell("vllm", "ngram"), toy_pair, **plain)["speculative_config"] == {
        "method": "ngram",
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
        "num_speculative_tokens": 4,
    }


def test_vllm_is_given_no_medusa_heads_that_it_cannot_load(toy_pair: PairFiles, tmp_path: Path) -> None:
    """Those of a cut vocabulary."""
    requested = cell("vllm", "medusa")
    pair = replace(toy_pair, heads={**toy_pair.heads, "medusa": tmp_path})
    medusa.heads_config(hidden=8, vocabulary=64, heads=4).save_pretrained(tmp_path)
    assert speculation_of(requested, pair, "greedy")["speculative_config"]["model"] == str(tmp_path)
    for shared in (False, True):
        medusa.heads_config(hidden=8, vocabulary=64, heads=4, drafted=16, shared=shared).save_pretrained(tmp_path)
        with pytest.raises(EngineError, match="heads that draft among 16 of 64 tokens; train them with"):
            speculation_of(requested, pair, "greedy")


def with_bias(pair: PairFiles, folder: Path) -> PairFiles:
    """The pair with its P-EAGLE head, to which a large bias of the token before is added."""
    config = json.loads((pair.heads["p_eagle"] / "config.json").read_text()) | {"markov_rank": 2}
    tensors = load_file(pair.heads["p_eagle"] / "model.safetensors")
    drafted = len(tensors["lm_head.weight"])
    bias = {"embedding": torch.randn(config["vocab_size"], 2), "lm_head": 9 * torch.randn(drafted, 2)}
    save_file(tensors | {f"markov.{name}.weight": each for name, each in bias.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return replace(pair, heads={"p_eagle": folder})


def test_vllm_is_given_a_head_without_the_bias_that_it_does_not_know(toy_pair: PairFiles, tmp_path: Path) -> None:
    found = speculation_of(cell("vllm", "p_eagle"), with_bias(toy_pair, tmp_path), "greedy")["speculative_config"]
    plain = toy_pair.heads["p_eagle"]
    assert found["model"] != str(tmp_path)
    assert json.loads(Path(found["model"], "config.json").read_text()) == json.loads(
        (plain / "config.json").read_text()
    )
    given, kept = (load_file(Path(folder, "model.safetensors")) for folder in (found["model"], plain))
    assert given.keys() == kept.keys() and all(torch.equal(given[name], kept[name]) for name in kept)


@pytest.mark.parametrize("here", [True, False])
def test_a_missing_suffix_library_is_said_when_planning(
    workplace: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """Its cells are listed as skipped with the install line, and no others."""
    find = importlib.util.find_spec
    present = {"vllm": True, "arctic_inference": here}

    def find_spec(name: str, package: str | None = None) -> Any:
        return (present[name] or None) if name in present else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    config = yaml.safe_load(Path("configs/engines.yaml").read_text())
    config["methods"].append({"method": "suffix", "k": 8})
    Path("configs/mine.yaml").write_text(yaml.safe_dump(config))
    study = load_study(Path("configs/mine.yaml"))
    refused = {refusal.cell.method: refusal.reason for refusal in study.grid.refusals if refusal.cell.engine == "vllm"}
    ran = {cell.method for cell in study.grid.cells if cell.engine == "vllm"}
    assert ran == {entry.method for entry in study.methods} - ({"suffix"} if not here else set())
    if here:
        assert refused == {}
        return
    assert set(refused) == {"suffix"}
    assert "`make vllm`" in refused["suffix"]
    pinned = re.findall(r"[\w-]+==[\d.]+", refused["suffix"])
    assert pinned[-1].startswith("arctic-inference")
    assert all(pin in (repository / "Makefile").read_text() for pin in pinned)


@pytest.mark.parametrize(
    ("engine", "method", "options", "samples"),
    [
        ("transformers", "draft_model", {}, 160),  # each takes a tenth of a second
        ("transformers", "ngram", {}, 160),
        *(
            pytest.param("llamacpp", method, {"draft_sampling": drafts}, 400, marks=needs_llamacpp)
            for method, drafts in (("draft_model", "greedy"), ("draft_model", "probabilistic"), ("ngram", "greedy"))
        ),
    ],
)
def test_an_engine_samples_from_the_target(
    tmp_path: Path, engine: str, method: str, options: dict[str, Any], samples: int
) -> None:
    """Drafts with probabilities of their own and without, which is all that an engine's verifier knows of a method.

    A bias in total variation of .14 at all tokens is seen in 160 samples with a chance of 80 %, of .09 in 400.
    """
    test = exact_test(engine, cell(engine, method, k=2, temperature=1.0), tmp_path, samples, {engine: options})
    assert test.samples == samples
    assert test.p_value > FALSE_ALARM, test


@pytest.mark.vllm
@needs_vllm
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "p_eagle", "dflash", "suffix"])
@pytest.mark.parametrize(
    ("sampling", "drafts"), [("stock", "greedy"), ("patched", "greedy"), ("patched", "probabilistic")]
)
def test_the_audit_tells_the_stock_cpu_sampler_from_the_patched_one(
    tmp_path: Path, method: str, sampling: str, drafts: str
) -> None:
    """vLLM 0.32's CPU build speculates from the wrong distribution above temperature 0 (vLLM issue 55005)."""
    options = {"vllm": {**QUICK["vllm"], "cpu_sampling": sampling, "draft_sampling": drafts}}
    requested = cell("vllm", method, k=2, temperature=1.0)
    if reason := registry()["vllm"].refuses(requested):
        pytest.skip(reason)
    test = exact_test("vllm", requested, tmp_path, 4096, options)
    assert (test.p_value > FALSE_ALARM) == (sampling == "patched"), test


@pytest.mark.vllm
@needs_vllm
def test_an_eagle3_head_of_a_cut_vocabulary_drafts_in_vllm_what_it_drafts_here(
    toy_pair: PairFiles, tmp_path: Path
) -> None:
    """Round for round; it knows four of the eight tokens only."""
    drafted = torch.tensor([0, 1, 4, 5])
    config = json.loads((toy_pair.heads["eagle3"] / "config.json").read_text()) | {"draft_vocab_size": 4}
    tensors = load_file(toy_pair.heads["eagle3"] / "model.safetensors")
    tensors |= {"d2t": drafted - torch.arange(4), "lm_head.weight": tensors["lm_head.weight"][drafted]}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_drafts_alike(replace(toy_pair, heads={"eagle3": tmp_path}), "eagle3")


@pytest.mark.vllm
@needs_vllm
@pytest.mark.parametrize("method", ["p_eagle", "dflash"])
def test_a_head_that_drafts_in_one_pass_drafts_in_vllm_what_it_drafts_here(toy_pair: PairFiles, method: str) -> None:
    assert_drafts_alike(toy_pair, method)


@pytest.mark.vllm
@needs_vllm
def test_vllm_drafts_with_a_head_whose_bias_it_does_not_know(toy_pair: PairFiles, tmp_path: Path) -> None:
    assert_drafts_alike(toy_pair, "p_eagle", in_vllm=with_bias(toy_pair, tmp_path))


@pytest.mark.vllm
@needs_vllm
def test_vllm_drafts_with_a_p_eagle_head_as_with_one_of_eagle3(toy_pair: PairFiles, tmp_path: Path) -> None:
    both = with_bias(toy_pair, tmp_path)
    assert_drafts_alike(replace(both, heads={"eagle3": both.heads["p_eagle"]}), "eagle3")


@pytest.mark.vllm
@needs_vllm
def test_a_pard_draft_drafts_in_vllm_what_it_drafts_here(toy_pair: PairFiles, tmp_path: Path) -> None:
    """vLLM wants as many tokens as the target has, so the mask is one of them."""
    assert toy_pair.draft is not None
    model = AutoModelForCausalLM.from_pretrained(toy_pair.draft)
    pard.save(tmp_path, model, model.config.vocab_size - 1)
    assert_drafts_alike(replace(toy_pair, heads={"pard": tmp_path}), "pard")


SPECULATORS = {
    "eagle3": {},
    "eagle3 normed": {"norm_before_residual": True},
    "eagle3 3.1": {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
    "p_eagle": {},
    "dflash": {"sliding_window_non_causal": True},  # else vLLM 0.32 makes layers of full attention causal too
}
"""Head, and what it is -> keys of its config.json, as speculators writes it."""


def as_speculators(head: Path, folder: Path, flags: dict[str, Any]) -> Path:
    """A checkpoint of ours as speculators 0.9 writes it."""
    ours, tensors = json.loads((head / "config.json").read_text()), load_file(head / "model.safetensors")
    kind, width = head.name, ours["hidden_size"]
    config = {
        "speculators_model_type": kind.replace("_", ""), "speculators_version": "0.9.0", "transformer_layer_config": ours,
        "draft_vocab_size": ours.get("draft_vocab_size", ours["vocab_size"]), "norm_before_residual": False,
        "speculators_config": {
            "algorithm": kind, "default_proposal_method": "greedy", "verifier": {"name_or_path": "x", "architectures": ["x"]},
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        },
        **flags,
    }  # fmt: skip
    if kind == "dflash":
        own = ours.pop("dflash_config")
        ids = [layer + 1 for layer in own["target_layer_ids"]]
        config |= {"aux_hidden_state_layer_ids": ids, "mask_token_id": own["mask_token_id"]}
    else:
        ids = ours.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]
        config |= {"eagle_aux_hidden_state_layer_ids": ids, "mask_token_id": ours.pop("ptd_token_id", None)}
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    if flags.get("fc_norm"):
        tensors |= {f"fc_norm.{at}.weight": torch.linspace(0.5, 1.5, width) for at in range(3)}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.vllm
@needs_vllm
@pytest.mark.parametrize("case", SPECULATORS)
def test_a_head_of_speculators_drafts_in_vllm_what_it_drafts_here(
    toy_pair: PairFiles, tmp_path: Path, case: str
) -> None:
    method = case.split()[0]
    folder = as_speculators(Path(toy_pair.heads[method]), tmp_path / "head", SPECULATORS[case])
    assert_drafts_alike(replace(toy_pair, heads={method: folder}), method)


@pytest.mark.vllm
@needs_vllm
def test_medusa_heads_under_their_authors_names_draft_in_vllm_what_they_draft_here(
    toy_pair: PairFiles, tmp_path: Path
) -> None:
    config = json.loads((toy_pair.heads["medusa"] / "config.json").read_text())
    tensors = {
        re.sub(r"^lm_heads\.(\d+)\.", r"\1.1.", re.sub(r"^blocks\.(\d+)\.layers\.0\.", r"\1.0.linear.", name)): tensor
        for name, tensor in load_file(toy_pair.heads["medusa"] / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config | {"medusa_num_heads": config.pop("num_heads")}))
    assert_drafts_alike(replace(toy_pair, heads={"medusa": tmp_path}), "medusa")


def assert_drafts_alike(pair: PairFiles, method: str, in_vllm: PairFiles | None = None) -> None:
    """Native and vLLM emit the same number of tokens in each round. in_vllm: the pair that vLLM gets, if another."""
    emitted: dict[str, list[list[int]]] = {}
    for name, given in (("native", pair), ("vllm", in_vllm or pair)):
        with registry()[name](given) as opened:
            found = [
                opened.generate(cell(name, method), [prompt], max_new_tokens=33, seeds=[0])[0] for prompt in PROMPTS
            ]
        emitted[name] = [[entry.emitted for entry in each.rounds] for each in found]
    assert emitted["vllm"] == emitted["native"]
    assert max(map(max, emitted["native"])) > 1, "nothing was accepted"


@pytest.mark.vllm
@needs_vllm
def test_a_killed_vllm_fails_its_cell_and_the_next_one_runs(toy_pair: PairFiles) -> None:
    import psutil

    options = {"vllm": {"eager": True, "multiprocessing": True}}
    before = set(psutil.Process().children(recursive=True))
    with registry()["vllm"](replace(toy_pair, engine_options=options)) as engine:
        requested = cell("vllm", "autoregressive")
        engine.generate(requested, [PROMPTS[0]], max_new_tokens=4, seeds=[0])
        cores = engine._baseline.processes.all  # type: ignore[attr-defined]
        assert cores

        def kill() -> None:
            time.sleep(0.3)
            for child in cores:
                child.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(EngineError, match=r"vLLM failed while it decoded: its process .* was killed by SIGKILL"):
            for _ in range(200):
                engine.generate(requested, [PROMPTS[0]], max_new_tokens=400, seeds=[0])
        killer.join()
        (found,) = engine.generate(requested, [PROMPTS[0]], max_new_tokens=4, seeds=[0])
        assert len(found.tokens) == 4
    left = {child for child in psutil.Process().children(recursive=True) if child.is_running()} - before
    assert not [child for child in left if "resource_tracker" not in " ".join(child.cmdline())]
