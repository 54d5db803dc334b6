"""Chat templates, rendered as transformers renders them, and the token ids of a prompt: the one place for studies,
`decode`, training and services.

No torch and no transformers here, since planning tries the templates of the models at hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, UndefinedError, meta
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specrig.errors import first_line, with_type
from specrig.models import gguf, hub
from specrig.models.pair import ModelError

Message = Mapping[str, str]
"""`role` (system, user or assistant) and `content`."""
CLOCK = datetime(2026, 1, 1)
"""The moment that `strftime_now` of templates gives unless a study's `clock` says another: the same in every run."""
PROBE = "Xq7userZk"
"""A user's text that no template writes by itself."""
LIST = "'type': 'text'"
"""What a template that only knows texts writes of a list of parts."""
RESERVED = ("messages", "add_generation_prompt", "strftime_now")
"""What a template is always given, so that `template_args` cannot name it."""
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Tokens that transformers gives a template under these names, as far as the tokenizer has them."""


class ChatTemplateError(ModelError):
    """A chat template that cannot be used, or refuses messages. reason: in the template's own words; fix: a way out."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}: {fix}")
        self.reason, self.fix = reason, fix


class ChatTemplate:
    """The chat template of a model. Its `text` is empty where the model has none."""

    def __init__(self, model: object, text: str, tokens: Mapping[str, str], added: Callable[[], str]) -> None:
        """tokens: name in `SPECIAL` -> token. added: what the tokenizer puts in front of every text by itself."""
        self.model, self.text, self.tokens = model, text, tokens
        self._added = added
        self._form = cache(self._probed)

    def render(
        self, messages: Sequence[Message], args: Mapping[str, Any] | None = None, clock: datetime = CLOCK
    ) -> str:
        """The messages up to where the answer begins, for `prompt_ids`: without the tokens that the tokenizer puts in
        front by itself, so that they stand there once.

        args: further variables of the template. Raises ChatTemplateError for messages that the template refuses, for a
        user's or system text that it does not write, and for a template that fails.
        """
        given = json.dumps(args or {}, sort_keys=True)
        in_parts = self._form(tuple(message["role"] for message in messages), given, clock)
        rendered = self._filled(messages, json.loads(given), clock, in_parts)
        if role := _unwritten(rendered, messages):
            raise self._drops(role)
        return self._once(rendered)

    def variables(self) -> set[str]:
        """The names that the template reads and that only `template_args` can give. Raises ChatTemplateError."""
        try:
            names = meta.find_undeclared_variables(_environment().parse(self.text))
        except TemplateSyntaxError as error:
            raise self._syntax(error) from error
        return names - {*_environment().globals, *RESERVED, *SPECIAL}

    def _probed(self, roles: tuple[str, ...], args: str, clock: datetime) -> bool:
        """Whether these roles need their content as a list of parts, tried with texts that no template writes itself."""
        messages = [{"role": role, "content": f"{PROBE}{number}"} for number, role in enumerate(roles)]
        refusal: ChatTemplateError | None = None
        for in_parts in (False, True):
            try:
                rendered = self._filled(messages, json.loads(args), clock, in_parts)
                role = _unwritten(rendered, messages)
                if not role and not (in_parts and LIST in rendered):
                    return in_parts
                refusal = refusal or self._drops(role or roles[-1])
            except ChatTemplateError as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    def _filled(self, messages: Sequence[Message], args: Mapping[str, Any], clock: datetime, in_parts: bool) -> str:
        contents = [[{"type": "text", "text": each["content"]}] if in_parts else each["content"] for each in messages]
        turns = [{**each, "content": content} for each, content in zip(messages, contents, strict=True)]
        given = {"tools": None, "documents": None, **self.tokens, **args}
        given |= {"messages": turns, "add_generation_prompt": True, "strftime_now": clock.strftime}
        whose = f"the chat template of {self.model}"
        try:
            return _compiled(self.text).render(given)
        except TemplateSyntaxError as error:
            raise self._syntax(error) from error
        except UndefinedError as error:
            reads = ", ".join(sorted(self.variables())) or "no names"
            raise ChatTemplateError(
                f"{whose} needs what it is not given ({first_line(error)})",
                f"give it in `template_args`, from which it reads {reads}, or take another target",
            ) from error
        except TemplateError as error:
            if type(error) is TemplateError:  # of raise_exception
                raise ChatTemplateError(
                    f"{whose} refuses these messages ({first_line(error)})",
                    _way_out({each["role"] for each in messages}),
                ) from error
            raise ChatTemplateError(f"{whose} fails ({with_type(error)})", CORRECT) from error
        except Exception as error:  # templates call what they like
            raise ChatTemplateError(f"{whose} fails ({with_type(error)})", CORRECT) from error

    def _once(self, rendered: str) -> str:
        """The rendering without the first tokens that the tokenizer adds. Raises ChatTemplateError where two stand there."""
        first, begin = self._added_text or self.tokens.get("bos_token", ""), rendered.lstrip()
        if not first or not begin.startswith(first):
            return rendered
        rest = begin.removeprefix(first)
        if rest.lstrip().startswith(first):
            raise ChatTemplateError(f"the chat template of {self.model} writes {first} twice in front", CORRECT)
        return rest if self._added_text else rendered

    @cached_property
    def _added_text(self) -> str:
        return self._added()

    def _syntax(self, error: TemplateSyntaxError) -> ChatTemplateError:
        reason = f"the chat template of {self.model} is no Jinja template (line {error.lineno}: {first_line(error)})"
        return ChatTemplateError(reason, CORRECT)

    def _drops(self, role: str) -> ChatTemplateError:
        whose = f"the chat template of {self.model}"
        if role == "system":
            return ChatTemplateError(f"{whose} drops the system turn", _way_out({role}))
        return ChatTemplateError(
            f"{whose} does not hold a user's text as it stands", f"neither as a text nor as a list of parts; {CORRECT}"
        )


