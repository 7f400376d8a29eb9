"""Exact-match accuracy: on fresh random directories, and of a finished folder on its prompts."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from pagedrun.recipes.demo.training.batch import BatchMaker, BatchSpec
from pagedrun.recipes.demo.training.directory import QUESTIONS
from pagedrun.recipes.demo.training.model import DemoModel
from pagedrun.recipes.demo.training.prompts import PROMPTS_FILE
from pagedrun.recipes.demo.training.train import answer_loss, run_model

SIZES = (4, 8, 16, 24, 32, 40, 48, 60)
HELD_OUT_SEED = 1_000_003  # no training run uses it
NUM_QUESTIONS_PER_DIRECTORY = 24


def exact_match(
    model: DemoModel, tokenizer: Tokenizer, num_entries: int, num_questions: int
) -> float:
    """Return the share of exact answers over at least `num_questions` questions, in float32.

    Weights are rounded to bfloat16 first, as they ship. Directories have no gaps in their
    positions, and their names are drawn from the whole lists.
    """
    rng = np.random.default_rng([HELD_OUT_SEED, num_entries])
    maker = BatchMaker(tokenizer)
    rounded = DemoModel(model.config)
    rounded.load_state_dict({k: v.bfloat16().float() for k, v in model.state_dict().items()})
    spec = BatchSpec(
        num_directories=8,
        num_entries=num_entries,
        num_questions=NUM_QUESTIONS_PER_DIRECTORY,
        crowded=False,
        num_position_slots=num_entries,
    )
    num_batches = -(-num_questions // (spec.num_directories * spec.num_questions))
    num_exact = 0
    with torch.inference_mode():
        for _ in range(num_batches):
            batch = maker.make(rng, spec)
            _, exact = answer_loss(rounded, run_model(rounded, batch), batch)
            num_exact += int(exact.sum())
    return num_exact / (num_batches * spec.num_directories * spec.num_questions)


BATCH_SIZE = 32
MAX_NEW_TOKENS = 32


def greedy_exact(folder: Path, dtype: torch.dtype) -> dict[str, tuple[int, int]]:
    """Return (exact answers, rows) of a finished folder for each kind of question, and for `"all"`.

    Transformers decodes the folder's own prompts.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer  # training does not need it

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
