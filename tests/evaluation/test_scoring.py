"""Windows that have one context are scored behind one prompt, as many as a prompt takes."""

from pagedrun.paged.evaluation.harness_model import Window, scoring_prompts
from pagedrun.paged.values.sampling_params import MAX_N


def test_windows_are_grouped_by_context_and_keep_their_places() -> None:
    asked = [((1, 2), (3,)), ((1,), (2, 3)), ((1, 2), (4, 5)), ((1, 2), (3,))]
    prompts = scoring_prompts(Window(context, given) for context, given in asked)
    assert [(each.context, each.indices, each.continuations) for each in prompts] == [
        ((1, 2), (0, 2, 3), ((3,), (4, 5), (3,))),
        ((1,), (1,), ((2, 3),)),
    ]


def test_more_than_a_prompt_takes_are_several_prompts() -> None:
    prompts = scoring_prompts(Window((1,), (number,)) for number in range(MAX_N + 2))
    assert [len(each.indices) for each in prompts] == [MAX_N, 2]
    assert prompts[1].continuations == ((MAX_N,), (MAX_N + 1,))
    assert prompts[1].indices == (MAX_N, MAX_N + 1)
