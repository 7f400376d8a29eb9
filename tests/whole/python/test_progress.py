"""The bar of `progress=True`: on stderr, with the number of prompts where it is known."""

from typing import Any

import pytest

from pagedrun.paged.llm import LLM
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams

SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
CHAT = [{"role": "user", "content": "Why?"}]


def bar(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the last state of the bar."""
    out, err = capsys.readouterr()
    assert out == ""
    return err.strip().split("\r")[-1]


@pytest.mark.parametrize("progress", [True, False])
def test_it_counts_the_prompts(
    llm: LLM, progress: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = llm.generate(["a", "b", "c"], SHORT)
    capsys.readouterr()
    found = llm.generate(["a", "b", "c"], SHORT, progress=progress)
    assert [each.outputs for each in found] == [each.outputs for each in expected]
    assert ("3/3" in bar(capsys)) is progress


@pytest.mark.parametrize(
    ("prompts", "told"),
    [("one text", "1/1"), ([5, 6, 7], "1/1"), (iter(["a", "b"]), "2prompt"), ([], "0prompt")],
    ids=["text", "token_ids", "iterator", "empty"],
)
def test_its_end_is_the_number_of_prompts(
    llm: LLM, prompts: Any, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.generate(prompts, SHORT, progress=True)
    assert told in bar(capsys)


def test_of_chats(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.chat([CHAT, CHAT], SHORT, progress=True)
    assert "2/2" in bar(capsys)
    llm.chat(CHAT, SHORT, progress=True)
    assert "1/1" in bar(capsys)
    llm.chat(iter([CHAT]), SHORT, progress=True)
    assert "1prompt" in bar(capsys)


def test_vllm_s_names_are_answered(llm: LLM) -> None:
    given: dict[str, Any]
    for given, ours in (({"use_tqdm": True}, "progress"), ({"sampling_params": SHORT}, "params")):
        with pytest.raises(UsageError, match=f"is called {ours} here"):
            llm.generate("a", **given)
