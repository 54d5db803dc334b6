"""What reaches the terminal: text as it stands, what is allowed instead of regular expressions, no packages' warnings."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

import specrig.study.study  # noqa: F401 (so that all settings are defined)
from specrig import cli
from specrig.settings import Settings
from specrig.study.problems import mistake


def test_a_line_number_is_no_emoji(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Path("configs/test.yaml")
    lines = config.read_text().splitlines()
    config.write_text("\n".join([*lines, *["#"] * (99 - len(lines)), "promts: 3\n"]))
    assert cli.main(["plan", str(config)]) == 2
    assert "configs/test.yaml:100: promts: unknown key" in capsys.readouterr().err


def test_no_console_has_emoji(repository: Path) -> None:
    for file in (repository / "src/specrig").rglob("*.py"):
        for call in re.findall(r"\bConsole\((.*)\)", file.read_text()):
            assert "emoji=False" in call, file


def kinds(kind: type[Settings] = Settings) -> Iterator[type[Settings]]:
    for found in kind.__subclasses__():
        yield found
        yield from kinds(found)


PATTERNS = [
    pytest.param(kind, name, id=f"{kind.__name__}.{name}")
    for kind in kinds()
    for name, schema in kind.model_json_schema().get("properties", {}).items()
    if "'pattern':" in str(schema) and kind.__module__.startswith("specrig.")
]


@pytest.mark.parametrize(("kind", "name"), PATTERNS)
def test_messages_say_what_is_allowed_and_show_no_regular_expression(kind: type[Settings], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({name: "=="})
    (issue,) = (issue for issue in caught.value.errors() if issue["loc"][:1] == (name,))
    reason, fix = mistake(issue)
    assert reason == "you gave '=='"
    assert "pattern" not in fix and "^" not in fix and "$" not in fix
    assert re.search(r"name|digits|address|`", fix)


def test_packages_warnings_do_not_reach_the_terminal(workplace: Path) -> None:
    program = """
import logging, warnings
from specrig import cli
assert cli.main(["where", "configs/test.yaml"]) == 0
import torch
torch.tensor(torch.ones(1))
torch.searchsorted(torch.arange(9.0), torch.ones(4, 4).t())
logging.getLogger("torch.something").warning("of a logger")
from specrig.runtime.types import FallbackWarning
warnings.warn("passes are slow", FallbackWarning)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stderr.splitlines()[0].endswith("FallbackWarning: passes are slow")
