"""The bundled demo: model folder, prompts, and the training that makes them."""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from pagedrun.recipes.demo import demo_model_folder, demo_prompts_path
from pagedrun.recipes.demo.training.batch import Batch, BatchMaker, BatchSpec
from pagedrun.recipes.demo.training.directory import directory_text, sample_entries
from pagedrun.recipes.demo.training.evaluate import exact_match
from pagedrun.recipes.demo.training.folder import write_folder
from pagedrun.recipes.demo.training.model import DemoModel, ModelConfig
from pagedrun.recipes.demo.training.prompts import PROMPTS_FILE, write_prompts
from pagedrun.recipes.demo.training.tokenizer import build_tokenizer, turn
from pagedrun.recipes.demo.training.train import TrainingConfig, answer_loss, run_model, train

Row = dict[str, Any]

TINY = ModelConfig(hidden_size=32, num_hidden_layers=2, head_dim=16, intermediate_size=48)
ENTRY = re.compile(r"(\w+ \w+): room (\d{3}), phone (\d{4}), team (\w+)\.")
NAME_IN_QUESTION = re.compile(r"[A-Z]\w+ [A-Z]\w+")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    lines = demo_prompts_path().read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def shipped_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo_model_folder())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


def read_directory(system: str) -> dict[str, tuple[str, str, str]]:
    """Parse a system prompt without the code that wrote it: name -> room, phone, team."""
    header, *lines = system.split("\n")
    assert not ENTRY.fullmatch(header)
    matches = [ENTRY.fullmatch(line) for line in lines]
    people = {m[1]: (m[2], m[3], m[4]) for m in matches if m is not None}
    assert len(people) == len(lines), "a line is no entry, or a name occurs twice"
    return people


def answer_from(people: dict[str, tuple[str, str, str]], question: str) -> str:
    """Answer by keywords, without the phrasings' own table."""
    names = [match for match in NAME_IN_QUESTION.findall(question) if match in people]
    if not names:  # "Show Ada Moss." is capitalised from its first word on
        names = [name for name in people if name in question]
    (name,) = names
    room, phone, team = people[name]
    if question.startswith("Show"):
        return f"{name}: room {room}, phone {phone}, team {team}."
    if "team" in question:
        return f"{name} is on team {team}."
    if re.search("phone|call|dial", question):
        return f"{name} has phone {phone}."
    assert re.search("room|find", question)
    return f"{name} is in room {room}."


def greedy_answer(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> tuple[str, int]:
    """Return the decoded answer and the last token of one conversation."""
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, do_sample=False, max_new_tokens=32)[0]
    answer = output[inputs["input_ids"].shape[1] :]
    return tokenizer.decode(answer, skip_special_tokens=True), int(answer[-1])


