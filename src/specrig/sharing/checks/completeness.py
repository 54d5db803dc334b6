"""Is everything there that study.json lists: every cell, replicate and prompt, each once?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from specrig.cell import Cell
from specrig.engines import registry as engines
from specrig.models.endpoint import endpoint_of
from specrig.sharing.checks import Located
from specrig.study.study import Study

Part = tuple[str, int]
"""`Cell.name` and the number of the replicate."""


def absent(study: Study, parts: Collection[Part]) -> tuple[list[str], list[str]]:
    """(differences, remarks): the cells and replicates that study.json lists and that are not among `parts`.

    parts: what has records or a reason why it failed.
    """
    measured = {name for name, _ in parts}
    present = {cell.engine for _, cell in study.grid.requested if cell.name in measured}
    differences, remarks = [], []
    for engine in study.engines:
        if engine not in present:
            remarks.append(f"engine {engine}: study.json lists it, and nothing of it is published; was it installed?")
    for _, cell in study.grid.requested:
        if cell.engine not in present:
            continue
        missing = [number for number in range(study.replicates) if (cell.name, number) not in parts]
        if len(missing) == study.replicates and _refused(study, cell):
            continue
        differences += [
            f"cell {cell.name}, replicate {number}: study.json lists it, and it is missing" for number in missing
        ]
    return differences, remarks


def _refused(study: Study, cell: Cell) -> bool:
    """Whether no machine runs the cell: its engine or its pair is against it, or no server has it."""
    engine = engines()[cell.engine]
    unserved = not engine.loads_pairs and endpoint_of(cell, study.servers) is None
    return unserved or bool(engine.refuses(cell) or study.grid.impossible(*cell.method_key))


def prompts(study: Study, found: Sequence[Located]) -> tuple[list[str], list[str]]:
    """(differences, remarks): prompts that a cell lacks or has twice, and batches of the wrong size."""
    cells: dict[Part, list[Located]] = defaultdict(list)
    for one in found:
        cells[one.record.cell.name, one.record.replicate].append(one)
    ids = {part: [one.record.prompt_id for one in members if one.record.repeat == 0] for part, members in cells.items()}
    longest: dict[str, list[str]] = {}
    for part, members in cells.items():
        task = members[0].record.cell.task
        longest[task] = max(longest.get(task, []), list(dict.fromkeys(ids[part])), key=len)
    differences = []
    for members in cells.values():
        cell = members[0].record.cell
        own = longest[cell.task][: study.grid.prompt_count(cell.batch_size)]
        expected = [(prompt, repeat) for repeat in range(study.repeats) for prompt in own]
        differences += _unlike(members, expected)
        groups = [one.record.group for one in members]
        if not _unlike(members, expected) and groups != _groups(len(own), cell.batch_size) * study.repeats:
            differences.append(members[0].says(f"batches {groups} are not those of batch size {cell.batch_size}"))
    requested = {task: study.grid.prompts_read(task) for task in longest}
    remarks = [
        f"task {task}: {len(own)} prompts in every cell, study.json asks for {requested[task]}; has its file fewer?"
        for task, own in longest.items()
        if len(own) < requested[task]
    ]
    return differences, remarks


def _unlike(members: Sequence[Located], expected: Sequence[tuple[str, int]]) -> list[str]:
    """What differs between the (prompt, repeat) of a cell's records and those that it must have, in this order."""
    found = [(one.record.prompt_id, one.record.repeat) for one in members]
    where = f"{members[0].location}: cell {members[0].record.cell.slug}"
    wrong = [
        f"{where}: prompt {prompt}, repeat {repeat} is missing"
        for prompt, repeat in expected
        if (prompt, repeat) not in found
    ]
    counted = Counter(found)
    for one in members:
        key = one.record.prompt_id, one.record.repeat
        if counted[key] > 1:
            wrong.append(one.says(f"repeat {key[1]} is there {counted.pop(key)} times"))
        elif counted[key] and key not in expected:
            wrong.append(one.says("which no other cell of the task measures"))
    return wrong or ([] if found == list(expected) else [f"{where}: its prompts stand in another order than elsewhere"])


def _groups(prompts: int, size: int) -> list[int]:
    return [number // size for number in range(prompts)]


def digests(index: Mapping[str, Mapping[str, str]], found: Sequence[Located]) -> list[str]:
    """The records of a job whose digest is not the one of their cell in its index.json."""
    return [
        one.says(f"digest {one.record.digest}, in index.json {index[one.record.cell.slug].get('digest')}")
        for one in found
        if one.record.digest != index.get(one.record.cell.slug, {"digest": one.record.digest}).get("digest")
    ]
