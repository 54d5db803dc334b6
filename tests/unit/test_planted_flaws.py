"""The audit catches wrong samplers: flaws that are planted into the real loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from flaws import SLOWLY_SEEN, STEPS, Flaw, chosen, planted, tried

from specrig.audit.multiple_testing import FAMILY_WISE


@pytest.fixture(scope="module")
def toy_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy_pair")


@pytest.mark.parametrize(("flaw", "label"), [pytest.param(*one, id=f"{one[0].name}-{one[1]}") for one in chosen()])
def test_wrong_samplers_are_caught(toy_pair: Path, flaw: Flaw, label: str) -> None:
    steps = [samples for samples in STEPS if samples >= SLOWLY_SEEN.get(flaw.name, 0)]
    test = tried(flaw, label, toy_pair, steps)
    assert test is None or test.p_value < FAMILY_WISE / 35, "the level of the smallest p-value of a study with 35 tests"


def test_a_flaw_that_no_longer_fits_the_code_is_no_proof() -> None:
    gone = Flaw("gone", (("decoding.verify:_chain_sampled", "a line that is not there", "pass"),), ())
    with pytest.raises(AssertionError, match="0 times"), planted(gone):
        pass
