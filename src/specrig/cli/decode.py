"""The verb `specrig decode`: one prompt, streamed. Its arguments are checked before torch is imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from specrig.cli.arguments import DEFAULT, Json, known_methods, print_json
from specrig.runtime.gpus import resolve_device
from specrig.terminal import console

if TYPE_CHECKING:
    from specrig.cli.decode_view import LiveGeneration
    from specrig.engines.native import Native
    from specrig.study.single import SingleCell

WARMUP_TOKENS = 16

Method = Annotated[
    str | None,
    typer.Option(
        autocompletion=known_methods, help="One of `specrig methods`. Default: draft_model with a draft, else ngram"
    ),
]
Options = Annotated[list[str] | None, typer.Option("--option", help="Option of the method, e.g. nodes=12; repeatable")]
Heads = Annotated[list[str] | None, typer.Option("--head", help="Trained head, e.g. eagle=FOLDER; repeatable")]
Dtype = Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Precision of --target and --draft")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None, typer.Option(help="auto, cpu or cuda. Default: that of the study")
]


def _temperature(value: float) -> float:
    if not 0 <= value <= 10:  # NaN is neither
        raise typer.BadParameter(f"{value:g} is not a temperature: give a number from 0 to 10")
    return value


Temperature = Annotated[
    float, typer.Option(callback=_temperature, help="0: greedy; 1: the model's own distribution; at most 10")
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "--tokens", min=1, help="Maximum number of new tokens")]
Chat = Annotated[
    bool | None,
    typer.Option(
        help="The prompt is the user's turn in the target's chat template. Default: with --target, where it has one",
        show_default=False,
    ),
]


def decode(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue. Default: standard input")] = None,
    study: Annotated[Path, typer.Option(help="Study that holds the pair")] = DEFAULT,
    pair: Annotated[str | None, typer.Option(help="Row of the table of pairs. Default: the study's first")] = None,
    target: Annotated[str | None, typer.Option(help="Target model instead of a pair: GGUF file, folder or hub id")] = None,
    draft: Annotated[str | None, typer.Option(help="Draft model of --target: the same")] = None,
    head: Heads = None,
    dtype: Dtype = "float32",
    method: Method = None,
    k: Annotated[int, typer.Option(min=1, max=16, help="Tokens drafted a round, 1 to 16")] = 4,
    option: Options = None,
    temperature: Temperature = 0.0,
    max_new_tokens: MaxNewTokens = 128,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Seed for temperatures above 0")] = 0,
    chat: Chat = None,
    system: Annotated[str | None, typer.Option(help="With a chat template: the system prompt")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show plain decoding beside the method")] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Decode one prompt with a method. Tokens that were drafted and accepted are green, the target's own are underlined."""
    from specrig.study.single import CellRequest, of_models, of_study

    requested = CellRequest(method, k, _options(option or []), temperature)
    if target is None:
        _only_with_target(draft, head)
        single = of_study(study, pair, requested)
    else:
        if pair is not None:
            raise typer.BadParameter("give --pair or --target, not both")
        single = of_models(_row(target, draft, head or [], dtype), requested)
    text = _prompt(prompt)
    if target is not None:
        single = _converted(single)
    if chat is None:
        chat = target is not None and _has_template(single)
    text = _prepared(text, single, max_new_tokens, chat, system)
    engine = _loaded(single, device)
    with engine:
        generations = _decoded(engine, single, text, max_new_tokens, seed, compare, console(quiet=as_json))
    if as_json:
        _print_json(single, text, seed, chat, generations)
    else:
        _print_summary(single, generations, console())
        if target is not None:
            how = (
                "as the user's turn in its chat template (--no-chat: as it is)"
                if chat
                else "as it is, without a template"
            )
            console().print(f"the target read the prompt {how}", style="dim", highlight=False)


def _options(assignments: Sequence[str]) -> dict[str, Any]:
    """The method's options from `name=value`, values as YAML reads them."""
    import yaml

    from specrig.study.problems import shortened

    found = {}
    for each in assignments:
        name, sign, value = each.partition("=")
        if not sign:
            raise typer.BadParameter(f"{each!r} is not name=value", param_hint="--option")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise typer.BadParameter(f"{shortened(each)}: the value is not YAML", param_hint="--option") from error
    return found


def _only_with_target(draft: str | None, heads: Sequence[str] | None) -> None:
    for flag, value in (("--draft", draft), ("--head", heads)):
        if value:
            raise typer.BadParameter(f"{flag} needs --target; a --pair has its own")


def _row(target: str, draft: str | None, heads: Sequence[str], dtype: Any) -> Any:
    """The row that the table of pairs would have for these models."""
    from specrig.study.rows import Pair

    for each in heads:
        if not re.fullmatch(r"[a-z0-9_]+=\S*[^\s@]", each):
            raise typer.BadParameter(f"{each!r} is not name=FOLDER (without spaces)", param_hint="--head")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(target).name).strip(".-_") or "target"
    return Pair.model_validate(
        {"pair": name, "target": target, "draft": draft, "heads": " ".join(heads), "dtype": dtype}
    )


def _converted(single: SingleCell) -> SingleCell:
    """The cell on model folders, which are made of its GGUF files in the user's cache."""
    from specrig.models.gguf import cached_folder

    row = single.study.rows.pairs[single.cell.pair]
    folders: dict[str, Any] = {}
    for part, file in row.gguf.items():
        if part in single.files.sources:
            with console(stderr=True).status(f"converting {Path(file).name} (once)"):
                folders[part] = str(cached_folder(file, row.dtype))
    return replace(single, files=replace(single.files, **folders))


