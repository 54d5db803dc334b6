"""Chat templates: rendered as transformers renders them, with a clock that stands still, once for a study; what a
template refuses or drops is said when the study is planned.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from runs import own_study
from specrig import cli
from specrig.dag.rules import Rules
from specrig.measurement.records import read_records
from specrig.measurement.runner import measure
from specrig.measurement.task_prompts import prepared
from specrig.models import hub
from specrig.models.chat_template import CLOCK, ChatTemplate, ChatTemplateError, at_hand, of_tokenizer, prompt_ids
from specrig.models.pair import ModelError
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.tasks import PromptError

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "smollm2": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are SmolLM.<|im_end|>\n' }}{% endif %}"
    + CHATML,
    "llama3": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|im_start|>system\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" + system_message + "<|im_end|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|im_start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}
""",
    "gemma": """{{ bos_token }}
{%- for message in messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
""",
    "qwen3": """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "blocks": """
  {% macro turn(m) %}
    {{ m.role }}: {{ m | tojson(indent=1) }}
  {% endmacro %}
  {% for m in messages %}
    {% if m.role == 'assistant' %}
      {% generation %}{{ m.content }}{% endgeneration %}
      {% continue %}
    {% endif %}
    {{ turn(m) }}
  {% endfor %}
""",
}
CONVERSATIONS = [
    [{"role": "user", "content": "  Say \"hi\" & 'bye' <b>\n\nNäh 雪 🙂 "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
    [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "<think>x</think>\nTwo"},
        {"role": "user", "content": "Three"},
    ],
]


def tokenizer(template: str | None = None, *, adds: str = "", behind: str = "", **named: str) -> Any:
    """A tokenizer of bytes and `SPECIAL`. adds, behind: tokens that it puts around every text."""
    from transformers import PreTrainedTokenizerFast

    alphabet = {sign: number for number, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    around = [*adds.split(), "$A", *behind.split()]
    ids = [(token, made.token_to_id(token)) for token in around if token != "$A"]
    if ids:
        made.post_processor = processors.TemplateProcessing(single=" ".join(around), special_tokens=ids)
    found = PreTrainedTokenizerFast(tokenizer_object=made, **({"bos_token": "<s>", "eos_token": "</s>"} | named))
    found.chat_template = template
    return found


def template(text: str, **named: str) -> ChatTemplate:
    return ChatTemplate("mine", text, {"bos_token": "<s>"} | named, str)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("adds", ["", "<s>"])
def test_a_template_gives_what_transformers_gives(name: str, adds: str, tmp_path: Path) -> None:
    theirs = tokenizer(TEMPLATES[name], adds=adds)
    theirs.save_pretrained(tmp_path)
    compared = 0
    for given in ({}, {"enable_thinking": False, "date_string": "1 May 2026"}):
        for messages in CONVERSATIONS:
            if name == "gemma" and messages[0]["role"] == "system":
                continue
            form = {"add_generation_prompt": True, **given}
            expected = theirs.apply_chat_template(messages, tokenize=False, **form)
            ids = theirs.apply_chat_template(messages, return_dict=False, **form)
            for ours in (of_tokenizer(theirs, "mine"), at_hand(str(tmp_path))):
                assert ours is not None
                text = ours.render(messages, given)
                added = adds if expected.startswith("<s>") else ""
                assert added + text == expected
                # One first token where the tokenizer adds it, also where the template does not write it.
                assert prompt_ids(theirs, text) == ([256] if adds and not added else []) + ids
                compared += 1
    assert compared >= 8


def test_the_clock_stands_still_and_is_the_studys() -> None:
    clock = template("{{ strftime_now('%d %b %Y %H:%M:%S') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    asked = [{"role": "user", "content": "hi"}]
    assert clock.render(asked) == "01 Jan 2026 00:00:00hi" == clock.render(asked, clock=CLOCK)
    assert clock.render(asked, clock=datetime(2027, 3, 4, 5, 6)) == "04 Mar 2027 05:06:00hi"


@pytest.mark.parametrize("front", ["", "{{ bos_token }}", "\n {{ bos_token }}"])
@pytest.mark.parametrize("adds", ["", "<s>"])
def test_the_first_token_stands_there_once(front: str, adds: str) -> None:
    made = tokenizer(front + CHATML, adds=adds)
    ids = prompt_ids(made, of_tokenizer(made, "m").render([{"role": "user", "content": "hi"}]))
    assert ids.count(256) == int(bool(front or adds)) and (ids[0] == 256 or not adds)


def test_tokens_around_a_text() -> None:
    asked = [{"role": "user", "content": "hi"}]
    both = tokenizer("<|im_start|><|im_end|>{{ messages[0].content }}", adds="<|im_start|> <|im_end|>", behind="</s>")
    assert prompt_ids(both, "hi") == [258, 259, 71, 72], "an end of sequence would stand before the answer"
    assert prompt_ids(both, of_tokenizer(both, "m").render(asked)) == [258, 259, 71, 72], "both tokens in front, once"
    for made in (tokenizer("{{ bos_token * 2 }}{{ messages[0].content }}"), tokenizer("<s><s>{{ messages[0].content }}", adds="<s>")):  # fmt: skip
        with pytest.raises(ChatTemplateError, match="writes <s> twice in front: correct"):
            of_tokenizer(made, "m").render(asked)

    def fails(text: str, **_: object) -> dict[str, list[int]]:
        raise Exception("WordLevel error: Missing [UNK] token from the vocabulary")

    with pytest.raises(ModelError, match=r"the tokenizer cannot encode 'hi' \(WordLevel error: Missing"):
        prompt_ids(fails, "hi")


SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{{ raise_exception('System role not supported') }}", r"refuses these messages \(System role not supported\): leave the system turn out, or"),
        ("{% for m in messages %}{{ m.content }", r"is no Jinja template \(line 1: unexpected '}'\)"),
        ("{{ messages[1].content }}", "drops the system turn: leave the system turn out, or correct"),
        ("{{ messages[0].content }}", "does not hold a user's text as it stands: neither as a text nor as a list of"),
        ("{{ messages }}{{ persona + name }}", r"needs what it is not given \('name' is undefined\): give it in `template_args`, from which it reads name, persona"),
        ("{{ messages[1].content | upper }}{{ messages }}{{ 1 // 0 }}", r"fails \(ZeroDivisionError"),
        ("{{ messages.__class__.__mro__ }}", r"fails \(SecurityError: access to attribute '__class__'"),
        ("{% include 'other' %}", r"fails \(TypeError|fails \(TemplateNotFound"),
    ],
)  # fmt: skip
def test_a_refusal_is_said_in_the_templates_own_words(text: str, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=f"the chat template of mine {says}"):
        template(text, persona="x").render(SYSTEM) if "persona" not in text else template(text).render(
            SYSTEM, {"persona": "x"}
        )


def test_a_template_may_want_parts_and_may_escape_but_not_drop() -> None:
    parts = template("{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}")
    assert parts.render(SYSTEM) == "[Be brief.][hi]"
    cut = template("{% for m in messages %}[{{ m.content[:5] }}]{% endfor %}")
    with pytest.raises(ChatTemplateError, match="does not hold a user's text as it stands"):
        cut.render(SYSTEM[-1:])  # a list of parts, cut, is still the list, written as Python writes it
    asked = [{"role": "user", "content": '"Say"\n\t1 + 1 = 2'}]
    assert template("{{ messages[0].content | tojson }}").render(asked) == '"\\"Say\\"\\n\\t1 + 1 = 2"'
    short = template("{{ messages[0].content[:12] }}")
    with pytest.raises(ChatTemplateError, match="does not hold a user's text"):
        short.render([{"role": "user", "content": "a text that is longer than this template writes"}])
    assert parts.variables() == set()
    assert template("{{ messages, enable_thinking, bos_token, tools, raise_exception }}").variables() == {
        "enable_thinking",
        "tools",
    }


def test_several_templates_by_name(tmp_path: Path) -> None:
    made = tokenizer()
    made.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())

    def read(entry: object) -> ChatTemplate | None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": entry}))
        return at_hand(str(tmp_path))

    named = [{"name": "rag", "template": "x"}, {"name": "default", "template": CHATML}]
    assert (found := read(named)) and found.text == CHATML
    assert of_tokenizer(hub.tokenizer(str(tmp_path)), "m").text == CHATML
    for entry, says in ((named[:1], "has chat templates for rag and no default"), (7, "is no text")):
        with pytest.raises(ChatTemplateError, match=says):
            read(entry)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: not valid JSON"):
        at_hand(str(tmp_path))
    assert at_hand("owner/model-that-no-one-has") is None, "the hub is not asked"


# A study


@pytest.fixture
def study(workplace: Path) -> Callable[..., Path]:
    """study(template, row, keys): the config of a study with a chat task on a tiny target of random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=256, initializer_range=0.4, bos_token_id=256, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained("target")

    def made(text: str, row: dict[str, str] | None = None, prompts: tuple[str, ...] = ("one two", "three"), **keys: Any) -> Path:  # fmt: skip
        tokenizer(text, adds="<s>").save_pretrained("target")
        settings: dict[str, Any] = {"methods": [{"method": "ngram", "k": 3}], "max_new_tokens": 8}
        file = own_study("mine", "pair\ttarget\ntiny\ttarget\n", prompts, **(settings | keys))
        columns = {"task": "own", "source": "prompts.jsonl", "chat": "yes"} | (row or {})
        Path("configs/tasks.tsv").write_text("\t".join(columns) + "\n" + "\t".join(columns.values()) + "\n")
        return file

    return made


