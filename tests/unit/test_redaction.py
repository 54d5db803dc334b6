"""No password of an address is shown."""

from __future__ import annotations

import io

import pytest

from specrig.redaction import RedactedStream, redacted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgresql://me:hunter2@host/db?x=1 now", "at postgresql://me:***@host/db?x=1 now"),
        ("postgresql+psycopg2://me:p@ss/w:rd@host:5432/db", "postgresql+psycopg2://me:***@host:5432/db"),
        ("'http://:hunter2@127.0.0.1:5000/api'", "'http://:***@127.0.0.1:5000/api'"),
        ("mysql://host/db?user=me&password=hunter2&ssl=1", "mysql://host/db?user=me&password=***&ssl=1"),
        ("http://127.0.0.1:5000/#/experiments/1 by me@home", "http://127.0.0.1:5000/#/experiments/1 by me@home"),
        ("sqlite:////tmp/mlflow.db", "sqlite:////tmp/mlflow.db"),
    ],
)
def test_addresses(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_password_of_the_environment_is_not_shown_by_itself_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:hunter%402@host/db")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abcdef")
    output = io.StringIO()
    print("tried hunter%402, hunter@2 and abcdef", file=RedactedStream(output))
    assert output.getvalue() == "tried ***, *** and ***\n"
