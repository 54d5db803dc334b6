"""The report and the figures of a synthetic study: whole, self-contained, honest about what is missing."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Text as FigureText
from synthetic import write_study
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from specrig.decoding import drafters
from specrig.measurement.recording import text_ends
from specrig.measurement.records import Rounds, Run
from specrig.report import labels
from specrig.report.advice import _megabytes, advised
from specrig.report.conclusions import findings, in_short, repetition_warnings
from specrig.report.documents.contents import contents
from specrig.report.documents.html import write_report
from specrig.report.documents.samples import sample, sources, spans
from specrig.report.figures import style
from specrig.report.figures.curves import learning
from specrig.report.figures.drawings import Drawing, _save, drawings, file_names, write_figures
from specrig.report.figures.panels import SCREEN, NothingError
from specrig.report.figures.style import FAMILIES, method_colour, method_family, method_marker, rc
from specrig.report.first_page import what_to_use
from specrig.report.grid import unbroken
from specrig.report.items import Figure, Section, Text
from specrig.report.machine import differing, environment_rows, machine, parameters
from specrig.report.outline import figures
from specrig.report.prose import certainty
from specrig.report.speed_tables import with_bold
from specrig.report.study_data import MeasuredJob, StudyData, learning_curves, read_study, training_curves
from specrig.report.study_results import StudyResults
from specrig.report.summary import best_rows, in_order, speedup_summary

VOID = {"meta", "br", "link", "img", "hr", "col", "input"}


class Page(HTMLParser):
    """Checks nesting, gathers ids and everything that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.handle_attributes(tag, dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_attributes(tag, dict(attrs))

    def handle_attributes(self, tag: str, values: dict[str, str | None]) -> None:
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if tag in ("img", "link", "iframe", "image") or (tag == "script" and values.get("src")):
            self.fetched.append(str(values.get("src") or values.get("href") or values.get("xlink:href")))
        target = values.get("href") or ""
        if tag == "a" and target.startswith("#"):
            self.anchors.append(target[1:])
        elif tag == "a" and not target.startswith("data:"):
            self.links.append(target)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def study(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic, with everything a report can show: a tokenizer, prompts, weights, curves, an audit, failures."""
    folder = Path(shutil.copytree(drawn, tmp_path_factory.mktemp("report") / "made_up"))
    target = folder / "models" / "tiny" / "target"
    target.mkdir(parents=True)
    byte_tokenizer().save(str(target / "tokenizer.json"))
    write_weights(target / "model.safetensors", {"a": [100, 20], "b": [7]})
    curve = [
        {"step": 1, "seconds": 1.0, "tokens": 10, "loss": 5.0, "lr": 1e-3},
        {"step": 1, "seconds": 1.0, "heldout": {"code": 5.5}},
    ]
    (target / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curve) + '{"step": 2, "sec')
    (folder / "prompts").mkdir()
    (folder / "prompts" / "code.jsonl").write_text(
        json.dumps({"id": "code-0", "prompt": "def <b>f</b>(x):", "reference": ""}) + "\n"
    )
    (folder / "audit").mkdir()
    (folder / "audit" / "records.csv").write_text(
        "engine,pair,method,variant,task,temperature,test,ks,samples,p_value,passed,finding\n"
        "native,tiny,ngram,,code,0.0,token identity,2–4,8,,False,diverges at token 7\n"
    )
    index_path = folder / "records" / "native" / "tiny" / "ngram" / "index.json"
    index = json.loads(index_path.read_text())
    index["failed"]["story-k4-t0-b1"] = "ValueError: <script>alert(1)</script>"
    index_path.write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def data(study: Path) -> StudyData:
    """The study as reports read it."""
    return read_study(study)


@pytest.fixture(scope="module")
def page(study: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    out = write_report(study, tmp_path_factory.mktemp("out") / "sub" / "report.html")
    text = out.read_text(encoding="utf-8")
    return text, Page(text)


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges: every byte is a token, so é is two tokens and 小 three."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([""], trainer)
    return tokenizer


def write_weights(path: Path, shapes: dict[str, list[int]]) -> None:
    header = json.dumps(
        {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_page_is_whole_and_fetches_nothing(page: tuple[str, Page]) -> None:
    text, parsed = page
    assert [address[:40] for address in parsed.fetched if not address.startswith("data:")] == []
    assert len(parsed.ids) == len(set(parsed.ids)), "two elements share an id"
    assert set(parsed.anchors) <= set(parsed.ids)
    assert all(link.startswith("http://127.0.0.1:") or link.endswith(".jsonl") for link in parsed.links), (
        "only to runs and records"
    )
    assert parsed.text.count("which make ui starts") == 1, "beside every cell"
    assert text.count("<svg") >= 6


def test_what_others_wrote_is_escaped(page: tuple[str, Page]) -> None:
    text, parsed = page
    assert "<script>alert" not in text and "<script>alert(1)</script>" in parsed.text
    assert "<b>f</b>" not in text and "def <b>f</b>(x):" in parsed.text


def test_page_tells_what_happened(page: tuple[str, Page], data: StudyData) -> None:
    _, parsed = page
    best = speedup_summary(data.table, data.records, data.tasks, data.audit())
    fair = best[best["lossless"] & ~best["failed"]]
    top = fair.sort_values("geometric_mean").iloc[-1]
    assert (
        f"fastest lossless method is {top['method']} at k = {top['k']}: {top['geometric_mean']:.2f} times"
        in parsed.text
    )
    parts = (
        "fastest lossless method is",
        "Speedup over plain decoding at",
        "Use ",
        "How to read this",
    )
    places = [parsed.text.rindex(part) if part.startswith("How") else parsed.text.index(part) for part in parts]
    assert places == sorted(places), "the answer, its table, what to use; all else follows"
    assert page[0].count("<details") and " open>" not in page[0].split("</nav>")[1]
    for piece in ("diverges at token 7", "synthetic processor", "1 cell failed", "position 1", "000000000000"):
        assert piece in parsed.text


def test_a_speedup_that_failed_the_audit_is_struck_through(page: tuple[str, Page]) -> None:
    text, _ = page
    row = next(part for part in text.split("<tr>") if part.startswith("<td>ngram</td>"))
    assert "<s>" in row


def test_small_target_gets_its_limits(page: tuple[str, Page]) -> None:
    assert "The target of tiny has 0.0 million parameters" in page[1].text


def test_report_without_anything_still_stands(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    (folder / "figures").mkdir(parents=True)
    (folder / "figures/k_sweep-native-gone.svg").touch()  # of a pair that left the study
    (folder / "study.json").write_text(json.dumps({"study": "bare", "tasks": ["code"], "results": "elsewhere"}))
    write_figures(folder, folder / "figures")
    assert files_below(folder / "figures") == set(file_names())
    page = write_report(folder, tmp_path / "report.html").read_text()
    Page(page)
    assert "<code>elsewhere/bare/records</code>" in page


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}


def named_drawings(study: Path) -> dict[str, Drawing]:
    return {drawing.stem: drawing for drawing in drawings(StudyResults(read_study(study)))}


def test_figures_are_all_there_and_reproducible(drawn: Path, tmp_path: Path) -> None:
    assert files_below(drawn / "figures") == set(file_names())
    again = []
    for drawing in named_drawings(drawn).values():
        with plt.rc_context(rc(SCREEN.size)), suppress(NothingError):
            caption = figures()[drawing.name].caption
            again += _save(drawing.draw(SCREEN), tmp_path / drawing.stem, caption, picture=True)
    assert len(again) >= 12
    for path in again:
        assert path.read_bytes() == (drawn / "figures" / path.name).read_bytes(), path.name


def test_other_pairs_get_their_own_figures(tmp_path: Path) -> None:
    methods = ("ngram", "draft_model")
    folder = write_study(tmp_path / "s", methods=methods, ks=(2,), tasks=("code",), pairs=("a", "b"), prompts=2)
    named = named_drawings(folder)
    assert {"ranking", "ranking-native-b", "traffic"} <= named.keys() and "traffic-native-b" not in named
    shutil.rmtree(folder / "records/native/b/ngram")
    assert "ranking-native-b" not in named_drawings(folder), "a pair with one method has nothing to compare"


def test_table_and_advice_of_the_first_page_are_of_the_pair_that_its_ranking_shows(tmp_path: Path) -> None:
    methods = ("ngram", "draft_model")
    folder = write_study(tmp_path / "s", methods=methods, ks=(2,), tasks=("code",), pairs=("a", "b"), prompts=2)
    both = StudyResults(read_study(folder))
    assert "pair a" in both.first_table.caption and len(both.first_table.rows) == 2
    shutil.rmtree(folder / "records/native/a/ngram")  # nothing to rank
    results = StudyResults(read_study(folder))
    assert "pair b" in results.first_table.caption and len(results.first_table.rows) == 2
    of_b = results.advised[results.advised["pair"] == "b"]
    assert results.what_to_use == what_to_use(of_b, results.speedups[results.speedups["pair"] == "b"]) != []


def test_training_curves_pass_over_a_torn_line(study: Path) -> None:
    curves = training_curves(study / "models")
    assert list(curves["kind"]) == ["training", "code"]


def test_learning_curves_have_a_point_an_evaluation(tmp_path: Path) -> None:
    folder = tmp_path / "pair/medusa"
    folder.mkdir(parents=True)
    lines = [
        {"step": 1, "loss": 2.0},
        {"step": 1, "texts": 8, "tau_sim": 1.2},
        {"step": 2, "texts": 16, "tau_sim": 1.3},
    ]
    (folder / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "te')
    curve = learning_curves(tmp_path)
    assert curve.to_dict("list") == {
        "pair": ["pair"] * 2,
        "model": ["medusa"] * 2,
        "texts": [8, 16],
        "tau_sim": [1.2, 1.3],
    }
    figure = learning(curve, StudyData(tmp_path, {}, []).learning_points, SCREEN)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels[0] == "medusa, expected on held-out text" and "others" in labels[1]


def test_a_name_says_only_what_differs_between_a_methods_variants() -> None:
    tree, chain, blended = "draft_k4-draft_nodesauto", "passes2", "blendTrue-draft_k4-draft_nodesauto"
    assert labels.short_names([("suffix_p_eagle", blended)]) == {("suffix_p_eagle", blended): "suffix_p_eagle"}
    names = labels.short_names(
        [("suffix_p_eagle", tree), ("suffix_p_eagle", blended), ("p_eagle", ""), ("p_eagle", chain)]
    )
    assert [*names.values()] == ["suffix_p_eagle", "suffix_p_eagle blend", "p_eagle", "p_eagle passes 2"]


def test_a_label_of_the_study_names_a_method_in_tables_and_figures(
    tmp_path: Path, report_text: Callable[[Path], str]
) -> None:
    folder = write_study(tmp_path / "s", methods=("ngram", "draft_model"), ks=(2,), tasks=("code",))
    config = json.loads((folder / "study.json").read_text())
    config["methods"] = [{"method": "ngram", "label": "n-gram, ours"}, {"method": "draft_model"}]
    (folder / "study.json").write_text(json.dumps(config))
    assert report_text(folder).count("<td>n-gram, ours</td>") >= 3
    for name in ("ranking", "heatmap"):
        figure = named_drawings(folder)[name].draw(SCREEN)
        plt.close(figure)
        assert any("n-gram, ours" in text.get_text() for text in figure.findobj(FigureText)), name
    results = StudyResults(read_study(folder))
    assert any("n-gram, ours" in row[0].text for row in results.first_table.rows)


def test_methods_are_told_apart() -> None:
    looks = [(method_colour(method), method_marker(method)) for method in labels.listed()]
    assert len(looks) == len(set(looks))
    assert {method_family(method) for method in labels.listed()} <= set(FAMILIES)
    assert len({method_colour(method) for method in ("eagle", "medusa", "ngram", "draft_model")}) == 4
    assert method_colour("mine") == method_colour("mine")


def test_styles_follow_the_registered_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, no other, each once; one more gets a look of its own and comes last, without a word in `labels`."""
    assert sorted(labels.listed()) == sorted(drafters.registry())
    looks = {(method_colour(method), method_marker(method)) for method in labels.listed()}
    monkeypatch.setattr(style, "methods", lambda: {"another": drafters.registry()["ngram"], **drafters.registry()})
    monkeypatch.setattr(labels, "methods", lambda: {"another": drafters.registry()["ngram"], **drafters.registry()})
    assert labels.listed()[-1] == "another"
    assert (method_colour("another"), method_marker("another")) not in looks
    assert labels.method_order(["unknown", "another", "eagle"]) == ["eagle", "another", "unknown"]


def run_of(tokens: list[int], accepted: list[int], emitted: list[int]) -> Run:
    rounds = Rounds(drafted=accepted, depth=accepted, accepted=accepted, emitted=emitted)
    return Run(tokens=tokens, stop="length", rounds=rounds, ttft_s=0.1, prefill_s=0.1, decode_s=1.0)


def test_sources_of_tokens() -> None:
    found = sources(run_of([0] * 6, [2, 0, 1], [3, 1, 1]))
    assert [source for source, _ in found] == ["target", "draft", "draft", "target", "target", "draft"]
    assert [number for _, number in found] == [0, 1, 1, 1, 2, 3]
    with pytest.raises(ValueError, match="2 tokens of 3"):
        sources(run_of([0] * 3, [0], [1]))


def test_characters_spread_over_tokens_go_to_the_token_that_completes_them() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("a小b").ids
    assert len(ids) == 5
    # A | 1st byte drafted, 2nd the target's | 3rd byte and b drafted.
    coloured = spans(run_of(ids, [1, 2], [2, 2]), "a小b", text_ends(ids, decode))
    assert [(span.text, span.source, span.round) for span in coloured] == [("a", "target", 0), ("小b", "draft", 2)]


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=24), st.integers(0, 5))
def test_spans_join_to_the_whole_even_for_broken_bytes(data: bytes, depth: int) -> None:
    tokenizer = TOKENIZER
    alphabet = {index: token for token, index in tokenizer.get_vocab().items()}
    ids = [index for byte in data for index in [byte % len(alphabet)]]
    accepted, left = [], len(ids) - 1
    while left:
        accepted.append(min(depth, left - 1))
        left -= accepted[-1] + 1
    text = decode(ids)
    coloured = spans(run_of(ids, accepted, [taken + 1 for taken in accepted]), text, text_ends(ids, decode))
    assert "".join(span.text for span in coloured) == text


