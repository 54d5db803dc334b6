"""`dtype: auto`: bfloat16 where the machine multiplies it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrig.models import precision
from specrig.models.precision import precision_here
from specrig.study.rows import Pair


@pytest.mark.parametrize(
    ("information", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 rdpid\n", "bfloat16"),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", "bfloat16"),
        ("Features\t: fp asimd bf16 i8mm\n", "bfloat16"),
        ("flags\t\t: fpu avx2 avx512f\n", "float32"),
        ("model name\t: bf16 is only in its name\n", "float32"),
    ],
)
def test_the_processor_decides(
    information: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision.platform, "system", lambda: "Linux")
    file = tmp_path / "cpuinfo"
    file.write_text(information)
    precision_here.cache_clear()
    assert precision_here(file, tmp_path / "no-gpu") == expected
    (tmp_path / "gpu").touch()
    assert precision_here(file, tmp_path / "gpu") == "bfloat16"


def test_a_row_holds_what_auto_became() -> None:
    assert Pair(pair="a", target="owner/name", dtype="auto").dtype == precision_here()
    assert Pair(pair="a", target="owner/name").dtype == "float32"
    with pytest.raises(ValueError, match="dtype"):
        Pair(pair="a", target="owner/name", dtype="automatic")