CLOCKED = "{{ bos_token }}<|im_start|>{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}{% if not quick %} think{% endif %}<|im_end|>" + CHATML  # fmt: skip


def texts(file: Path, task: str = "own") -> list[str]:
    loaded = load_study(file)
    return [each.text for each in prepared(loaded, task, loaded.paths.pair_files("tiny", loaded.root), loaded.root)]


def test_prompts_are_rendered_once_and_again_for_what_decides_them(study: Callable[..., Path]) -> None:
    file = study(CLOCKED)
    first = texts(file)
    assert first[0] == "<|im_start|>01 Jan 2026 00:00:00.000000 think<|im_end|><|im_start|>user\none two<|im_end|>\n<|im_start|>assistant\n"  # fmt: skip
    stored = Path("results/mine/prompts/tiny/own.json")
    content = json.loads(stored.read_text())
    assert content["clock"] == "2026-01-01T00:00:00"
    assert [each["text"] for each in content["prompts"]] == first
    content["prompts"][0]["text"] = "as stored"
    stored.write_text(json.dumps(content))
    assert texts(file) == ["as stored", first[1]], "later stages read what is stored"
    for damaged in ("half", "[]", '{"decides": "else"}'):
        stored.write_text(damaged)
        assert texts(file) == first
    later = texts(study(CLOCKED, clock="2027-05-06"))
    assert "06 May 2027 00:00:00" in later[0]
    assert "think" not in texts(study(CLOCKED, {"template_args": '{"quick": true}'}))[0]
    assert texts(study(CLOCKED, {"system": "Be\\nbrief."}))[0].count("system\nBe\nbrief.") == 1
    assert texts(study(CHATML))[0] == "<|im_start|>user\none two<|im_end|>\n<|im_start|>assistant\n"
    assert texts(study(CHATML, prompts=("else",)))[0] == "<|im_start|>user\nelse<|im_end|>\n<|im_start|>assistant\n"


