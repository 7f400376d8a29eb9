"""AccuracyBench: its figures are the model's, and the same however a run is batched."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagedrun.paged.bench.accuracy import (
    PROMPT_TOKENS,
    AccuracyBench,
    AccuracyBenchFigures,
    RunningText,
    Way,
)
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import UsageError
from tests.conftest import MakeModel
from tests.support.gguf_writer import KindOf, write_gguf

TEXT = RunningText("river.txt", "The water of the long river goes down to the sea. " * 10)


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("qwen3", "accuracy")


def bench(folder: Path, reference: Path | None = None, **settings: Any) -> AccuracyBench:
    """bfloat16 against float32; `flags` are the engine's of both."""
    flags = {"device": "cpu", **settings.pop("flags", {})}
    return AccuracyBench(
        Way("measured", folder, {"dtype": "bfloat16", **flags}),
        Way("reference", reference or folder, {"dtype": "float32", **flags}),
        **{"text": TEXT, "chunk": 48, "num_prompts": 6, "output": 8, **settings},
    )


def run(made: AccuracyBench) -> AccuracyBenchFigures:
    return made.run(lambda message: None)


def test_figures_do_not_depend_on_the_batch(folder: Path) -> None:
    """Not in the last bit: a second run elsewhere would else show differences that are none."""
    found = [
        run(bench(folder, stride=20, flags=flags))
        for flags in (
            {},
            {"max_num_seqs": 2, "max_num_batched_tokens": 24, "block_size": 8, "num_blocks": 20},
        )
    ]
    for way in ("measured", "reference"):
        configs = [each[way].pop("config") for each in found]  # type: ignore[misc]
        assert configs[0] != configs[1]
    assert found[0] == found[1]
    assert found[0]["scores"]["mean_difference"] > 0, "bfloat16 must show, or nothing was tested"


@pytest.mark.parametrize("stride", [None, 20])
def test_perplexity_is_that_of_transformers(folder: Path, stride: int | None) -> None:
    figures = run(bench(folder, stride=stride, num_prompts=1, output=1))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    [ids] = Tokenizer.from_folder(folder).encode_batch([TEXT.text], add_special_tokens=True)
    found: dict[int, float] = {}
    for begin in range(0, len(ids), stride or 48):
        window = torch.tensor([ids[begin : begin + 48]])
        with torch.no_grad():
            logprobs = model(window).logits[0].log_softmax(-1)
        for place in range(1, window.shape[1]):
            # The first window that has a token scores it, or one with more before it: no other.
            found.setdefault(begin + place, float(logprobs[place - 1, ids[begin + place]]))
        if begin + 48 >= len(ids):
            break
    assert figures["text"]["scored_tokens"] == len(found)
    mean = sum(found.values()) / len(found)
    reference = figures["reference"]
    assert reference["mean_logprob"] == pytest.approx(mean, abs=1e-4)
    assert reference["perplexity"] == pytest.approx(math.exp(-mean), rel=1e-4)


def test_a_way_agrees_with_itself_in_everything(folder: Path) -> None:
    way = Way("one", folder, {"dtype": "bfloat16", "device": "cpu"})
    figures = run(AccuracyBench(way, way, TEXT, chunk=48, num_prompts=6, output=8))
    answers, scores = figures["answers"], figures["scores"]
    assert (answers["same"], answers["differences"]) == (6, [])
    assert answers["positions_before"] == answers["positions"] > 0
    assert (scores["same_top"], scores["largest_difference"]) == (scores["tokens"], 0.0)
    assert figures["measured"] == {**figures["reference"], "name": "one"}


def test_an_answer_that_ends_where_another_goes_on_is_another(
    make_model: MakeModel, folder: Path
) -> None:
    """The same weights, with every second token an end: one answer is the other's beginning."""
    ending = make_model("qwen3", "accuracy-ends", eos_token_id=[*range(0, 320, 2)])
    figures = run(bench(ending, folder, flags={"dtype": "float32"}))
    answers = figures["answers"]
    assert figures["scores"]["largest_difference"] == 0
    assert figures["measured"]["generated_tokens"] < figures["reference"]["generated_tokens"]
    assert answers["differences"]
    assert all(each["gap"] is None for each in answers["differences"])
    assert answers["near_ties"] == 0
    short = figures["measured"]["generated_tokens"]
    assert answers["positions_before"] == short


def all_in(kind: str) -> KindOf:
    return lambda name: kind


@pytest.mark.long
def test_a_gguf_file_against_the_folder_that_it_was_made_of(folder: Path, tmp_path: Path) -> None:
    """Coarser codes are further away: the order of formats is what the command is for."""
    apart = {}
    for kind in ("F32", "Q8_0", "Q4_0"):
        path = tmp_path / f"{kind}.gguf"
        write_gguf(folder, path, all_in(kind))
        flags = {"dtype": "float32", "device": "cpu"}
        ways = Way(kind, path, flags, folder), Way("plain", folder, flags)
        figures = run(AccuracyBench(*ways, TEXT, chunk=48, num_prompts=1, output=2))
        apart[kind] = figures["scores"]["mean_difference"]
    assert apart["F32"] == 0 < 4 * apart["Q8_0"] < apart["Q4_0"]


def test_prompts_come_from_all_over_the_text(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    text = TEXT.tokenized(tokenizer, 48, 3)
    [ids] = text.documents
    assert [len(prompt) for prompt in text.prompts] == [PROMPT_TOKENS] * 3
    assert text.prompts[0] == ids[:PROMPT_TOKENS]
    assert text.prompts[-1] == ids[-PROMPT_TOKENS:]
    assert len(TEXT.tokenized(tokenizer, 48, 1000).prompts) == len(ids) // PROMPT_TOKENS


class TestRefusals:
    def test_of_a_stride_that_leaves_tokens_out(self, folder: Path) -> None:
        with pytest.raises(UsageError, match="stride is 49, more than a chunk of 48"):
            run(bench(folder, stride=49))

    def test_of_a_chunk_that_no_model_takes(self, folder: Path) -> None:
        with pytest.raises(UsageError, match="chunk 513 exceeds max_model_len 512"):
            run(bench(folder, chunk=513))
        with pytest.raises(UsageError, match="chunk 48 exceeds max_model_len 40"):
            run(bench(folder, flags={"max_model_len": 40}))

    def test_of_a_text_shorter_than_a_chunk(self, folder: Path) -> None:
        with pytest.raises(
            UsageError, match=r"river.txt has 500 tokens, fewer than a chunk of 501"
        ):
            run(bench(folder, chunk=501))

    def test_of_models_that_cut_the_text_otherwise(
        self, folder: Path, make_model: MakeModel
    ) -> None:
        other = make_model("llama", "accuracy")  # which begins texts with a token
        with pytest.raises(UsageError, match="tokenize the text differently"):
            run(bench(folder, other))
