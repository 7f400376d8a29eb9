"""The demo's tokenizer: byte-level BPE of 1024 tokens, trained on the task's own text.

Any text can be encoded; names, teams and the words of the task are one token each, and so is
every digit. `" 2"` is one token too, which makes every directory entry exactly 17 tokens long.
"""

from collections.abc import Iterator

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pagedrun.recipes.demo.training.directory import (
    ANSWERS,
    FIRST_NAMES,
    HEADERS,
    LAST_NAMES,
    QUESTIONS,
    TEAMS,
    directory_text,
    sample_entries,
)

VOCAB_SIZE = 1024
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# One digit per piece; a word takes the space before it; punctuation takes the newline after it.
_PIECES = r" ?\p{N}|'s| ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
_NUM_CORPUS_DIRECTORIES = 400
_NUM_CORPUS_ENTRIES = 32


def turn(role: str, content: str) -> str:
    """Return one complete ChatML turn, as `CHAT_TEMPLATE` writes it."""
    return f"{TURN_START}{role}\n{content}{TURN_END}\n"


def build_tokenizer(vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train the tokenizer on text of the task. The result is always the same.

    Raises `ValueError` if `vocab_size` is too small to give every name, team and digit a token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    split = [word for word in single_token_words() if len(tokenizer.encode(word).ids) != 1]
    if split:
        raise ValueError(f"vocab_size {vocab_size} is too small: {split[:5]} are split in pieces")
    return tokenizer


def single_token_words() -> list[str]:
    """Return the pieces of text that must be one token, with the space before them if any."""
    digits = [str(digit) for digit in range(10)]
    return [
        *FIRST_NAMES,
        *(f" {word}" for word in (*FIRST_NAMES, *LAST_NAMES, *TEAMS)),
        *digits,
        *(f" {digit}" for digit in digits[1:]),  # no number of the task starts with 0
        *("system", "user", "assistant", " room", " phone", " team", ".\n"),
    ]


def token_id(tokenizer: Tokenizer, piece: str) -> int:
    """Return the one token that `piece` is. Raises `ValueError` if it is several."""
    ids = tokenizer.encode(piece).ids
    if len(ids) != 1:
        raise ValueError(f"{piece!r} is {len(ids)} tokens, not one")
    return int(ids[0])


def _corpus() -> Iterator[str]:
    """Yield directories and dialogues in which every name and every phrasing is frequent."""
    rng = np.random.default_rng(0)
    table = sample_entries(rng, _NUM_CORPUS_DIRECTORIES, _NUM_CORPUS_ENTRIES, crowded=False)
    phrasings = [(kind, text) for kind, texts in QUESTIONS.items() for text in texts]
    for directory_id in range(_NUM_CORPUS_DIRECTORIES):
        entries = table.entries(directory_id)
        header = HEADERS[directory_id % len(HEADERS)]
        yield turn("system", directory_text(header, entries))
        for index, entry in enumerate(entries):
            kind, question = phrasings[(directory_id + index) % len(phrasings)]
            yield turn("user", entry.fill(question)) + turn("assistant", entry.fill(ANSWERS[kind]))