TOKENIZER = byte_tokenizer()


def decode(ids: Sequence[int]) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=False)


def test_environment_says_what_differs() -> None:
    def job(method: str, **environment: Any) -> MeasuredJob:
        return MeasuredJob(
            "native", "p", method, {}, environment={"captured": method, "packages": {"torch": "1"}, **environment}
        )

    jobs = [job("a", cpu={"model": "x", "load_1min": 1}), job("b", cpu={"model": "y", "load_1min": 2})]
    assert differing(jobs) == ["cpu.model"]
    assert dict(environment_rows(jobs))["packages.torch"] == [("1", [])]
    assert machine({}) == ""
    assert "GPU Z" in machine({"gpus": [{"name": "GPU Z"}], "cpu": {"model": "x"}})
    assert machine({"cpu": {"model": "CPU X", "generation": "family 1, model 2"}}) == "CPU X (family 1, model 2)"


def test_parameters_from_headers(tmp_path: Path) -> None:
    assert parameters(tmp_path) is None
    write_weights(tmp_path / "model.safetensors", {"a": [3, 4], "b": [5]})
    assert parameters(tmp_path) == 17
    (tmp_path / "model.safetensors").write_bytes(b"\x01")
    assert parameters(tmp_path) is None


def test_samples_need_no_tokenizer_where_the_record_says_what_its_tokens_made(study: Path, tmp_path: Path) -> None:
    record = read_study(study).records[0]
    length = len(record.run.tokens)
    known = record.model_copy(update={"text": "ab" * length, "ends": [2 * (number + 1) for number in range(length)]})
    coloured = sample(known, tmp_path, {}).spans
    assert coloured is not None and "".join(span.text for span in coloured) == known.text
    drafted = sum(len(span.text) for span in coloured if span.source == "draft") / 2
    rounds = record.run.rounds
    assert drafted == sum(map(min, rounds.accepted, rounds.emitted)) > 0
    assert sample(record, tmp_path, {}).spans is None, "no tokenizer there, and an old record"


