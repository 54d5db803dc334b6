"""llama.cpp beside the native engine: the same models in its format, the same drafts accepted; quantized files as they
are; killed safely.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from specrig.audit.toy_pair import WIDTH, build
from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines.base import EngineError
from specrig.engines.llamacpp import LlamaCpp
from specrig.engines.native import Native
from specrig.engines.server import Server
from specrig.models.endpoint import Endpoint
from specrig.models.pair import ModelError, PairFiles
from specrig.models.to_gguf import rename_tokens, write_model
from specrig.models.weights import weights_of

pytestmark = pytest.mark.skipif(LlamaCpp.missing() is not None, reason="llama.cpp is not installed")
STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
PROMPT = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2]


def cell(engine: str, method: str, k: int = 4) -> Cell:
    own = {"confidence_threshold": 0.0} if method == "dspark" else {}
    options = methods()[method].Options.model_validate(own).model_dump(mode="json")
    return Cell(engine=engine, pair="p", method=method, k=k, task="t", temperature=0.0, options=options)


@pytest.fixture
def toy_pair(tmp_path: Path) -> PairFiles:
    return build(tmp_path / "toy_pair", ["eagle3", "dflash", "dspark"])


@pytest.mark.parametrize("cut_vocabulary", [False, True])
@pytest.mark.parametrize(
    ("method", "prompt"),
    [("draft_model", PROMPT), ("eagle3", PROMPT), ("dflash", [3, 5, 3, 5, 7, 3, 5]), ("dspark", [3, 5, 3, 5, 7, 3, 5])],
)
def test_the_same_drafts_are_accepted_as_in_the_native_engine(
    toy_pair: PairFiles, method: str, prompt: list[int], cut_vocabulary: bool
) -> None:
    if cut_vocabulary:
        if method != "eagle3":
            pytest.skip("what is cut is an EAGLE-3 head")
        _cut(toy_pair.heads["eagle3"], [0, 1, 3, 4, 6, 7])
    (ours,) = Native(toy_pair).generate(cell("native", method), [prompt], max_new_tokens=60, seeds=[0])
    with LlamaCpp(toy_pair, threads=1) as engine:
        (theirs,) = engine.generate(cell("llamacpp", method), [prompt], max_new_tokens=60, seeds=[0])
    assert theirs.tokens == ours.tokens
    assert theirs.counts is not None and theirs.counts.accepted
    assert theirs.counts.accepted == sum(entry.accepted for entry in ours.rounds)
    assert theirs.counts.rounds == len(ours.rounds)
    assert sum(theirs.counts.per_position or []) == theirs.counts.accepted


def test_a_head_that_never_learnt_the_other_tokens_is_refused(toy_pair: PairFiles) -> None:
    file = Path(toy_pair.heads["dflash"]) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"specrig": {"drafted": [3, 5]}}))
    with LlamaCpp(toy_pair, threads=1) as engine, pytest.raises(EngineError, match="learnt the scores of 2 alone"):
        engine.generate(cell("llamacpp", "dflash"), [PROMPT], max_new_tokens=4, seeds=[0])


def _cut(head: Path, kept: list[int]) -> None:
    """Leave the head only these tokens of the target."""
    tensors = load_file(head / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][kept].clone()
    tensors["d2t"] = torch.tensor(kept) - torch.arange(len(kept))
    save_file(tensors, head / "model.safetensors", metadata={"format": "pt"})
    config = LlamaConfig.from_pretrained(head)
    config.draft_vocab_size = len(kept)
    config.save_pretrained(head)


@pytest.mark.parametrize("kind", ["simple", "map-k", "map-k4v"])
def test_every_ngram_type_keeps_the_output_and_counts(toy_pair: PairFiles, kind: str) -> None:
    pair = replace(toy_pair, engine_options={"llamacpp": {"ngram": kind}})
    (plain,) = Native(pair).generate(cell("native", "autoregressive", 0), [PROMPT], max_new_tokens=200, seeds=[0])
    with LlamaCpp(pair, threads=1) as engine:
        (found,) = engine.generate(cell("llamacpp", "ngram", 3), [PROMPT], max_new_tokens=200, seeds=[0])
    assert found.tokens == plain.tokens
    assert found.counts is not None and found.counts.drafted, "nothing was drafted"
    assert found.counts.drafted <= 3 * found.counts.rounds


@pytest.mark.parametrize(
    ("method", "k", "fields"),
    [("autoregressive", 0, {"logprobs": 1}), ("ngram", 3, {"verbose": True, "return_tokens": True})],
)
def test_its_server_is_one_of_openais_kind_too(
    toy_pair: PairFiles, method: str, k: int, fields: dict[str, object]
) -> None:
    """It names token ids beside probabilities, which tokens that were drafted lack, or in all that it says of an event."""
    with LlamaCpp(toy_pair, threads=1) as engine:
        asked = cell("llamacpp", method, k)
        (truth,) = engine.generate(asked, [PROMPT], max_new_tokens=200, seeds=[0])
        url = engine._server(asked)[1].url
        named = Endpoint(pair="p", method=method, k=k, url=url, fields=fields)
        with Server(replace(toy_pair, servers=(named,))) as server:
            (found,) = server.generate(cell("server", method, k), [PROMPT], max_new_tokens=200, seeds=[0])
    assert found.tokens == truth.tokens and found.stop == "length"
    if method == "ngram":
        assert found.counts == truth.counts and found.counts is not None and found.counts.accepted


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs ../shared/data/stories260K, which is not here")
def test_a_published_model_with_grouped_heads_writes_its_known_text() -> None:
    with LlamaCpp(PairFiles("stories", str(STORIES)), threads=1) as engine:
        (made,) = engine.generate(
            cell("llamacpp", "autoregressive", 0),
            [engine.encode("Once upon a time") or [1]],
            max_new_tokens=40,
            seeds=[0],
        )
        text = engine.decode(made.tokens).strip()
    expected = (STORIES / "expected_greedy.txt").read_text(encoding="utf-8").strip()
    assert text and text in expected


@pytest.fixture
def quantized(toy_pair: PairFiles, tmp_path: Path) -> PairFiles:
    """The toy pair's target as an 8-bit file with a tokenizer of its own, beside the folder that it was spread out
    into.
    """
    model, kind = weights_of(toy_pair).model("target", "cpu"), gguf.GGMLQuantizationType.Q8_0
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.detach().numpy(), kind), kind))
    whole, file, folder = tmp_path / "whole.gguf", tmp_path / "target.gguf", tmp_path / "converted"
    write_model(model, whole, "float32")
    reader, writer = gguf.GGUFReader(whole), gguf.GGUFWriter(file, "llama")
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.", "tokenizer.")):
            writer.add_key_value(name, field.contents(), field.types[0])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list("abcdefgh"))
    for tensor in reader.tensors:
        stored = kind if tensor.data.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quantize(tensor.data, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shutil.copytree(toy_pair.target, folder)
    model.save_pretrained(folder)
    (folder / "source.json").write_text(json.dumps({"source": str(file)}))
    return replace(toy_pair, target=str(folder))


@pytest.mark.parametrize(("weights", "precision"), [("file", "Q8_0"), ("pair", "float32")])
def test_a_quantized_file_runs_as_it_is_or_spread_out(quantized: PairFiles, weights: str, precision: str) -> None:
    pair = replace(quantized, engine_options={"llamacpp": {"weights": weights}})
    (ours,) = Native(pair).generate(cell("native", "autoregressive", 0), [PROMPT], max_new_tokens=12, seeds=[0])
    with LlamaCpp(pair, threads=1) as engine:
        assert engine.environment()["engine"]["precision"] == precision
        (plain,) = engine.generate(cell("llamacpp", "autoregressive", 0), [PROMPT], max_new_tokens=12, seeds=[0])
        (drafted,) = engine.generate(cell("llamacpp", "draft_model"), [PROMPT], max_new_tokens=12, seeds=[0])
    assert plain.tokens == drafted.tokens == ours.tokens
    assert drafted.counts is not None and drafted.counts.drafted


def test_renaming_tokens_keeps_every_weight(quantized: PairFiles, tmp_path: Path) -> None:
    rename_tokens(tmp_path / "target.gguf", tmp_path / "renamed.gguf")
    before, after = (gguf.GGUFReader(tmp_path / name) for name in ("target.gguf", "renamed.gguf"))
    assert [tensor.name for tensor in before.tensors] == [tensor.name for tensor in after.tensors]
    for one, other in zip(before.tensors, after.tensors, strict=True):
        assert one.tensor_type == other.tensor_type and (one.data == other.data).all()
    assert after.fields["tokenizer.ggml.tokens"].contents() == [f"<{index}>" for index in range(8)]


def test_other_architectures_are_refused_with_the_way_out(toy_pair: PairFiles) -> None:
    reason = LlamaCpp.refuses_model("draft_model", {"model_type": "qwen2", "hidden_size": WIDTH})
    assert reason is not None and "'qwen2'" in reason and "GGUF file" in reason
    with pytest.raises(EngineError, match="names no draft"), LlamaCpp(replace(toy_pair, draft=None)) as engine:
        engine.generate(cell("llamacpp", "draft_model"), [PROMPT], max_new_tokens=4, seeds=[0])
    model = weights_of(toy_pair).model("target", "cpu")
    model.config.attention_bias = True
    with pytest.raises(ModelError, match="biases"):
        write_model(model, Path("never.gguf"), "float32")


def test_a_killed_server_fails_its_cell_and_the_next_one_runs(toy_pair: PairFiles) -> None:
    requested = cell("llamacpp", "autoregressive", 0)
    with LlamaCpp(toy_pair, threads=1) as engine:
        (first,) = engine.generate(requested, [PROMPT], max_new_tokens=4, seeds=[0])
        ((server, client),) = engine._servers.values()
        post = client.post

        def killed(path: str, body: object, more_s: float) -> object:
            server.process.kill()
            return post(path, body, more_s=more_s)  # type: ignore[arg-type]

        client.post = killed  # type: ignore[assignment,method-assign]
        with pytest.raises(
            EngineError, match=r"was killed by SIGKILL \(.*\) while it answered for llamacpp/p/autoregressive"
        ):
            engine.generate(requested, [PROMPT], max_new_tokens=200, seeds=[0])
        (again,) = engine.generate(requested, [PROMPT], max_new_tokens=4, seeds=[0])
        folder, processes = (
            Path(engine._folder.name),
            [psutil.Process(entry.process.pid) for entry, _ in engine._servers.values()],
        )
    assert again.tokens == first.tokens
    assert not folder.exists()
    assert not any(process.is_running() for process in processes)


JOB = """
import os, sys
from pathlib import Path
from specrig.audit.toy_pair import build
from specrig.cell import Cell
from specrig.engines.llamacpp import LlamaCpp

engine = LlamaCpp(build(Path(sys.argv[1])), threads=1)
cell = Cell(engine="llamacpp", pair="p", method="autoregressive", k=0, task="t", temperature=0.0)
engine.generate(cell, [[1, 2, 3]], max_new_tokens=4, seeds=[0])
Path(sys.argv[2]).write_text(" ".join(str(server.process.pid) for server, _ in engine._servers.values()))
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent is gone")
def test_a_killed_job_leaves_no_server_behind(tmp_path: Path) -> None:
    started = tmp_path / "started"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-c", JOB, str(tmp_path / "toy_pair"), str(started)], check=False, **quiet)
    orphans = [psutil.Process(int(pid)) for pid in started.read_text().split() if psutil.pid_exists(int(pid))]
    _, alive = psutil.wait_procs(orphans, timeout=60)
    for process in alive:
        process.kill()
    assert not alive
