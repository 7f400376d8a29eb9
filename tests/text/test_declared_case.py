"""Case of BERT's tokenizers: that of Transformers' class, where tokenizer.json has another."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import ModelError

WORDS = [*("<s>", "</s>", "<pad>", "<unk>", "<mask>"), "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["hello", "Hello", "é", "café", "cafe", "東", "京", "東京"]
TEXT = "Hello café 東京"


def write(folder: Path, lowercase: bool, name: str | None, fields: dict[str, Any]) -> None:
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.save(str(folder / "tokenizer.json"))
    config = fields if name is None else {"tokenizer_class": name, **fields}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "bert"}')


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("BertTokenizer", {}),
        ("BertTokenizer", {"do_lower_case": True, "strip_accents": False}),
        ("BertTokenizerFast", {"do_lower_case": False}),
        ("BertTokenizer", {"do_lower_case": False, "tokenize_chinese_chars": False}),
        ("DistilBertTokenizer", {"do_lower_case": False}),
        ("ElectraTokenizer", {"do_lower_case": True}),
        ("MPNetTokenizer", {"do_lower_case": False}),
        ("MPNetTokenizer", {}),
        ("PreTrainedTokenizerFast", {"do_lower_case": True}),
        (None, {"do_lower_case": False}),
    ],
)
def test_case_is_that_of_transformers(
    name: str | None, fields: dict[str, Any], lowercase: bool, tmp_path: Path
) -> None:
    write(tmp_path, lowercase, name, fields)
    theirs = AutoTokenizer.from_pretrained(tmp_path)(TEXT, add_special_tokens=False)["input_ids"]
    assert Tokenizer.from_folder(tmp_path).encode_batch([TEXT], False) == [theirs]


def test_a_case_of_another_type_is_refused(tmp_path: Path) -> None:
    write(tmp_path, False, "BertTokenizer", {"do_lower_case": "yes"})
    with pytest.raises(ModelError, match=r"tokenizer_config.json: do_lower_case is 'yes'"):
        Tokenizer.from_folder(tmp_path)
