"""The training that makes the demo: its data, its model, and that it made what is shipped.

A wheel leaves the training out, so that these tests need a checkout.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from pagedrun.recipes.demo import demo_model_folder, demo_prompts_path
from pagedrun.recipes.demo.training.batch import Batch, BatchMaker, BatchSpec
from pagedrun.recipes.demo.training.directory import directory_text, sample_entries
from pagedrun.recipes.demo.training.evaluate import exact_match
from pagedrun.recipes.demo.training.folder import write_folder
from pagedrun.recipes.demo.training.model import DemoModel, ModelConfig
from pagedrun.recipes.demo.training.prompts import PROMPTS_FILE, write_prompts
from pagedrun.recipes.demo.training.tokenizer import build_tokenizer
from pagedrun.recipes.demo.training.train import TrainingConfig, answer_loss, run_model, train
from tests.recipes.demo_chats import Row, answer_from, read_directory, turn

TINY = ModelConfig(hidden_size=32, num_hidden_layers=2, head_dim=16, intermediate_size=48)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


def test_the_shipped_tokenizer_and_prompts_are_what_the_code_makes(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    shipped = Tokenizer.from_file(str(demo_model_folder() / "tokenizer.json"))
    assert shipped.get_vocab() == tokenizer.get_vocab()
    write_prompts(tmp_path)
    assert (tmp_path / PROMPTS_FILE).read_bytes() == demo_prompts_path().read_bytes()


def test_the_chat_template_writes_what_training_saw(
    shipped_tokenizer: Any, tokenizer: Tokenizer, rows: list[Row]
) -> None:
    messages = rows[0]["messages"]
    text = "".join(turn(message["role"], message["content"]) for message in messages)
    text += "<|im_start|>assistant\n"
    prompt = shipped_tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True
    )
    assert prompt["input_ids"] == tokenizer.encode(text).ids


def test_answers_end_with_the_end_of_turn_within_thirty_tokens(
    tokenizer: Tokenizer, rows: list[Row]
) -> None:
    assert max(len(tokenizer.encode(row["expected"]).ids) + 1 for row in rows) <= 30


def make_batch(tokenizer: Tokenizer, *, crowded: bool, num_position_slots: int) -> Batch:
    spec = BatchSpec(3, 7, 9, crowded=crowded, num_position_slots=num_position_slots)
    return BatchMaker(tokenizer).make(np.random.default_rng(5), spec)


@pytest.mark.parametrize("crowded", [False, True])
def test_batches_are_what_the_tokenizer_makes_of_their_text(
    tokenizer: Tokenizer, crowded: bool
) -> None:
    batch = make_batch(tokenizer, crowded=crowded, num_position_slots=7)
    for directory, questions, targets, weights in zip(
        batch.directory_ids, batch.question_ids, batch.target_ids, batch.loss_weights, strict=True
    ):
        text = tokenizer.decode(directory.tolist(), skip_special_tokens=False)
        assert tokenizer.encode(text).ids == directory.tolist()
        match = re.fullmatch(r"<\|im_start\|>system\n(.*)<\|im_end\|>\n", text, re.DOTALL)
        assert match is not None
        people = read_directory(match[1])
        for ids, next_ids, weight in zip(questions, targets, weights, strict=True):
            whole = [*ids.tolist(), int(next_ids[-1])]
            dialogue = tokenizer.decode(whole, skip_special_tokens=False)
            dialogue = re.sub(r"(<\|im_end\|>)+$", "<|im_end|>", dialogue)  # padding
            encoded = tokenizer.encode(dialogue).ids
            assert encoded == whole[: len(encoded)]
            asked, answer = re.findall(r"(?:user|assistant)\n(.*?)<\|im_end\|>", dialogue)
            assert answer == answer_from(people, asked)
            trained = tokenizer.decode(next_ids[weight > 0].tolist(), skip_special_tokens=False)
            assert trained == answer + "<|im_end|>"


def test_sources_point_at_the_fact_that_comes_next(tokenizer: Tokenizer) -> None:
    batch = make_batch(tokenizer, crowded=True, num_position_slots=7)
    is_fact = batch.sources >= 0
    assert (batch.loss_weights[is_fact] == 1.0).all()
    assert (is_fact.sum(-1) >= 1).all()
    rows = torch.arange(3)[:, None, None].expand_as(batch.sources)
    copied = batch.directory_ids[rows[is_fact], batch.sources[is_fact]]
    assert torch.equal(copied, batch.target_ids[is_fact])
    places = batch.fact_places[batch.asked]  # the asked entry's own facts
    assert ((places[:, :, None] == batch.sources[..., None]).any(-1) == is_fact).all()


def test_gaps_move_whole_entries_and_questions_follow(tokenizer: Tokenizer) -> None:
    plain = make_batch(tokenizer, crowded=False, num_position_slots=7)
    num_tokens = plain.directory_ids.shape[1]
    assert torch.equal(plain.directory_positions, torch.arange(num_tokens).expand(3, -1))
    gapped = make_batch(tokenizer, crowded=False, num_position_slots=60)
    gaps = gapped.directory_positions.diff(dim=1) - 1
    assert gaps.sum() > 0
    assert (gaps % 17 == 0).all()  # whole entries of 17 tokens
    for batch in (plain, gapped):
        assert (batch.question_positions[..., 0] == batch.directory_positions[:, -1:] + 1).all()


def test_crowded_directories_share_halves_of_names() -> None:
    table = sample_entries(np.random.default_rng(0), 1, 24, crowded=True)
    names = [entry.name.split() for entry in table.entries(0)]
    assert len({tuple(name) for name in names}) == 24
    assert len({first for first, _ in names}) <= 6
    assert len({last for _, last in names}) <= 6


def test_training_computes_what_transformers_computes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = DemoModel(TINY)
    for parameter in model.parameters():  # far from symmetric, and exact in bfloat16
        parameter.data = (parameter.data + torch.randn_like(parameter) * 0.1).bfloat16().float()
    write_folder(tmp_path, model, tokenizer)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    batch = make_batch(tokenizer, crowded=False, num_position_slots=60)
    num_directory_tokens = batch.directory_ids.shape[1]
    with torch.inference_mode():
        hidden = run_model(model, batch).hidden
        logits = model.logits(hidden)
        for question in range(2):
            start = num_directory_tokens + question * batch.question_ids.shape[2]
            expected = theirs(
                input_ids=torch.cat([batch.directory_ids, batch.question_ids[:, question]], 1),
                position_ids=torch.cat(
                    [batch.directory_positions, batch.question_positions[:, question]], 1
                ),
            ).logits
            ours = logits[:, start : start + batch.question_ids.shape[2]]
            torch.testing.assert_close(
                ours, expected[:, num_directory_tokens:], atol=2e-4, rtol=2e-4
            )


def test_a_short_training_gives_a_folder_that_loads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = TrainingConfig(num_steps=3, max_entries=4, token_scale=0.2, model=TINY)
    lines: list[str] = []
    model = train(config, tokenizer, lines.append)
    assert lines[-1].startswith("step 3 of 3: 4 entries")
    torch.manual_seed(config.seed)
    untrained = DemoModel(TINY).state_dict()
    for name, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), name
        assert not torch.equal(tensor, untrained[name]), f"{name} was not trained"
    write_folder(tmp_path, model, tokenizer)
    write_prompts(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.bfloat16()), name
    assert not list(tmp_path.glob(".*")), "a temporary file was left behind"


def test_exactness_is_judged_by_every_answer_token(tokenizer: Tokenizer) -> None:
    batch = make_batch(tokenizer, crowded=False, num_position_slots=7)
    model = DemoModel(TINY)
    _, exact = answer_loss(model, run_model(model, batch), batch)
    assert exact.shape == (3, 9)
    assert not exact.any()  # an untrained model cannot know an answer
    assert exact_match(model, tokenizer, 4, 10) == 0.0


def test_directory_text_has_no_newline_at_the_end() -> None:
    entries = sample_entries(np.random.default_rng(0), 1, 2, crowded=False).entries(0)
    text = directory_text("Header.", entries)
    assert len(read_directory(text)) == 2
    assert text.endswith(".")
