"""The worked example of CONTRIBUTING.md works."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import torch

from specrig.decoding.drafters import check


def test_the_example_drafter_is_accepted_and_drafts(repository: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (repository / "CONTRIBUTING.md").read_text(), flags=re.S)
    (code,) = [block for block in blocks if "class RepeatLast" in block]
    module = types.ModuleType("repeat_last")
    sys.modules["repeat_last"] = module  # pydantic looks annotations up there
    try:
        exec(compile(code, "repeat_last.py", "exec"), module.__dict__)
    finally:
        del sys.modules["repeat_last"]
    check(module.RepeatLast, "repeat_last")
    drafter = module.RepeatLast(module.RepeatLast.Options(limit=2), None)
    context = SimpleNamespace(tokens=[[1, 7], [2, 9]], done=[False, False], sampler=SimpleNamespace(device=torch.device("cpu")))
    assert drafter.propose(context, 4).tokens.tolist() == [[7, 7], [9, 9]]