def test_advice_is_the_fastest_method_that_may_be_advised(tmp_path: Path) -> None:
    found = read_study(
        write_study(tmp_path / "s", methods=("ngram", "draft_model", "eagle"), ks=(2, 4), tasks=("code",))
    )
    results = StudyResults(found)
    [best] = results.advised.to_dict("records")
    cells = results.cells
    judged = cells.groupby("method")["speedup"].max()
    assert (best["method"], best["speedup"]) == (judged.idxmax(), judged.max())
    for barred in ({"lossless": cells["method"] != best["method"]}, {"failed": cells["method"] == best["method"]}):
        [other] = advised(found, cells.assign(**barred)).to_dict("records")
        assert other["method"] == judged.drop(best["method"]).idxmax()
    assert advised(found, cells.assign(lossless=False)).empty


def test_a_method_of_several_k_stands_once_beside_the_best(tmp_path: Path) -> None:
    found = read_study(write_study(tmp_path / "s", methods=("ngram", "draft_model"), ks=(2, 4), tasks=("code",)))
    results = StudyResults(found)
    cells = results.cells.assign(speedup_low=0.1, speedup_high=9.0)
    [best] = advised(found, cells).to_dict("records")
    other = {"ngram", "draft_model"} - {best["method"]}
    assert best["rivals"] == [*other]


