"""Trained parts are kept by what makes them: taken by another study, made again where they are damaged, cleaned where no
study has them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from specrig import cli
from specrig.dag.trained import TrainedParts
from specrig.measurement.quarantine import damaged_files, write_hashes
from specrig.study.load import load_study
from specrig.study.study import Study
from specrig.training.stages import TEXT

EMBEDDED = Path("models/embedded")


def study_of(name: str, **changes: Any) -> Study:
    """The test study under another name, with a corpus; changes: of its training."""
    content = yaml.safe_load(Path("configs/test.yaml").read_text())
    content |= {"study": name, "training": content["training"] | changes}
    Path(f"configs/{name}.yaml").write_text(yaml.safe_dump(content))
    study = load_study(Path(f"configs/{name}.yaml"))
    for part in ("train", "heldout"):
        file = study.root / f"corpus/{part}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(part)
    return study


def model(study: Study, name: str = "draft", weights: bytes = b"weights") -> Path:
    """A finished model folder."""
    folder = study.root / EMBEDDED / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    write_hashes(folder)
    return folder


@pytest.fixture
def kept(workplace: Path) -> tuple[TrainedParts, Path]:
    """The parts with the draft of the study `one` under the key `k`, and the place of the draft in the study `two`."""
    one, two = study_of("one"), study_of("two")
    parts = TrainedParts(one)
    parts.keep("k", model(one), "draft", "embedded")
    return parts, two.root / EMBEDDED / "draft"


def test_a_part_is_taken_as_a_copy_of_its_own(
    kept: tuple[TrainedParts, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    parts, draft = kept
    assert not parts.take("other", draft) and not draft.exists()
    assert parts.take("k", draft)
    assert {path.name for path in draft.iterdir()} == {"SHA256SUMS", "config.json", "model.safetensors"}
    assert not damaged_files(draft)
    assert f"{draft} is taken from results/.trained/k, made by one/embedded" in capsys.readouterr().err
    (draft / "model.safetensors").write_bytes(b"flipped")
    assert (parts.folder / "k/model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("damage", ["flipped", "missing", "unlisted", "no hashes", "hashes of bytes"])
def test_a_damaged_part_is_removed_and_made_again(
    damage: str, kept: tuple[TrainedParts, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    parts, draft = kept
    weights, sums = parts.folder / "k/model.safetensors", parts.folder / "k/SHA256SUMS"
    if damage == "flipped":
        weights.write_bytes(b"Weights")
    elif damage == "missing":
        weights.unlink()
    elif damage == "unlisted":
        sums.write_text(sums.read_text().splitlines()[0] + "\n")
    elif damage == "no hashes":
        sums.unlink()
    else:
        sums.write_bytes(b"\xff\xfe")
    assert not parts.take("k", draft) and not draft.exists() and not list(draft.parent.glob(".*"))
    assert "results/.trained/k is damaged and removed (" in capsys.readouterr().err
    assert not (parts.folder / "k").exists()
    parts.keep("k", model(parts.study, "again"), "draft", "embedded")
    assert parts.take("k", draft)


def test_the_text_of_a_target_is_a_part_too(workplace: Path) -> None:
    one, two = study_of("one"), study_of("two")
    text, other = one.root / EMBEDDED / TEXT, two.root / EMBEDDED / TEXT
    text.parent.mkdir(parents=True)
    text.write_bytes(b"text")
    write_hashes(text.parent, [TEXT])
    TrainedParts(one).keep("t", text, "text", "embedded")
    assert TrainedParts(two).take("t", other) and other.read_bytes() == b"text"
    assert {path.name for path in other.parent.iterdir()} == {TEXT, "SHA256SUMS"} and not damaged_files(other.parent)
    assert TrainedParts(one).parts()[0].needed_by == ("one", "two")


def test_what_makes_a_part_decides_its_key(workplace: Path) -> None:
    one, text = study_of("one"), Path("text.safetensors")
    text.write_bytes(b"text")

    def key(study: Study, name: str = "draft", device: str = "cpu") -> str:
        return TrainedParts(study).key(name, device, [text])

    draft = key(one)
    assert key(study_of("two")) == draft, "not the study's name"
    assert key(study_of("three", medusa={"steps": 3})) == draft, "no key of another part"
    assert key(study_of("four", seed=1)) != draft and key(one, device="cuda") != draft and key(one, "medusa") != draft
    assert key(study_of("five", draft_training={"steps": 31})) != draft
    text.write_bytes(b"Text")
    assert key(one) != draft
    text.write_bytes(b"text")
    (one.root / "corpus/train.jsonl").write_text("another")
    assert key(one) != draft


def test_what_a_text_was_written_from_decides_its_key(workplace: Path) -> None:
    target = Path("target")
    target.mkdir()
    requests = Path("requests.jsonl")
    requests.write_text('{"prompt": "a"}\n')

    def key(name: str, **changes: Any) -> str | None:
        return TrainedParts(study_of(name, **changes)).text_key("cpu", target)

    assert key("plain") and key("plain2") == key("plain")
    assert key("hub", prompts=[{"source": "owner/name"}]) is None
    shards = Path("shards")
    shards.mkdir()
    (shards / "manifest.json").write_text("{}")
    first = key("shards", text={"shards": "shards"})
    assert first and first != key("plain") and first == key("shards2", text={"shards": "shards"})
    (shards / "train-00000.jsonl").write_text("{}\n")
    assert key("shards", text={"shards": "shards"}) not in (None, first)
    own = key("file", prompts="requests.jsonl")
    requests.write_text('{"prompt": "b"}\n')
    assert own and key("file", prompts="requests.jsonl") != own


def test_where_shows_parts_and_clean_removes_what_no_study_has(
    kept: tuple[TrainedParts, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    parts, draft = kept
    parts.take("k", draft)
    parts.keep("old", model(parts.study, "eagle", b"old"), "eagle", "embedded")
    shutil.rmtree(parts.study.root / EMBEDDED / "eagle")

    def said(verb: str) -> Any:
        capsys.readouterr()
        assert cli.main([verb, "configs/one.yaml", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert [(part["part"], part["needed_by"]) for part in said("where")["trained_parts"]] == [
        ("draft", ["one", "two"]),
        ("eagle", []),
    ]
    assert cli.main(["where", "configs/one.yaml"]) == 0
    assert "one, two" in capsys.readouterr().out
    assert [part["path"] for part in said("clean")["removed"]] == ["results/.trained/old"]
    assert [path.name for path in parts.folder.iterdir()] == ["k"] and said("clean") == {"removed": []}
    shutil.rmtree(Path("results/two"))
    shutil.rmtree(Path("results/one"))
    assert cli.main(["clean", "configs/one.yaml"]) == 0
    assert "results/.trained/k" in capsys.readouterr().out and not list(parts.folder.iterdir())


def test_a_results_folder_that_keeps_nothing_is_no_error(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = TrainedParts(study_of("one"))
    parts.folder.parent.mkdir(exist_ok=True)
    parts.folder.write_text("a file where the folder would be")
    parts.keep("k", model(parts.study), "draft", "embedded")
    assert "is not kept for other studies" in capsys.readouterr().err