CORRECT = "correct chat_template.jinja in a copy of the model, or take another target"


def _way_out(roles: set[str]) -> str:
    """What helps where a template refuses messages with these roles."""
    ways = ["leave the system turn out"] if "system" in roles else []
    ways += ["ask first turns only (`turns` 1)"] if "assistant" in roles else []
    return ", or ".join([*ways, f"{CORRECT} (roles are system, user and assistant)"])


def _unwritten(rendered: str, messages: Sequence[Message]) -> str:
    """The role of the first text of system or user that a rendering does not hold, else "". Blanks around a text, and how
    its signs are escaped, do not count.
    """
    for message in messages:
        text = message["content"].strip()
        words = {*map(str.strip, re.findall(r"[^\W_][\w ]*", text))}
        if message["role"] == "assistant" or text in rendered or (words and all(each in rendered for each in words)):
            continue
        return message["role"]
    return ""


class _Generation(Extension):
    """`{% generation %}` marks, for training, what an assistant writes. Here it stands for its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up (`transformers.utils.chat_template_utils`)."""

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def tojson(value: Any, ensure_ascii: bool = False, **form: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **form)

    found = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    found.filters["tojson"] = tojson
    found.globals["raise_exception"] = raise_exception
    return found


@cache
def _compiled(text: str) -> Any:
    return _environment().from_string(text)


# Where templates and tokenizers come from


def of_tokenizer(tokenizer: Any, model: object) -> ChatTemplate:
    """The chat template of a tokenizer that transformers loaded. Raises ChatTemplateError for several without a default."""
    text = _default(tokenizer.chat_template, model)
    return ChatTemplate(model, text, tokenizer.special_tokens_map, lambda: _text_in_front(tokenizer))


