"""The verb `specrig decode`: one prompt through the one loop, streamed. No torch before its arguments are checked."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from specrig.cli.arguments import DEFAULT, Json, known_methods, print_json
from specrig.cli.decode_view import STYLES, Page, Side
from specrig.runtime.gpus import resolve_device
from specrig.study.single import Asked, Single, of_models, of_study

if TYPE_CHECKING:
    from specrig.engines.native import Native

WARMUP_TOKENS = 16

Method = Annotated[
    str | None,
    typer.Option(
        autocompletion=known_methods, help="One of `specrig methods`; default: draft_model with a draft, else ngram"
    ),
]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the method, e.g. nodes=12; repeatable")
]
Heads = Annotated[list[str] | None, typer.Option("--head", help="A trained head, e.g. eagle=FOLDER; repeatable")]
Dtype = Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Precision of --target and --draft")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None, typer.Option(help="auto, cpu or cuda; default: as the study says")
]


def decode(
    prompt: Annotated[str | None, typer.Argument(help="The text to continue; without it, what stands on standard input")] = None,
    study: Annotated[Path, typer.Option(help="The study whose pair decodes")] = DEFAULT,
    pair: Annotated[str | None, typer.Option(help="Row of the table of pairs; default: the study's first")] = None,
    target: Annotated[str | None, typer.Option(help="A model instead of a pair: its folder or hub id")] = None,
    draft: Annotated[str | None, typer.Option(help="Its draft: a folder or hub id")] = None,
    head: Heads = None,
    dtype: Dtype = "float32",
    method: Method = None,
    k: Annotated[int, typer.Option(help="Tokens drafted a round, 1 to 16")] = 4,
    option: Options = None,
    temperature: Annotated[float, typer.Option(min=0, max=10, help="0: greedy; 1: the model's own distribution")] = 0.0,
    tokens: Annotated[int, typer.Option(min=1, help="Most new tokens")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Seed for temperatures above 0")] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's turn: the target's chat template is put around it")] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: the system's turn before it")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show plain decoding beside it")] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Continue one prompt with a method, and show who wrote each token: green underlined ones were drafted, then
    accepted.
    """
    asked = Asked(method, k, _options(option or []), temperature)
    if target is None:
        _only_with_target(draft, head)
        single = of_study(study, pair, asked)
    else:
        if pair is not None:
            raise typer.BadParameter("give --pair or --target, not both")
        single = of_models(_row(target, draft, head or [], dtype), asked)
    text = _prompt(prompt)
    text = _prepared(text, single, tokens, chat, system)
    engine = _loaded(single, device)
    with engine:
        sides = _decoded(engine, single, text, tokens, seed, compare, Console(quiet=as_json))
    if as_json:
        _print_json(single, text, seed, sides)
    else:
        _say(single, sides, Console())


def _options(given: Sequence[str]) -> dict[str, Any]:
    """The method's options from `name=value`, values as YAML reads them."""
    import yaml

    from specrig.study.problems import OnceOnly, shortened

    found = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not sign:
            raise typer.BadParameter(f"{each!r} is no name=value", param_hint="--option")
        try:
            found[name.strip()] = yaml.load(value, OnceOnly)
        except (yaml.YAMLError, RecursionError) as error:
            raise typer.BadParameter(
                f"{shortened(each)} has no value that YAML can read", param_hint="--option"
            ) from error
    return found


def _only_with_target(draft: str | None, heads: Sequence[str] | None) -> None:
    for flag, value in (("--draft", draft), ("--head", heads)):
        if value:
            raise typer.BadParameter(f"{flag} goes with --target; the row of --pair names its own")


def _row(target: str, draft: str | None, heads: Sequence[str], dtype: Any) -> Any:
    """The row that the table of pairs would have for these models."""
    from specrig.models.gguf import is_gguf
    from specrig.study.rows import Pair

    for model in filter(None, (target, draft)):
        if is_gguf(model):
            raise typer.BadParameter(
                f"{model} is a GGUF file, which a study converts first: give it a row, and name that with --pair"
            )
    for each in heads:
        if not re.fullmatch(r"[a-z0-9_]+=\S*[^\s@]", each):
            raise typer.BadParameter(f"{each!r} is no name=FOLDER (without spaces)", param_hint="--head")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(target).name).strip(".-_") or "target"
    return Pair.model_validate(
        {"pair": name, "target": target, "draft": draft, "heads": " ".join(heads), "dtype": dtype}
    )