def test_one_method_gets_no_figure_that_compares(tmp_path: Path) -> None:
    named = named_drawings(write_study(tmp_path / "s", methods=("ngram",), ks=(2,), tasks=("code",), prompts=2))
    with pytest.raises(NothingError):
        named["ranking"].draw(SCREEN)
    plt.close(named["emitted_lengths"].draw(SCREEN))


def test_text_about_a_figure_without_data_is_hidden(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, figure = Text("A batch reads the weights once."), Figure("batching", "Throughput against batch size.")
    outline = (Section("drawn", "Drawn", (text, figure)), Section("told", "Told", (text,)))
    monkeypatch.setattr("specrig.report.documents.contents.OUTLINE", outline)
    results = StudyResults(read_study(study))
    shown, hidden = (
        [section.section.name for section in contents(results, "html", drawn).sections] for drawn in (["batching"], [])
    )
    assert shown == ["drawn", "told"] and hidden == ["told"]


def test_conclusion_does_not_claim_what_the_interval_denies(data: StudyData) -> None:
    summary = speedup_summary(data.table, data.records, data.tasks)
    best = best_rows(data.table)
    mean = ["geometric_mean", "geometric_mean_low", "geometric_mean_high"]
    summary.loc[:, mean] = [1.02, 0.97, 1.07]
    assert "show no certain gain" in findings(summary, best, data.tasks)[0].paragraph
    summary.loc[:, mean] = [0.9, 0.85, 0.95]
    assert "slower than plain decoding" in findings(summary, best, data.tasks)[0].paragraph
    summary["lossless"] = False
    assert "No lossless" in findings(summary, best, data.tasks)[0].paragraph


def test_means_over_fewer_tasks_win_nothing(data: StudyData) -> None:
    summary = speedup_summary(data.table, data.records, data.tasks)
    fastest = summary["geometric_mean"].idxmax()
    others = summary.drop(index=fastest)
    second = others.loc[others["geometric_mean"].idxmax()]
    assert f"is {summary.loc[fastest, 'method']} at" in findings(summary, best_rows(data.table), data.tasks)[0].answer
    assert with_bold(summary, ["geometric_mean", "code"]).loc[fastest, "geometric_mean_bold"]
    summary.loc[fastest, "tasks"] -= 1
    assert f"is {second['method']} at" in findings(summary, best_rows(data.table), data.tasks)[0].answer
    signs = with_bold(summary, ["geometric_mean", "code"])
    assert not signs.loc[fastest, "geometric_mean_bold"] and signs.loc[second.name, "geometric_mean_bold"]
    assert in_order(summary)["method"].iloc[-1] == summary.loc[fastest, "method"]
    summary.loc[fastest, ["tasks", "lossless"]] = [9, False]
    signs = with_bold(summary, ["geometric_mean"])
    assert signs.loc[second.name, "geometric_mean_bold"], "a lossy method on more tasks takes nothing from others"


def test_the_answer_in_short_is_that_of_the_report(data: StudyData) -> None:
    summary = speedup_summary(data.table, data.records, data.tasks)
    [answer] = findings(summary, best_rows(data.table), data.tasks)
    line, overlapping = in_short(summary)
    for piece in re.findall(r"k = \d+|[\d.]+ times the speed|over \d+ tasks|\[.*\] at 95 %", answer.answer):
        assert piece in line
    assert line.count("k = ") == line.count(" times") == line.count(" at 95 %") == 1
    assert overlapping in answer.answer
    assert in_short(summary.assign(lossless=False)) == []


def test_who_cannot_be_told_from_the_fastest_is_named_with_it(data: StudyData) -> None:
    summary = in_order(speedup_summary(data.table, data.records, data.tasks))
    summary = summary[~summary["method"].isin(["autoregressive", "naive_batching"])].head(3).copy()
    summary["lossless"], summary["failed"], summary["geometric_mean"] = True, False, [1.6, 1.5, 1.2]
    summary["geometric_mean_low"], summary["geometric_mean_high"] = [1.5, 1.4, 1.1], [1.7, 1.6, 1.3]
    second = summary.iloc[1]

    def said(summary: pd.DataFrame) -> str:
        return findings(summary, best_rows(data.table), data.tasks)[0].answer

    assert said(summary).endswith(f"Not certainly slower, since the intervals overlap: {labels.named(second)} (1.50).")
    assert in_short(summary)[1:] == [
        f"Not certainly slower, since the intervals overlap: {labels.named(second)} (1.50)."
    ]
    apart = summary.assign(geometric_mean_high=[1.7, 1.49, 1.3])
    assert "Not certainly slower" not in said(apart) and len(in_short(apart)) == 1
    slow = summary.assign(geometric_mean=summary["geometric_mean"] / 2)
    assert "Not certainly slower" not in said(slow), "among methods that gain nothing none is named"


def test_the_head_says_where_timing_did_not_settle() -> None:
    assert certainty({}) == ""
    said = certainty({"a": (0, 5), "b": (1, 5), "c": (2, 5)})
    assert said == "Timing did not settle in 3 of 15 prompts; in 1 of 3 cells in more than a third of them."
    assert certainty({"a": (0, 5), "b": (1, 5)}).endswith("in 1 of 10 prompts.")


def test_looping_outputs_are_called_out(data: StudyData) -> None:
    cells = data.table.copy()
    assert repetition_warnings(cells) == []
    cells.loc[cells["task"] == "code", "baseline_repeated_4grams"] = 0.6
    warnings = repetition_warnings(cells)
    assert len(warnings) == 1 and "60 %" in warnings[0] and "code" in warnings[0]


def test_a_number_keeps_its_unit_beside_it(page: tuple[str, Page]) -> None:
    assert unbroken("102 % of 5 MB/s, 3 ms, 4 msec, k %") == "102\u00a0% of 5\u00a0MB/s, 3\u00a0ms, 4 msec, k %"
    assert unbroken("0.27 †") == "0.27\u00a0†"
    assert "95\u00a0%" in page[0]
    assert "95 % interval" not in re.sub(r'aria-label="[^"]*"', "", page[0])


def test_memory_below_the_resolution_is_not_a_saving() -> None:
    assert [_megabytes(size) for size in (-1.2, 0.0, 0.9, 1.0, 1234.4)] == [
        "< 1 MB",
        "< 1 MB",
        "< 1 MB",
        "1 MB",
        "1,234 MB",
    ]