def _has_template(single: SingleCell) -> bool:
    """Whether the target has a chat template."""
    from specrig.models.hub import tokenizer

    return bool(tokenizer(single.files.target, single.files.target_revision).chat_template)


def _prompt(argument: str | None) -> str:
    """The prompt of the command line, else of standard input."""
    if argument is None and sys.stdin.isatty():
        raise typer.BadParameter('no prompt: specrig decode "Once upon a time", or specrig decode < notes.txt')
    text = sys.stdin.read() if argument is None else argument
    if not text:
        raise typer.BadParameter("the prompt is empty")
    from specrig.tasks.prompts import lone_surrogate

    if (at := lone_surrogate(text)) is not None:
        raise typer.BadParameter(f"the prompt is not UTF-8 at character {at}: give it as UTF-8")
    return text


def _prepared(text: str, single: SingleCell, tokens: int, chat: bool, system: str | None) -> str:
    """The prompt as the target reads it. Its length is checked before weights are read."""
    from specrig.tasks import Prompt
    from specrig.tasks.chat import require_chat_template
    from specrig.tasks.lengths import fitting

    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat, and a target with a chat template")
    if chat:
        turns = [{"role": "system", "content": system}] if system is not None else []
        template = require_chat_template("decode --chat", single.files)
        text = template.render([*turns, {"role": "user", "content": text}], clock=single.study.clock)
    fitting([Prompt("of the command line", text)], "decode", single.files, tokens)
    return text


def _loaded(single: SingleCell, device: str | None) -> Native:
    from specrig.engines.native import Native
    from specrig.provenance.trained_for import check_trained_for

    study = single.study if device is None else single.study.model_copy(update={"device": device})
    check_trained_for(single.files)
    from transformers.utils import logging

    logging.disable_progress_bar()
    with console(stderr=True).status("loading the models"):
        return Native(single.files, device=resolve_device(study.device), threads=study.threads)


def _decoded(
    engine: Native, single: SingleCell, text: str, tokens: int, seed: int, compare: bool, console: Console
) -> list[LiveGeneration]:
    """Run the method, then plain decoding if `compare`, and show them as they grow."""
    from specrig.cli.decode_view import GenerationView, LiveGeneration
    from specrig.measurement.blocks import baseline_of
    from specrig.report.documents.samples import Writing

    cells = [single.cell, *([baseline_of(single.cell)] if compare else [])]
    generations = [LiveGeneration(cell.method, Writing(engine.tokenizer)) for cell in cells]
    ids = engine.encode(text)
    if compare:  # otherwise the first run would pay for warm-up
        for cell in cells:
            engine.generate(cell, [ids], max_new_tokens=min(tokens, WARMUP_TOKENS), seeds=[seed])
    with GenerationView(console, generations):
        for cell, live in zip(cells, generations, strict=True):
            [found] = engine.generate(cell, [ids], max_new_tokens=tokens, seeds=[seed], callback=live.on_tokens)
            live.end(found)
    return generations


def _compared(generations: Sequence[LiveGeneration]) -> dict[str, Any]:
    """The method against plain decoding: speedup, None where one had no time, and whether the outputs are identical."""
    ours, plain = (each.tokens_per_s for each in generations)
    same = generations[0].writing.tokens == generations[1].writing.tokens
    return {"speedup": ours / plain if ours and plain else None, "identical": same}


def _print_json(single: SingleCell, text: str, seed: int, chat: bool, generations: Sequence[LiveGeneration]) -> None:
    cell = single.cell
    values: dict[str, Any] = {
        "pair": cell.pair,
        "target": single.files.target,
        "k": cell.k,
        "options": cell.options,
        "temperature": cell.temperature,
        "seed": seed,
        "prompt": text,
        "chat": chat,
        **generations[0].as_values(),
    }
    if len(generations) > 1:
        values["plain"] = generations[1].as_values()
        values |= _compared(generations)
    print_json(values)


def _print_summary(single: SingleCell, generations: Sequence[LiveGeneration], console: Console) -> None:
    """Print what the colours mean (a file has none) and, with --compare, the speedup and whether the outputs are
    identical.
    """
    from specrig.cli.decode_view import STYLES

    if single.files.simulated_acceptance is not None:
        console.print("Acceptance is simulated: this is not the target's text.", style="yellow")
    if console.is_terminal:
        drafted = f"[{STYLES['draft']}]drafted by {single.cell.method} and accepted[/]"
        console.print(f"{drafted} · [{STYLES['target']}]written by the target[/]")
    if len(generations) == 1:
        console.print("speed of a first run, without warm-up; --compare warms up first", style="dim")
    else:
        found = _compared(generations)
        speedup = (
            "no speed to compare"
            if found["speedup"] is None
            else f"{found['speedup']:.2f} times plain decoding's speed"
        )
        if found["identical"]:
            outputs = "identical outputs"
        elif single.cell.temperature > 0:
            outputs = "outputs differ, as samples do: their distribution is the same"
        else:
            outputs = "outputs differ: a near tie of two tokens, or a lossy method (`specrig stage audit` checks it)"
        console.print(f"{speedup} on this one prompt · {outputs}")