def _prompt(given: str | None) -> str:
    """The prompt of the command line, else standard input's."""
    if given is None and sys.stdin.isatty():
        raise typer.BadParameter(
            'give a text, e.g. specrig decode "Once upon a time", or send one: specrig decode < notes.txt'
        )
    text = sys.stdin.read() if given is None else given
    if not text:
        raise typer.BadParameter("the prompt is empty")
    return text


def _prepared(text: str, single: Single, tokens: int, chat: bool, system: str | None) -> str:
    """The prompt as the target reads it; that it fits its context is checked before weights are read."""
    from specrig.tasks import Prompt
    from specrig.tasks.chat import rendered, require_chat_template
    from specrig.tasks.lengths import check_lengths

    if system is not None and not chat:
        raise typer.BadParameter("--system goes with --chat")
    if chat:
        turns = [{"role": "system", "content": system}] if system is not None else []
        text = rendered(
            require_chat_template("decode --chat", single.files), [*turns, {"role": "user", "content": text}]
        )
    check_lengths([Prompt("of the command line", text)], "decode", single.files, tokens)
    return text


def _loaded(single: Single, device: str | None) -> Native:
    from specrig.engines.native import Native
    from specrig.provenance.trained_for import check_trained_for

    study = single.study if device is None else single.study.model_copy(update={"device": device})
    check_trained_for(single.files)
    from transformers.utils import logging

    logging.disable_progress_bar()
    with Console(stderr=True).status("loading the models"):
        return Native(single.files, device=resolve_device(study.device), threads=study.threads)


def _decoded(
    engine: Native, single: Single, text: str, tokens: int, seed: int, compare: bool, console: Console
) -> list[Side]:
    """Run the method and, to compare, plain decoding after it; shows both while they grow."""
    from specrig.measurement.blocks import baseline_of
    from specrig.reporting.documents.samples import Writing

    cells = [single.cell, *([baseline_of(single.cell)] if compare else [])]
    sides = [Side(cell.method, Writing(engine.tokenizer)) for cell in cells]
    ids = engine.encode(text)
    if compare:  # else the first would pay for what both use
        for cell in cells:
            engine.generate(cell, [ids], max_new_tokens=min(tokens, WARMUP_TOKENS), seeds=[seed])
    with Page(console, sides):
        for cell, side in zip(cells, sides, strict=True):
            [generation] = engine.generate(cell, [ids], max_new_tokens=tokens, seeds=[seed], tell=side.tell)
            side.end(generation)
    return sides


def _compared(sides: Sequence[Side]) -> dict[str, Any]:
    """The method against plain decoding: speedup, None where one had no time, and whether the outputs are identical."""
    ours, plain = (side.tokens_per_s for side in sides)
    same = sides[0].writing.tokens == sides[1].writing.tokens
    return {"speedup": ours / plain if ours and plain else None, "identical": same}


def _print_json(single: Single, text: str, seed: int, sides: Sequence[Side]) -> None:
    cell = single.cell
    said: dict[str, Any] = {
        "pair": cell.pair,
        "target": single.files.target,
        "k": cell.k,
        "options": cell.options,
        "temperature": cell.temperature,
        "seed": seed,
        "prompt": text,
        **sides[0].described(),
    }
    if len(sides) > 1:
        said["plain"] = sides[1].described()
        said |= _compared(sides)
    print_json(said)


def _say(single: Single, sides: Sequence[Side], console: Console) -> None:
    """What the colours mean and, where plain decoding stands beside it, how the two compare."""
    if single.files.simulated_acceptance is not None:
        console.print("Random weights: there is no text, and acceptance is the declared one.", style="yellow")
    console.print(f"[{STYLES['draft']}]drafted by {single.cell.method} and accepted[/] · the target's own")
    if len(sides) == 1:
        console.print("the speed is a first run's; --compare warms up before it times", style="dim")
    else:
        found = _compared(sides)
        speedup = (
            "no speed to compare"
            if found["speedup"] is None
            else f"{found['speedup']:.2f} times plain decoding's speed"
        )
        if found["identical"]:
            outputs = "identical outputs"
        elif single.cell.temperature > 0:
            outputs = "outputs differ, as samples do: what is kept is their distribution"
        else:
            outputs = "outputs differ: at temperature 0 that is a near tie of two tokens, or a lossy method (`specrig audit` tells)"
        console.print(f"{speedup} on this one prompt · {outputs}")