def test_the_audit_sees_the_prompts_that_were_measured(study: Callable[..., Path]) -> None:
    """With a template that writes the microsecond, in a stage of its own."""
    file = study(CLOCKED)
    loaded = load_study(file)
    measuring: Any = SimpleNamespace(engine="native", pair="tiny", process="together")
    assert "target/chat_template.jinja" in Rules(loaded, cores=1, gpus=0, shared=False).job_models(measuring)
    measure(loaded, "native", "tiny", ["ngram"])
    Path("results/mine/study.json").write_text(loaded.model_dump_json())
    assert cli.main(["stage", "audit", "--study", "results/mine/study.json"]) == 0
    rows = pd.read_csv("results/mine/audit/records.csv")
    assert len(rows) and rows["passed"].all()
    # A prompt and a template that have changed are measured again, and only where they say something else.
    records = Path("results/mine/records/native/tiny/ngram/own-k3-t0-b1.jsonl")
    before = records.read_bytes()
    Path("target/chat_template.jinja").write_text("{# a remark #}" + CLOCKED)
    measure(load_study(file), "native", "tiny", ["ngram"])
    assert records.read_bytes() == before
    Path("target/chat_template.jinja").write_text(CHATML)
    measure(load_study(file), "native", "tiny", ["ngram"])
    assert [each.prompt_tokens for each in read_records(records)] == [
        len(prompt_ids(hub.tokenizer("target"), text)) for text in texts(file)
    ]


