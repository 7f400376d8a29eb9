"""`pagedrun lm-eval` as far as it goes without the extra `eval`."""

import sys
from collections.abc import Iterator

import pytest

import pagedrun as package
from pagedrun.paged.values.errors import UsageError
from tests.support.command import Command

SENTENCE = "needs lm_eval, which is not installed; run pip install 'lm_eval>=0.4.13'"


@pytest.fixture
def without_lm_eval() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "lm_eval", None)
        for name in [each for each in sys.modules if "pagedrun.paged.evaluation" in each]:
            patch.delitem(sys.modules, name)
        yield


@pytest.mark.usefixtures("without_lm_eval")
def test_without_the_extra_a_sentence_says_how_to_get_it(pagedrun: Command) -> None:
    status, out, err = pagedrun("lm-eval", "--tasks", "x")
    assert (status, out, err.endswith(f"{SENTENCE}\n")) == (2, "", True)
    with pytest.raises(UsageError) as caught:
        _ = package.HarnessModel
    assert str(caught.value).endswith(SENTENCE)


@pytest.mark.usefixtures("without_lm_eval")
def test_help_needs_no_extra(pagedrun: Command) -> None:
    status, out, _ = pagedrun("lm-eval", "--help")
    assert (status, "pagedrun lm-eval ls tasks" in out) == (0, True)
