"""Greedy answers of a GGUF model, and those of Transformers with the same weights unpacked.

    python benchmarks/gguf_agreement.py MODEL.gguf [--rows 64] [--tokens 32] [--chat]

Both compute in float32 on the CPU; Transformers needs the package accelerate for this. A difference
is explained by a near tie if Transformers gives our token and its own logits that are less than
0.01 apart.
"""

import argparse
from pathlib import Path

from pagedrun import LLM, SamplingParams  # before torch, whose threads would wait by spinning

# isort: split
import torch
from transformers import AutoModelForCausalLM

TOPICS = (
    *("the water of a river", "bread", "the moon", "a letter to a friend"),
    *("trains", "the number seven", "a small garden", "music for children"),
)
QUESTIONS = (
    "What do you know about {}?",
    "Write one sentence about {}.",
    "Explain {} to a child.",
    "Give me three facts about {}.",
    "Why do people care about {}?",
    "Tell me a short story about {}.",
    "What is the history of {}?",
    "Write a title for an article about {}.",
)
NEAR = 0.01


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--chat", action="store_true", help="through the file's chat template")
    given = parser.parse_args()
    prompts = [question.format(topic) for topic in TOPICS for question in QUESTIONS][: given.rows]
    oracle = AutoModelForCausalLM.from_pretrained(
        given.model.parent, gguf_file=given.model.name, dtype=torch.float32
    ).eval()
    llm = LLM(given.model, dtype="float32", device="cpu")
    if given.chat:
        chats = ([{"role": "user", "content": prompt}] for prompt in prompts)
        prompts = [llm.tokenizer.render_chat(chat) for chat in chats]
    ids = llm.tokenizer.encode_batch(prompts, not given.chat)
    answers = llm.generate(ids, SamplingParams(temperature=0, max_tokens=given.tokens))
    same = near = num_tokens = 0
    for number, (prompt, answer) in enumerate(zip(ids, answers, strict=True)):
        found = list(answer.outputs[0].token_ids)
        num_tokens += len(found)
        with torch.no_grad():
            logits = oracle(torch.tensor([[*prompt, *found]])).logits[0, len(prompt) - 1 : -1]
        expected = logits.argmax(-1).tolist()
        if found == expected:
            same += 1
            continue
        first = next(at for at, token in enumerate(found) if token != expected[at])
        apart = float(logits[first, expected[first]] - logits[first, found[first]])
        near += apart < NEAR
        print(f"row {number}: token {first} differs, its logit by {apart:.6f}")
    print(
        f"{same} of {len(ids)} answers ({num_tokens} tokens) are those of Transformers, "
        f"{near} more differ at a near tie"
    )


if __name__ == "__main__":
    main()
