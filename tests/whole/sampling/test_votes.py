"""Samples that vote: the winner and the samples are those of the full run, and fewer are drawn."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.paged.values.vote import Ballot, vote_reader
from pagedrun.recipes.demo import demo_model_folder
from tests.conftest import MakeModel
from tests.support.command import Command
from tests.support.engines import load_engine
from tests.support.jsonl import read_jsonl, write_jsonl

N = 9
VOTE = r"([aeiou])"  # the first vowel of an answer: often there, and not always the same
PLACES: list[dict[str, Any]] = [
    {"max_num_seqs": 1},
    {"max_num_seqs": 3, "max_num_batched_tokens": 5},
    {"num_blocks": 24, "prefix_caching": False},
    {"num_blocks": 24, "prefix_caching": False, "preemption_mode": "recompute"},
]


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    return make_model("llama", "votes")


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return load_engine(EngineConfig(model=model, dtype="float32", block_size=4))


def requests(model: Path, **params: Any) -> list[Request]:
    texts = [f"shared words {number}" for number in range(6)]
    ids = Tokenizer.from_folder(model).encode_batch(texts, add_special_tokens=True)
    asked = SamplingParams(**{"n": N, "max_tokens": 12, "temperature": 1.0, "seed": 3, **params})
    return [Request(index, tuple(own), asked) for index, own in enumerate(ids)]


def said_for(row: dict[str, Any]) -> str | None:
    """Check that text and finish reason of a row are those of the first sample that voted for the
    winner; return what the text votes for."""
    read, winner = vote_reader(VOTE), row["vote"]["winner"]
    first = next(each for each in row["outputs"] if read(each["text"]) == winner)
    assert (row["text"], row["finish_reason"]) == (first["text"], first["finish_reason"])
    return read(row["text"])


def answered(engine: Engine, rows: list[Request], **config: Any) -> dict[int, Completion]:
    run = engine.reconfigured(**config).start(rows)
    completions = list(run)
    assert len(completions) == len(rows)
    run.scheduler.check()
    return {each.request.index: each for each in completions}


def test_the_winner_and_the_samples_are_those_of_the_full_run(engine: Engine, model: Path) -> None:
    whole, voted = answered(engine, requests(model)), answered(engine, requests(model, vote=VOTE))
    for index, completion in voted.items():
        samples = whole[index].outputs
        texts = [each.text for each in samples]
        everyone = Ballot.of(VOTE, N, texts).result
        assert completion.vote == Ballot.decided(VOTE, N, texts)
        assert completion.vote.winner == everyone.winner
        assert completion.outputs == samples[: completion.vote.drawn]
    lost = [each for each in voted.values() if each.text != each.outputs[0].text]
    assert lost, "the first sample wins every vote: nothing shows whose text it is"
    drawn = [each.vote.drawn for each in voted.values() if each.vote is not None]
    assert N // 2 < min(drawn) < max(drawn), "all votes alike show nothing"
    assert sum(drawn) < N * len(voted)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_wherever_it_runs(engine: Engine, model: Path, place: dict[str, Any]) -> None:
    rows = requests(model, vote=VOTE)
    here, there = answered(engine, rows), answered(engine, rows, **place)
    assert [(each.outputs, each.vote) for each in here.values()] == [
        (there[index].outputs, there[index].vote) for index in here
    ]


def test_rows_that_are_alike_and_greedy_vote_with_one_answer(engine: Engine, model: Path) -> None:
    [row, *_] = requests(model, temperature=0.0, vote="(?s).")
    voted = answered(engine, [row, Request(1, row.prompt_token_ids, row.params)])
    for completion in voted.values():
        assert completion.vote is not None
        assert completion.vote.drawn == len(completion.outputs) == N // 2 + 1
        assert [output.index for output in completion.outputs] == list(range(N // 2 + 1))


def test_samples_that_vote_for_nothing_are_all_drawn(engine: Engine, model: Path) -> None:
    voted = answered(engine, requests(model, vote="never written"))
    for completion in voted.values():
        assert completion.vote is not None
        assert (completion.vote.winner, completion.vote.counts) == (None, {})
        assert completion.text == completion.outputs[0].text
        assert len(completion.outputs) == N


def test_votes_in_the_output_the_report_and_after_a_resume(
    model: Path, tmp_path: Path, pagedrun: Command
) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": f"shared words {number}", "expected": "a"} for number in range(4)
    ]
    rows.append({"prompt": "x", "vote": "(?=a)"})
    rows.append({"prompt": "x", "n": 2, "vote": None, "sampling_params": {"vote": "json:a"}})
    source, output = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    command = ["generate", source, "-o", output, "--model", model, "--n", N, "--vote", VOTE]
    command += ["--temperature", 1, "--max-tokens", 12, "--ordered", "--quiet"]
    assert pagedrun(*command)[0] == 3
    made = read_jsonl(output)
    for row in made[:4]:
        assert list(row["vote"]) == ["winner", "counts", "drawn"]
        assert len(row["outputs"]) == row["vote"]["drawn"]
        assert [each["index"] for each in row["outputs"]] == list(range(row["vote"]["drawn"]))
        assert said_for(row) == row["vote"]["winner"]
    assert (made[4]["error"]["code"], made[4]["error"]["param"]) == ("invalid_param", "vote")
    assert made[5]["vote"] == {"winner": None, "counts": {}, "drawn": 2}
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text())
    drawn = sum(row["vote"]["drawn"] for row in (*made[:4], made[5]))
    assert report["votes"] == {"rows": 5, "samples": 4 * N + 2, "drawn": drawn}
    correct = sum(row["vote"]["winner"] == "a" for row in made[:4])
    assert report["accuracy"] == {"expected": 4, "correct": correct}
    whole = output.read_bytes()
    output.write_bytes(b"".join(whole.splitlines(keepends=True)[1:3]))
    assert pagedrun(*command, "--resume")[0] == 3
    again = read_jsonl(output)
    assert [row["outputs"] for row in again] == [row["outputs"] for row in made]
    assert [row["text"] for row in again] == [row["text"] for row in made]
    assert [row.get("vote") for row in again] == [row.get("vote") for row in made]


@pytest.mark.long
def test_two_hundred_rows_of_the_demo(tmp_path: Path, pagedrun: Command) -> None:
    """Same winners, fewer tokens."""
    prompts = demo_model_folder() / "prompts.jsonl"
    command = ["generate", prompts, "--limit", 200, "--n", 16, "--temperature", 1, "--quiet"]
    vote = r"(?s)^\s*(\S+)"
    assert pagedrun(*command, "-o", tmp_path / "whole.jsonl")[0] == 0
    assert pagedrun(*command, "-o", tmp_path / "voted.jsonl", "--vote", vote)[0] == 0
    whole = {row["index"]: row for row in read_jsonl(tmp_path / "whole.jsonl")}
    num_tokens = [0, 0]
    for row in read_jsonl(tmp_path / "voted.jsonl"):
        full = whole[row["index"]]
        everyone = Ballot.of(vote, 16, [each["text"] for each in full["outputs"]]).result
        assert row["vote"]["winner"] == everyone.winner
        assert row["outputs"] == full["outputs"][: row["vote"]["drawn"]]
        num_tokens[0] += full["usage"]["completion_tokens"]
        num_tokens[1] += row["usage"]["completion_tokens"]
    assert num_tokens[1] < 0.8 * num_tokens[0]
