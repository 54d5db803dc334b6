"""What the records of a study cannot say of each other: of one batch, one block, one prompt, one token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from specrig.engines import registry as engines
from specrig.measurement.blocks import baseline_of
from specrig.measurement.records import Run
from specrig.sharing.checks import Located, majority
from specrig.sharing.checks.records import prefill_is_round
from specrig.study.study import Study


def disagreements(found: Sequence[Located], study: Study) -> Iterator[str]:
    """A sentence for each record that contradicts others."""
    yield from _prompt_lengths(found)
    yield from _batches(found)
    yield from _baselines(found, study)
    yield from _ends(found)
    yield from _pieces(found)
    yield from _texts(found)


def _prompt_lengths(found: Sequence[Located]) -> Iterator[str]:
    """An engine encodes a prompt in one way."""
    lengths = defaultdict(list)
    for one in found:
        cell = one.record.cell
        lengths[cell.engine, cell.pair, cell.task, one.record.prompt_id].append(one)
    for members in lengths.values():
        usual, count = majority(str(one.record.prompt_tokens) for one in members)
        for one in members:
            if str(one.record.prompt_tokens) != usual:
                yield one.says(f"{one.record.prompt_tokens} prompt tokens, in {count} other records {usual}")


def _batches(found: Sequence[Located]) -> Iterator[str]:
    """The prompts of a batch share their passes and times."""
    batches = defaultdict(list)
    for one in found:
        record = one.record
        batches[record.cell.name, record.replicate, record.repeat, record.group].append(one)
    for members in batches.values():
        for side, runs in (
            ("run", [one.record.run for one in members]),
            ("baseline", [one.record.baseline for one in members]),
        ):
            shared = side == "run" or not members[0].record.baseline_alone
            for batch in [runs] if shared else [[run] for run in runs]:
                if len({(run.ttft_s, run.prefill_s, run.decode_s, str(run.target_passes)) for run in batch}) > 1:
                    yield members[0].says(f"{side}: times that differ within its batch {members[0].record.group}")
                passes = sum(count for count, _ in batch[0].target_passes.values())
                rounds = max(len(run.rounds.emitted) - prefill_is_round(run) for run in batch)
                if passes and rounds and passes != rounds:
                    yield members[0].says(f"{side}: {passes} passes of the target in {rounds} rounds")
                elif passes and len(batch) == 1 and _width(batch[0]) < rounds + sum(batch[0].rounds.drafted):
                    yield members[0].says(f"{side}: passes of {_width(batch[0])} tokens hold no draft of its rounds")


def _width(run: Run) -> int:
    """Tokens of all target passes; in transformers the prompt's pass, which is not counted, drafts too."""
    first = 1 + run.rounds.drafted[0] if prefill_is_round(run) else 0
    return first + sum(width * count for width, (count, _) in run.target_passes.items())


def _baselines(found: Sequence[Located], study: Study) -> Iterator[str]:
    """The cells of a block have one run of the baseline, which each of their records repeats.

    Blocks that share the probe before and after them are one, unless they were so short that both probes are the same.
    """
    if study.jobs != "pair":
        return
    blocks = defaultdict(list)
    for one in found:
        record = one.record
        before, after = record.before and record.before.when, record.after and record.after.when
        if engines()[record.cell.engine].paired and before and after and before != after:
            setting = baseline_of(record.cell).name, record.cell.batch_size, before, after
            blocks[*setting, record.prompt_id, record.repeat, record.replicate].append(one)
    for members in blocks.values():
        runs = [one.record.baseline.model_dump_json() for one in members]
        if len(set(runs)) > 1:
            odd = min(members, key=lambda one: runs.count(one.record.baseline.model_dump_json()))
            yield odd.says("a baseline that the other cells of its block do not have")


def _ends(found: Sequence[Located]) -> Iterator[str]:
    """A token that ends one output ends every output in which it is."""
    final: dict[tuple[str, str], set[int]] = defaultdict(set)
    sides = [
        (one, side, run) for one in found for side, run in (("run", one.record.run), ("baseline", one.record.baseline))
    ]
    for one, _, run in sides:
        if run.stop == "eos":
            final[one.record.cell.engine, one.record.cell.pair].update(run.tokens[-1:])
    for one, side, run in sides:
        within = final[one.record.cell.engine, one.record.cell.pair].intersection(run.tokens[:-1])
        if within:
            yield one.says(f"{side}: token {min(within)} stands inside the output, elsewhere it ends outputs")


def _pieces(found: Sequence[Located]) -> Iterator[str]:
    """A token makes the same piece of text everywhere.

    Not the first one (SentencePiece drops its space), nor one beside a character that is spread over several tokens.
    """
    pieces = defaultdict(list)
    for one in found:
        record, cell = one.record, one.record.cell
        ends = record.ends or []
        if record.text and len(ends) == len(record.run.tokens):
            parts = [record.text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
            for before, piece, token in zip(parts, parts[1:], record.run.tokens[1:], strict=False):
                if before and piece and "\ufffd" not in before + piece:
                    pieces[cell.engine, cell.pair, token].append((piece, one))
    for (_, _, token), members in pieces.items():
        usual, count = majority(piece for piece, _ in members)
        for piece, one in members:
            if piece != usual:
                yield one.says(f"token {token} is the text {piece!r}, in {count} other places {usual!r}")


def _texts(found: Sequence[Located]) -> Iterator[str]:
    """The same tokens make the same text."""
    texts = defaultdict(list)
    for one in found:
        record, cell = one.record, one.record.cell
        for tokens, text in ((record.run.tokens, record.text), (record.baseline.tokens, record.baseline_text)):
            if text:
                texts[cell.engine, cell.pair, tuple(tokens)].append((text, one))
    for members in texts.values():
        usual, count = majority(text for text, _ in members)
        for text, one in members:
            if text != usual:
                yield one.says(f"a text that its tokens do not have in {count} other records")