def test_the_folder_has_the_ordinary_layout() -> None:
    folder = demo_model_folder()
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["torch_dtype"] == "bfloat16"
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        names = list(file.keys())
        assert "lm_head.weight" not in names  # tied
        assert {file.get_tensor(name).dtype for name in names} == {torch.bfloat16}
    generation = json.loads((folder / "generation_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert generation["eos_token_id"] == [
        tokenizer.token_to_id("<|im_end|>"),
        tokenizer.token_to_id("<|endoftext|>"),
    ]
    assert tokenizer.get_vocab_size() <= config["vocab_size"]


def test_the_shipped_tokenizer_and_prompts_are_what_the_code_makes(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    shipped = Tokenizer.from_file(str(demo_model_folder() / "tokenizer.json"))
    assert shipped.get_vocab() == tokenizer.get_vocab()
    write_prompts(tmp_path)
    assert (tmp_path / PROMPTS_FILE).read_bytes() == demo_prompts_path().read_bytes()


def test_the_tokenizer_round_trips_any_text(shipped_tokenizer: Any) -> None:
    text = "Ada Moss's room:\n\n  naïve 12,345 – Привет 你好 🙂\t<end>"
    ids = shipped_tokenizer(text)["input_ids"]
    assert shipped_tokenizer.decode(ids) == text


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


def test_prompts_are_well_formed_and_answerable(rows: list[Row]) -> None:
    assert len(rows) >= 200
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert list(row) == ["id", "messages", "expected", "kind", "directory"]
        assert [message["role"] for message in row["messages"]] == ["system", "user"]
        system, user = (message["content"] for message in row["messages"])
        assert row["expected"] == answer_from(read_directory(system), user)
    kinds = Counter(row["kind"] for row in rows)
    assert set(kinds) == {"room", "phone", "team", "show"}
    assert min(kinds.values()) >= 20


def test_every_entry_of_every_directory_is_shown(rows: list[Row]) -> None:
    systems = {row["directory"]: row["messages"][0]["content"] for row in rows}
    assert len(systems) >= 5
    assert len(set(systems.values())) == len(systems)
    assert len({len(read_directory(system)) for system in systems.values()}) >= 4
    questions = {(row["directory"], row["messages"][1]["content"]) for row in rows}
    assert len(questions) == len(rows)
    for directory, system in systems.items():
        for name in read_directory(system):
            assert (directory, f"Show {name}.") in questions


def test_rows_of_one_directory_are_spread_over_the_file(rows: list[Row]) -> None:
    changes = sum(a["directory"] != b["directory"] for a, b in pairwise(rows))
    assert changes > len(rows) / 2


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


def test_the_shipped_model_answers_its_prompts(rows: list[Row], shipped_tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(demo_model_folder(), dtype=torch.float32)
    chosen = rows[:24]  # the file is shuffled: several directories, all kinds
    answers = [greedy_answer(model, shipped_tokenizer, row["messages"]) for row in chosen]
    num_exact = sum(
        text == row["expected"] and last == shipped_tokenizer.eos_token_id
        for (text, last), row in zip(answers, chosen, strict=True)
    )
    assert num_exact >= 23


def cached_directory(model: Any, ids: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each layer's keys and values [1, kv heads, num_tokens, head_dim]."""
    cache = DynamicCache()
    model(ids, past_key_values=cache)
    return [(layer.keys, layer.values) for layer in cache.layers]


def num_exact_from_cache(
    model: Any, tokenizer: Any, cached: list[tuple[torch.Tensor, torch.Tensor]], rows: list[Row]
) -> int:
    """Count the rows that are answered exactly on top of a given cached directory."""
    num_exact = 0
    for row in rows:
        question = turn("user", row["messages"][1]["content"]) + "<|im_start|>assistant\n"
        prompt = tokenizer(question)["input_ids"]
        answer = tokenizer(row["expected"] + "<|im_end|>")["input_ids"]
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(cached):
            cache.update(keys, values, layer)
        logits = model(torch.tensor([prompt + answer]), past_key_values=cache).logits[0]
        num_exact += logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer
    return num_exact


def test_a_foreign_block_in_the_cache_spoils_an_answer(
    rows: list[Row], shipped_tokenizer: Any
) -> None:
    """What the demo is for: a wrong block mapping must show in the answers."""
    model = AutoModelForCausalLM.from_pretrained(demo_model_folder(), dtype=torch.float32)
    shown = [row for row in rows if row["directory"] == "staff-16" and row["kind"] == "show"]
    system = shown[0]["messages"][0]["content"]
    others = [row for row in rows if row["directory"] == "staff-32"]
    foreign_system = others[0]["messages"][0]["content"]
    with torch.inference_mode():
        own, foreign = (
            cached_directory(
                model, shipped_tokenizer(turn("system", text), return_tensors="pt")["input_ids"]
            )
            for text in (system, foreign_system)
        )
        assert num_exact_from_cache(model, shipped_tokenizer, own, shown) == 16
        assert num_exact_from_cache(model, shipped_tokenizer, foreign, shown) == 0
        for block_id in (3, 9, 16):
            block = slice(16 * block_id, 16 * (block_id + 1))
            mixed = [(keys.clone(), values.clone()) for keys, values in own]
            for (keys, values), (foreign_keys, foreign_values) in zip(mixed, foreign, strict=True):
                keys[:, :, block] = foreign_keys[:, :, block]
                values[:, :, block] = foreign_values[:, :, block]
            assert num_exact_from_cache(model, shipped_tokenizer, mixed, shown) <= 15


def test_directory_text_has_no_newline_at_the_end() -> None:
    entries = sample_entries(np.random.default_rng(0), 1, 2, crowded=False).entries(0)
    text = directory_text("Header.", entries)
    assert len(read_directory(text)) == 2
    assert text.endswith(".")
