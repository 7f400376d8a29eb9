"""The prompts that ship with the model: chats over a few directories, with the exact answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pagedrun.recipes.demo.training.directory import (
    ANSWERS,
    HEADERS,
    QUESTIONS,
    Entry,
    Kind,
    directory_text,
    sample_entries,
)
from pagedrun.recipes.demo.training.folder import write_text

PROMPTS_FILE = "prompts.jsonl"
PROMPTS_SEED = 20_26  # fixed before any model was measured; unrelated to the training seed
DIRECTORY_SIZES = (16, 20, 24, 32, 36, 40)
NUM_FACT_QUESTIONS = 28  # per directory, besides one "Show" for each entry


def write_prompts(folder: Path) -> None:
    """Write prompts.jsonl. Its bytes depend on nothing but this file and directory.py."""
    lines = [json.dumps(row, ensure_ascii=False) for row in build_rows(PROMPTS_SEED)]
    write_text(folder / PROMPTS_FILE, "\n".join(lines) + "\n")


def build_rows(seed: int) -> list[dict[str, Any]]:
    """Return the rows, shuffled across directories so that neighbours rarely share a prefix."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for index, size in enumerate(DIRECTORY_SIZES):
        entries = sample_entries(rng, 1, size, crowded=False).entries(0)
        system = directory_text(HEADERS[index % len(HEADERS)], entries)
        for number, (kind, question, entry) in enumerate(_questions(rng, entries), start=1):
            rows.append(
                {
                    "id": f"staff-{size}-{number:02d}",
                    "messages": [
                        {"role": "system", "content": system},
                        {"role": "user", "content": entry.fill(question)},
                    ],
                    "expected": entry.fill(ANSWERS[kind]),
                    "kind": kind,
                    "directory": f"staff-{size}",
                }
            )
    return [rows[i] for i in rng.permutation(len(rows))]


def _questions(
    rng: np.random.Generator, entries: tuple[Entry, ...]
) -> Iterator[tuple[Kind, str, Entry]]:
    """Yield "Show X." for every entry, then distinct questions for single facts."""
    for entry in entries:
        yield "show", QUESTIONS["show"][0], entry
    facts: list[tuple[Kind, str]] = [
        (kind, question) for kind in QUESTIONS if kind != "show" for question in QUESTIONS[kind]
    ]
    choices = rng.permutation(len(facts) * len(entries))[:NUM_FACT_QUESTIONS]
    for choice in choices:
        kind, question = facts[choice % len(facts)]
        yield kind, question, entries[choice // len(facts)]
