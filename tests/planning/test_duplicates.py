"""Which requests are the same question, and who gets the answer."""

from typing import Any

from pagedrun.paged.llm import LLM
from pagedrun.paged.planning.duplicates import Duplicates, fan_out
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.every_field import CASES


def request(index: int, prompt: tuple[int, ...] = (1, 2, 3), **params: Any) -> Request:
    return Request(index, prompt, SamplingParams(**params))


def completion(asked: Request, num_cached: int = 1) -> Completion:
    outputs = tuple(
        SampleOutput(i, "ab", (7, 8), FinishReason.LENGTH) for i in range(asked.params.n)
    )
    return Completion(asked, outputs, num_cached)


def test_greedy_requests_with_the_same_tokens_are_one() -> None:
    found = Duplicates([request(0), request(1, seed=5, top_k=3), request(2), request(3, (1, 2))])
    assert [each.index for each in found.distinct] == [0, 3]
    assert found.num_duplicates == 2
    assert [each.index for each in found.asked[0]] == [0, 1, 2]
    assert found.num_copied_tokens() == 6
    assert found.num_copied_tokens(without=[request(0)]) == 0


IGNORED_BY_GREEDY = {"n", "seed", "top_p", "top_k", "min_p"}


def test_what_can_change_the_answer_keeps_requests_apart() -> None:
    for name, case in CASES.items():
        others = SamplingParams().override({**case.beside, name: case.good})
        plain = SamplingParams().override(case.beside)
        found = Duplicates([Request(0, (1, 2), plain), Request(1, (1, 2), others)])
        num_distinct = 1 if name in IGNORED_BY_GREEDY else 2
        assert len(found.distinct) == num_distinct, name
        assert found.num_duplicates == 2 - num_distinct, name


def test_sampled_requests_are_never_the_same() -> None:
    """Each row draws its own numbers, whatever the seed."""
    found = Duplicates([request(i, temperature=1.0, seed=3, n=2) for i in range(3)])
    assert len(found.distinct) == 3
    assert [each.params.n for each in found.distinct] == [2, 2, 2]


def test_the_samples_of_a_greedy_request_are_one() -> None:
    asked = [request(0, n=3), request(1), request(2, n=2)]
    found = Duplicates(asked)
    [alone] = found.distinct
    assert (alone.index, alone.params.n) == (0, 1)
    answers = list(fan_out(completion(alone), found.asked[0]))
    assert [answer.request for answer in answers] == asked
    assert [len(answer.outputs) for answer in answers] == [3, 1, 2]
    assert [output.index for output in answers[0].outputs] == [0, 1, 2]
    assert {output.token_ids for answer in answers for output in answer.outputs} == {(7, 8)}
    assert [answer.num_cached_tokens for answer in answers] == [1, 3, 3]
    assert [answer.is_duplicate for answer in answers] == [False, True, True]


def test_an_error_is_everybodys() -> None:
    found = Duplicates([request(0), request(1)])
    failed = Completion(found.distinct[0], error=RowError("nan_logits", "no token"))
    answers = list(fan_out(failed, found.asked[0]))
    assert [answer.request.index for answer in answers] == [0, 1]
    assert all(answer.error is failed.error and not answer.outputs for answer in answers)
    assert [answer.num_cached_tokens for answer in answers] == [0, 0]


def test_a_request_that_is_alone_answers_itself() -> None:
    asked = request(4, temperature=1.0, n=2)
    assert list(fan_out(completion(asked), ())) == [completion(asked)]


def test_the_engine_computes_a_duplicate_once(make_model: MakeModel) -> None:
    llm = LLM(model=make_model("qwen3", "duplicates"), dtype="float32")
    prompts: list[Any] = [[5, 6, 7, 8] * 5, [9, 9], [5, 6, 7, 8] * 5, [9, 9], [5, 6, 7, 8] * 5]
    greedy = SamplingParams(max_tokens=6, ignore_eos=True)
    drawn = SamplingParams(max_tokens=6, ignore_eos=True, temperature=1.0, seed=1)
    several = SamplingParams(max_tokens=6, ignore_eos=True, n=3)
    completions = llm.generate(prompts, [greedy, drawn, greedy, drawn, several])
    texts = [[output.token_ids for output in each.outputs] for each in completions]
    assert texts[0] == texts[2] == texts[4][:1] == texts[4][1:2]
    assert texts[1] != texts[3]
    report = llm.report
    tokens = report["tokens"]
    assert tokens["prompt"] == sum(map(len, prompts)) == tokens["cached"] + tokens["computed"]
    assert tokens["cached"] == sum(each.num_cached_tokens for each in completions)
    assert tokens["generated"] == 6 * 7
    assert tokens["generated_copied"] == 6 * 4
    assert report["prefix"]["duplicate_rows"] == 2
    assert report["prefix"]["hit_rate"] <= report["prefix"]["achievable_hit_rate"]
