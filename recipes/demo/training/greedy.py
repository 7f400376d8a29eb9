"""Accuracy of a finished folder on its own prompts, decoded token by token by transformers."""

import json
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pagedrun.recipes.demo.training.directory import QUESTIONS
from pagedrun.recipes.demo.training.prompts import PROMPTS_FILE

BATCH_SIZE = 32
MAX_NEW_TOKENS = 32


def greedy_exact(folder: Path, dtype: torch.dtype) -> dict[str, tuple[int, int]]:
    """Return (exact answers, rows) for each kind of question, and for `"all"`."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    lines = (folder / PROMPTS_FILE).read_text(encoding="utf-8").splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: str(row["directory"]))  # less padding
    num_exact: Counter[str] = Counter()
    num_rows: Counter[str] = Counter()
    for start in range(0, len(rows), BATCH_SIZE):
        chosen = rows[start : start + BATCH_SIZE]
        inputs = tokenizer.apply_chat_template(
            [row["messages"] for row in chosen],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        output = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        answers = tokenizer.batch_decode(
            output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        for row, answer in zip(chosen, answers, strict=True):
            for key in (row["kind"], "all"):
                num_rows[key] += 1
                num_exact[key] += answer == row["expected"]
    return {kind: (num_exact[kind], num_rows[kind]) for kind in (*QUESTIONS, "all")}
