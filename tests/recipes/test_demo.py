"""The bundled demo: its model folder and its prompts."""

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache

from pagedrun.recipes.demo import demo_model_folder
from tests.recipes.demo_chats import Row, answer_from, read_directory, turn


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


def test_the_tokenizer_round_trips_any_text(shipped_tokenizer: Any) -> None:
    text = "Ada Moss's room:\n\n  naïve 12,345 – Привет 你好 🙂\t<end>"
    ids = shipped_tokenizer(text)["input_ids"]
    assert shipped_tokenizer.decode(ids) == text


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


def test_the_shipped_model_answers_its_prompts(rows: list[Row], shipped_tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(demo_model_folder(), dtype=torch.float32)
    chosen = rows[:10]  # the file is shuffled: several directories, all kinds
    answers = [greedy_answer(model, shipped_tokenizer, row["messages"]) for row in chosen]
    num_exact = sum(
        text == row["expected"] and last == shipped_tokenizer.eos_token_id
        for (text, last), row in zip(answers, chosen, strict=True)
    )
    assert num_exact >= 9


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
