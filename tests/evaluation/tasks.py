"""Three small tasks about the staff directories of the bundled prompts, as files of the harness."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

DEMO = Path(__file__).resolve().parents[2] / "recipes" / "demo"
NAMES = ("staff_choice", "staff_text", "staff_answer")
NUM_PEOPLE = 6


def write_tasks(folder: Path) -> None:
    """Write a multiple choice, a text to foretell and a question to answer, and their documents."""
    chats = _chats()
    documents: dict[str, Sequence[dict[str, Any]]] = {
        "staff_choice": [_choice(chat) for chat in chats if "team" in chat["expected"]],
        "staff_text": [{"page": chat["messages"][0]["content"]} for chat in chats[:3]],
        "staff_answer": [{"text": _text(chat), "answer": chat["expected"]} for chat in chats],
    }
    settings: dict[str, dict[str, Any]] = {
        "staff_choice": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{text}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
        "staff_text": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{page}}",
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
        },
        "staff_answer": {
            "output_type": "generate_until",
            "doc_to_text": "{{text}}",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": [".\n", "Olive"], "max_gen_toks": 24},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name in NAMES:
        data = folder / f"{name}.jsonl"
        data.write_text("".join(f"{json.dumps(each)}\n" for each in documents[name]))
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(data)},
                "cache_dir": str(folder / "cache"),
            },
            "test_split": "test",
            "num_fewshot": 0,
            **settings[name],
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


def _chats() -> list[dict[str, Any]]:
    """Return questions about the first people of three directories, a few each."""
    rows = [json.loads(line) for line in (DEMO / "prompts.jsonl").read_text().splitlines()]
    chats: list[dict[str, Any]] = []
    for directory in dict.fromkeys(row["directory"] for row in rows):
        of_it = [row for row in rows if row["directory"] == directory]
        page = "\n".join(of_it[0]["messages"][0]["content"].split("\n")[: NUM_PEOPLE + 1])
        found = [row for row in of_it if row["expected"].split(" is ")[0].split(" has ")[0] in page]
        for row in found[:3]:
            system = {"role": "system", "content": page}
            chats.append({**row, "messages": [system, row["messages"][1]]})
        if len(chats) >= 9:
            break
    return chats


def _text(chat: dict[str, Any]) -> str:
    turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in chat["messages"]]
    return f"{''.join(turns)}<|im_start|>assistant\n"


def _choice(chat: dict[str, Any]) -> dict[str, Any]:
    """Return the question with the teams of its directory to choose from."""
    page = chat["messages"][0]["content"]
    teams = sorted({line.rsplit(" ", 1)[1].rstrip(".") for line in page.split("\n")[1:]})
    head, _, team = chat["expected"].rstrip(".").rpartition(" ")
    return {"text": _text(chat) + head, "choices": teams, "answer": teams.index(team)}
