"""What a task's gen_kwargs become: parameters of the engine, and what an answer is cut at."""

from typing import Any

import pytest

from pagedrun.paged.evaluation.harness_model import Generation
from pagedrun.paged.values.errors import RowError

EOS = "<|im_end|>"


def generation(think_end: str | None = None, **gen_kwargs: Any) -> Generation:
    return Generation.of(gen_kwargs, 256, EOS, think_end)


def test_tasks_are_greedy_unless_they_draw() -> None:
    assert generation().params.is_greedy
    assert generation(do_sample=False, temperature=0.7).params.is_greedy
    assert generation(temperature=0.7).params.temperature == 0.7
    assert generation(num_beams=1, use_cache=True).params.is_greedy
    drawn = generation(do_sample=True, top_p=0.9, top_k=5, seed=3).params
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.seed) == (1.0, 0.9, 5, 3)


def test_the_most_tokens_by_any_of_their_names() -> None:
    assert generation().params.max_tokens == 256
    for name in ("max_gen_toks", "max_new_tokens", "max_tokens"):
        assert Generation.of({name: 7}, 256, EOS, None).params.max_tokens == 7


def test_an_answer_is_cut_at_the_first_of_its_stops() -> None:
    found = generation(until=["\n\n", "", "Q:"])
    assert found.params.stop == ("\n\n", "Q:", EOS)
    assert found.cut("one Q: two\n\nthree") == "one "
    assert generation(until="Q:").cut(f"one{EOS}Q:") == "one"


def test_more_stops_than_the_engine_takes_are_cut_off_all_the_same() -> None:
    found = generation(until=[*(f"<{number}>" for number in range(90)), "x" * 3000])
    assert len(found.params.stop) == 64
    assert found.cut("a<89>b") == "a"
    assert found.cut("a" + "x" * 3000 + "b") == "a"


def test_a_thought_is_neither_stopped_nor_part_of_the_answer() -> None:
    found = generation("</think>", until=["\n\n"])
    assert found.params.stop == ()
    assert found.cut("first\n\nthen</think>\n\nso\n\nQ") == "so"


@pytest.mark.parametrize(
    ("gen_kwargs", "param"),
    [
        ({"penalty_alpha": 0.6}, "penalty_alpha"),
        ({"n": 4}, "n"),
        ({"top_p": 3.0}, "top_p"),
        ({"num_beams": 4}, "num_beams"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_by_name(gen_kwargs: dict[str, Any], param: str) -> None:
    with pytest.raises(RowError) as caught:
        generation(**gen_kwargs)
    assert caught.value.param == param
