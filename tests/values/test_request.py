"""Request: nothing unchecked reaches a kernel."""

import pytest

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.logprobs import Continuation, Score
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.paged.values.vote import VoteResult


def request(
    prompt: tuple[int, ...], max_tokens: int = 4, min_tokens: int = 0, stop: tuple[int, ...] = ()
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=stop)
    return Request(3, prompt, params)


def refusal(asked: Request, max_model_len: int = 10, vocab_size: int = 100) -> RowError:
    with pytest.raises(RowError) as caught:
        asked.fitted(max_model_len, vocab_size)
    return caught.value


def test_a_request_that_fits_is_returned_as_it_is() -> None:
    asked = request((1, 2, 3), max_tokens=7)
    assert asked.fitted(10, 100) is asked


@pytest.mark.parametrize(("length", "room"), [(3, 7), (9, 1)])
def test_max_tokens_is_cut_to_the_room(length: int, room: int) -> None:
    fitted = request((1,) * length, max_tokens=50).fitted(10, 100)
    assert fitted.params.max_tokens == room
    assert fitted.prompt_token_ids == (1,) * length
    assert fitted.index == 3


def test_min_tokens_is_cut_with_it() -> None:
    fitted = request((1,) * 6, max_tokens=50, min_tokens=30).fitted(10, 100)
    assert (fitted.params.min_tokens, fitted.params.max_tokens) == (4, 4)
    assert request((1,) * 6, 50, 2).fitted(10, 100).params.min_tokens == 2


def test_beams_share_the_whole_blocks_of_their_prompt() -> None:
    """9 + 8 - 1 tokens are 4 blocks of 4, of which 2 are whole before the first answer token."""
    params = SamplingParams(max_tokens=8, beam_width=3)
    assert Request(0, (1,) * 9, params).num_blocks_at_once(4) == 2 + 3 * 2
    assert Request(0, (1,) * 9, SamplingParams(max_tokens=8)).num_blocks_at_once(4) == 4


def test_an_empty_prompt() -> None:
    error = refusal(request(()))
    assert (error.code, error.param) == ("empty_prompt", "prompt")


@pytest.mark.parametrize("length", [10, 11, 500])
def test_a_prompt_that_leaves_no_room_for_an_answer(length: int) -> None:
    error = refusal(request((1,) * length))
    assert error.code == "prompt_too_long"
    assert f"the prompt has {length} tokens" in error.message
    assert "the context is 10 tokens (the model's own, or max_model_len)" in error.message


@pytest.mark.parametrize("prompt", [(100,), (-1,), (5, 100), (5, -1, 7), (2**40,)])
def test_a_prompt_id_outside_the_vocabulary(prompt: tuple[int, ...]) -> None:
    error = refusal(request(prompt))
    assert (error.code, error.param) == ("token_id_out_of_range", "prompt_token_ids")
    assert "0 to 99" in error.message


def test_a_stop_id_outside_the_vocabulary() -> None:
    """vllm#54196: it wrote into the logits of the neighbours."""
    error = refusal(request((1,), stop=(99, 100)))
    assert (error.code, error.param) == ("token_id_out_of_range", "stop_token_ids")


def test_the_first_and_the_last_id_are_in_the_vocabulary() -> None:
    assert request((0, 99), stop=(0, 99)).fitted(10, 100).prompt_token_ids == (0, 99)


def test_a_completion_is_an_answer_or_an_error() -> None:
    completion = Completion(request((1,)))
    assert (completion.outputs, completion.error, completion.num_cached_tokens) == ((), None, 0)


def test_finish_reasons_are_those_of_the_openai_api() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "error"]


def scoring(length: int, *continuations: tuple[int, ...]) -> Request:
    given = tuple(Continuation("x", token_ids) for token_ids in continuations)
    return Request.scoring(0, (1,) * length, given)


def test_continuations_fit_with_their_prompt_or_not_at_all() -> None:
    asked = scoring(7, (1, 2), (1, 2, 3, 4))  # the model reads all but the last token
    assert asked.fitted(10, 100) is asked
    assert asked.params.n == 2
    error = refusal(scoring(8, (1, 2), (1, 2, 3, 4)))
    assert (error.code, error.param) == ("prompt_too_long", "continuations")
    error = refusal(scoring(3, (1, 2), (100,)))
    assert (error.code, error.param) == ("token_id_out_of_range", "continuations")


def test_a_text_that_is_only_scored_may_fill_the_context() -> None:
    asked = Request(0, (1,) * 10, SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert asked.fitted(10, 100) is asked
    error = refusal(Request(0, (1,) * 11, asked.params))
    assert (error.code, error.param) == ("prompt_too_long", "prompt")


def test_the_text_of_scores_is_the_likeliest_continuation() -> None:
    scores = (
        Score("long", -3.0, 3, False, (-1.0,) * 3),
        Score("best", -0.5, 1, True, (-0.5,)),
        Score("last", -2.0, 2, False, (-1.0,) * 2),
    )
    assert Completion(Request(0, (1,), SamplingParams()), scores=scores).text == "best"


def test_the_answer_of_a_vote_is_the_first_for_the_winner() -> None:
    asked = Request(0, (1,), SamplingParams(n=4, temperature=1.0, vote="[ab]"))
    texts = ["none", "a", "b 1", "b 2"]
    outputs = tuple(
        SampleOutput(index, text, (1,), FinishReason.STOP) for index, text in enumerate(texts)
    )
    vote = VoteResult("b", {"a": 1, "b": 2}, 4)
    assert Completion(asked, outputs, vote=vote).text == "b 1"
    assert Completion(asked, outputs, vote=VoteResult(None, {}, 4)).text == "none"