ALTERNATING = "{% for m in messages %}{% if m.role not in ('user', 'model') %}{{ raise_exception('roles must be user and model') }}{% endif %}{{ m.content }}{% endfor %}"  # fmt: skip


@pytest.mark.parametrize(
    ("text", "row", "says"),
    [
        (ALTERNATING, {"system": "Be brief."}, r"row 'own': pair 'tiny': the chat template of target refuses these messages \(roles must be user and model\)\n    → leave the system turn out, or correct"),
        ("{{ nothing }", {}, r"row 'own': pair 'tiny': .* is no Jinja template \(line 1"),
        ("{{ messages[0].content.text }}", {}, r"row 'own': pair 'tiny': .* does not hold a user's text"),
        (CHATML, {"template_args": '{"enable_thinking": false}'}, r"row 'own', template_args: the chat template of pair 'tiny' does not read enable_thinking\n    → leave it out; it reads none"),
        ("{{ messages }}{{ persona }}", {"template_args": '{"person": 1}'}, r"does not read person\n    → leave it out; it reads persona"),
        (CHATML, {"template_args": "[1]"}, r"template_args: [^→]*→ not a JSON object; write one such as"),
        (CHATML, {"template_args": "{1"}, r"template_args: [^→]*→ not JSON"),
        (CHATML, {"template_args": '{"messages": 1}'}, r"every template is given messages already"),
        (CHATML, {"chat": "", "system": "Be brief."}, r"system is for chat templates: set chat to yes"),
        ("{% for n in range(300) %}x{% endfor %}" + CHATML, {}, r"prompt '0' of task 'own': it has 3\d\d tokens and 8 are to follow"),
    ],
)  # fmt: skip
def test_what_a_template_refuses_is_said_when_planned(study: Callable[..., Path], text: str, row: dict[str, str], says: str) -> None:  # fmt: skip
    with pytest.raises(StudyError, match=says):
        load_study(study(text, row))


def test_later_turns_are_tried_when_planned(study: Callable[..., Path]) -> None:
    Path("chats.jsonl").write_text(json.dumps({"id": "1", "turns": ["one", "two", "three"]}) + "\n")
    row = {"source": "chats.jsonl", "prompt_field": "turns", "turns": "3"}
    assert load_study(study(CHATML, row)).tasks == ["own@turn1", "own@turn2", "own@turn3"]
    with pytest.raises(StudyError, match=r"roles must be user and model\)\n    → ask first turns only"):
        load_study(study(ALTERNATING, row))


def test_a_resolved_study_and_decode_say_the_same(study: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    loaded = load_study(study(CHATML, {"system": "Be brief."}))
    Path("target/chat_template.jinja").write_text(ALTERNATING)
    with pytest.raises(PromptError, match=r"prompt '0' of task 'own': the chat template of target refuses these"):
        prepared(loaded, "own", loaded.paths.pair_files("tiny", loaded.root), loaded.root)
    capsys.readouterr()
    assert cli.main(["decode", "hi", "--target", "target", "--method", "ngram", "--chat", "--system", "brief"]) == 2
    said = capsys.readouterr().err
    assert "roles must be user and model" in said and "report it" not in said


def test_templates_are_tried_without_torch(study: Callable[..., Path]) -> None:
    file = study(CLOCKED)
    code = (
        "import sys; from pathlib import Path; from specrig.study.load import load_study\n"
        f"load_study(Path({str(file)!r}))\n"
        "print([name for name in ('torch', 'transformers', 'pandas') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_default_studys_prompts_are_as_before(default_target: tuple[str, Path]) -> None:
    """The ids that transformers gives, which every publication of the model was measured with."""
    source, folder = default_target
    theirs = hub.tokenizer(str(folder))
    ours, header = of_tokenizer(theirs, source), at_hand(source)
    assert header is not None and header.text == ours.text
    for text in ("def f(x):\n    ", "  Summarize: Näh 雪 🙂\n"):
        messages = [{"role": "user", "content": text}]
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert prompt_ids(theirs, ours.render(messages)) == expected
        assert header.render(messages) == ours.render(messages)
