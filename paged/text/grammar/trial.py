"""What a `TrialProcess` runs: compiles structures, one a line, and says what is wrong with each."""

import json
import math
import resource
import sys
import time
from dataclasses import dataclass

from pagedrun.paged.text.grammar.compiler import GrammarCompiler
from pagedrun.paged.text.grammar.trial_process import MAX_BYTES, READY
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.structure import Structure


@dataclass(frozen=True, slots=True)
class SentWords:
    """A tokenizer's words, as they came."""

    text: str
    eos_token_id: int | None

    def to_json(self) -> str:
        """Return them."""
        return self.text


def main() -> None:
    """Answer every line with a list: empty, or code and message of an error."""
    about = json.loads(sys.stdin.readline())
    text, eos_token_id, vocab_size, eos_token_ids, max_seconds = about
    compiler = GrammarCompiler(SentWords(text, eos_token_id), vocab_size, eos_token_ids)
    compiler.begin("")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    _answer([READY])
    for line in sys.stdin:
        last = math.ceil(time.process_time()) + max_seconds
        resource.setrlimit(resource.RLIMIT_CPU, (last, resource.RLIM_INFINITY))
        try:
            compiler.compile(Structure(*json.loads(line)))
        except RowError as error:
            _answer([error.code, error.marked])
        else:
            _answer([])


def _answer(words: list[str]) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
