"""Each name in `tokenizer.ggml.pre` splits texts as the models' own tokenizers do.

pieces.json has, for a dozen texts, the pieces of llama.cpp's `unicode_regex_split` with the
expressions of llama-vocab.cpp (in the source archive of llama_cpp_python 0.3.36), compiled
and run. Where that file says that its expression is an adaptation of the one in the model's
tokenizer.json and quotes it ("of": "tokenizer.json"), they are those of the library `tokenizers`
with the quoted one.
"""

import json
from pathlib import Path

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from pagedrun.paged.text.vocabulary.gguf_pre_tokenizers import PRE_TOKENIZERS

EXPECTED = json.loads((Path(__file__).parent / "pieces.json").read_text(encoding="utf-8"))
SEPARATOR = "¦"


@pytest.mark.parametrize("case", EXPECTED["splits"], ids=lambda case: case["names"][0])
def test_texts_are_split_as_in_the_models_tokenizers(case: dict[str, list[str]]) -> None:
    by_regexes = {PRE_TOKENIZERS[name].regexes for name in case["names"]}
    for regexes in by_regexes:
        split = Sequence([Split(Regex(each), "isolated") for each in regexes])
        pieces = [split.pre_tokenize_str(text) for text in EXPECTED["texts"]]
        found = [SEPARATOR.join(piece for piece, _ in each) for each in pieces]
        assert found == case["pieces"]


def test_every_name_has_pieces() -> None:
    tested = [name for case in EXPECTED["splits"] for name in case["names"]]
    assert sorted(tested) == sorted(PRE_TOKENIZERS)