def at_hand(model: str, revision: str | None = None) -> ChatTemplate | None:
    """The chat template by the files of a model: a folder, a GGUF file, or the hub's as far as they are in the cache.

    None for a model that is not here. Raises ModelError for files that cannot be read.
    """
    if gguf.is_gguf(model):
        header = gguf.config(model)
        tokens = header.get("special_tokens", {})
        return ChatTemplate(model, header.get("chat_template", ""), UNKNOWN | tokens, str)
    file, settings = (hub.at_hand(model, name, revision) for name in ("chat_template.jinja", "tokenizer_config.json"))
    if file is None and settings is None and not Path(model).expanduser().is_dir():
        return None
    known = _json_object(settings)
    text = _default(known.get("chat_template"), model) if file is None else _read(file)
    entries = UNKNOWN | _json_object(hub.at_hand(model, "special_tokens_map.json", revision)) | known
    tokens = {name: entry.get("content") if isinstance(entry, dict) else entry for name, entry in entries.items()}
    named = {name: token for name, token in tokens.items() if name in SPECIAL and isinstance(token, str)}
    return ChatTemplate(model, text, named, lambda: _added_by_file(model, revision))


UNKNOWN = {"bos_token": "", "eos_token": ""}
"""Tokens that files may leave to the defaults of a tokenizer's class, which only loading finds out."""


def _default(found: Any, model: object) -> str:
    """The template among those of a tokenizer: a text, several by name, or none."""
    if isinstance(found, list):
        found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
    if isinstance(found, dict) and found:
        named = ", ".join(sorted(map(str, found)))
        found = found.get("default")
        if found is None:
            raise ChatTemplateError(f"{model} has chat templates for {named} and no default", CORRECT)
    if not isinstance(found, str | None):
        raise ChatTemplateError(f"the chat template of {model} is no text", CORRECT)
    return found or ""


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file}: cannot be read as UTF-8 ({first_line(error)}); copy the model again") from error


def _json_object(file: Path | None) -> dict[str, Any]:
    """The object in a JSON file; empty without the file. Raises ModelError for another content."""
    if file is None:
        return {}
    try:
        found = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not valid JSON ({first_line(error)}); copy the model again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file}: not an object; copy the model again")
    return found


def _added_by_file(model: str, revision: str | None) -> str:
    file = hub.at_hand(model, "tokenizer.json", revision)
    try:
        if file is None:
            return ""
        tokenizer = hub.read_tokenizer(file)
        whole, bare = (tokenizer.encode("a", add_special_tokens=added).ids for added in (True, False))
    except Exception:  # what is wrong with a tokenizer is said where its tokens are counted
        return ""
    return "".join(map(tokenizer.id_to_token, _around(whole, bare)[0]))


# Token ids


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a prompt: what the tokenizer puts in front by itself is there, what it puts behind (an end of
    sequence) is not, since the model is to go on. Raises ModelError for a text that the tokenizer cannot encode.
    """
    ids = _ids(tokenizer, text)
    behind = len(_special(tokenizer)[1])
    return ids[: len(ids) - behind]


def _text_in_front(tokenizer: Any) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(_special(tokenizer)[0]))


def _special(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts in front of every text, and those behind it."""
    return _around(_ids(tokenizer, "a"), _ids(tokenizer, "a", add_special_tokens=False))


def _around(whole: Sequence[int], bare: Sequence[int]) -> tuple[list[int], list[int]]:
    """What stands before and behind `bare` in `whole`."""
    for start in range(len(whole) - len(bare) + 1):
        if list(whole[start : start + len(bare)]) == list(bare):
            return list(whole[:start]), list(whole[start + len(bare) :])
    return [], []


def _ids(tokenizer: Any, text: str, **settings: Any) -> list[int]:
    try:
        found: list[int] = tokenizer(text, **settings)["input_ids"]
    except Exception as error:  # the library has no type of its own
        raise ModelError(f"the tokenizer cannot encode {text[:40]!r} ({first_line(error)}); take another") from error
    return found
