"""Tokens declared beside tokenizer.json get the ids, and templates the names, of AutoTokenizer."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.text.prompt import Prompt
from pagedrun.paged.text.prompt_encoder import Limits, PromptEncoder
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.sampling_params import SamplingParams

Fields = dict[str, Any]
Files = dict[str, Fields]
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
NEXT = 261  # behind the tokens of tokenizer.json
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<turn>{{ message.content }} {{ eos_token }}"
    "{{ pad_token }}{{ unk_token }}{{ image_token }}{% endfor %}"
)
TEXTS = [
    "a<tool>b <image> c",
    " <tool> <tool>x <turn>\n</s>",
    "<s>[PAD]<unk><|im_end|> <extra> ",
    "<tool><|im_start|>",
]


def token(text: str, **switches: bool) -> Fields:
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": text, **flags, "special": True, **switches}


# By a name, the contents of files; fields of tokenizer_config.json are added to those it has.
FOLDERS: dict[str, Files] = {
    "ids": {
        CONFIG: {
            "added_tokens_decoder": {
                "258": token("<|im_end|>"),
                "262": token("<image>"),
                "261": token("<tool>", special=False),
                "263": token("<turn>", rstrip=True),
            },
            "bos_token": "<s>",
            "pad_token": "<image>",
            "image_token": "<image>",
        },
        MAP: {"pad_token": "<turn>", "unk_token": "<tool>"},  # not read beside ids
        ADDED: {"<never>": 261},
    },
    "other options than in tokenizer.json": {
        CONFIG: {"added_tokens_decoder": {"257": token("<|im_start|>", lstrip=True, rstrip=True)}}
    },
    "map": {
        MAP: {
            "bos_token": token("<s>"),
            "eos_token": "</s>",
            "unk_token": {"content": "<unk>", "lstrip": True},
            "additional_special_tokens": ["<turn>", "<tool>"],
        }
    },
    "map over config": {
        CONFIG: {"eos_token": "<|im_end|>", "additional_special_tokens": ["<tool>"]},
        MAP: {"eos_token": "</s>", "image_token": "<image>"},
    },
    "added": {
        CONFIG: {"additional_special_tokens": ["<turn>"], "pad_token": "[PAD]"},
        ADDED: {"<tool>": NEXT + 1, "<turn>": NEXT, "[PAD]": NEXT + 2},
    },
    "extra": {CONFIG: {"extra_special_tokens": ["<turn>", "<extra>"], "pad_token": "[PAD]"}},
    "extra in both": {
        CONFIG: {"extra_special_tokens": ["<turn>"]},
        MAP: {"extra_special_tokens": ["<extra>", "<turn>"]},
    },
    "named": {CONFIG: {"extra_special_tokens": {"image_token": "<image>", "turn_token": "<turn>"}}},
    "named in the map": {MAP: {"extra_special_tokens": {"image_token": "<image>"}}},
    "named by version 5": {
        CONFIG: {
            "image_token": "<image>",
            "model_specific_special_tokens": {"image_token": "<tool>"},
        }
    },
    "long form": {
        CONFIG: {"pad_token": {"__type": "AddedToken", **token("[PAD]", lstrip=True)}},
    },
    "split": {CONFIG: {"split_special_tokens": True}},
    "flags of the beginning": {
        CONFIG: {"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>"}
    },
}


@pytest.fixture(scope="session")
def plain(make_tokenizer: Callable[..., Path]) -> Path:
    return make_tokenizer()


def written(folder: Path, target: Path, files: Files) -> Path:
    shutil.copytree(folder, target, dirs_exist_ok=True)
    own = json.loads((folder / CONFIG).read_text())
    for name, fields in {CONFIG: {}, **files}.items():
        every = {**own, "chat_template": TEMPLATE, **fields} if name == CONFIG else fields
        (target / name).write_text(json.dumps(every))
    return target


def compare(folder: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    for adds in (False, True):
        encoded = theirs(TEXTS, add_special_tokens=adds)["input_ids"]
        assert ours.encode_batch(TEXTS, adds) == encoded
        for ids in encoded:
            for skip in (False, True):
                assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    messages = [{"role": "user", "content": "a <tool> b"}]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.render_chat(messages) == text
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.num_ids == len(theirs)
    return ours


@pytest.mark.parametrize("name", FOLDERS)
def test_tokens_are_those_of_auto_tokenizer(plain: Path, tmp_path: Path, name: str) -> None:
    compare(written(plain, tmp_path, FOLDERS[name]))


def test_a_folder_saved_by_transformers(plain: Path, tmp_path: Path) -> None:
    from transformers import AddedToken, AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(written(plain, tmp_path / "a", {}))
    theirs.add_tokens(["<tool>", AddedToken("<turn>", rstrip=True)])
    theirs.add_special_tokens({"pad_token": "[PAD]", "extra_special_tokens": ["<extra>"]})
    theirs.save_pretrained(tmp_path / "b")
    ours = compare(tmp_path / "b")
    assert ours.vocab_size == ours.num_ids == NEXT + 4


@pytest.mark.parametrize("tokenizer_class", ["LlamaTokenizer", "Qwen2Tokenizer"])
def test_a_class_of_transformers_with_the_same_parts(
    plain: Path, tmp_path: Path, tokenizer_class: str
) -> None:
    fields = {**FOLDERS["ids"][CONFIG], "tokenizer_class": tokenizer_class, "unk_token": "<unk>"}
    fields["added_tokens_decoder"] = {
        **fields["added_tokens_decoder"],
        **{str(256 + i): token(text) for i, text in enumerate(("<|endoftext|>", "<|im_start|>"))},
        "259": token("<s>"),
        "260": token("</s>"),
    }
    compare(written(plain, tmp_path, {CONFIG: fields}))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({CONFIG: {"added_tokens_decoder": {"900": token("<tool>")}}}, "'<tool>' has the id 900"),
        ({CONFIG: {"added_tokens_decoder": {"7": token("<s>")}}}, "'<s>' has the id 7, but"),
        ({ADDED: {"<tool>": 3}}, "'<tool>' has the id 3, but tokenizer.json leads to 261"),
        ({CONFIG: {"added_tokens_decoder": {"x": token("<s>")}}}, "'x', which is no token id"),
        ({CONFIG: {"added_tokens_decoder": {"7": 7}}}, "added_tokens_decoder: 7 is 7"),
        ({CONFIG: {"additional_special_tokens": "<tool>"}}, "must be a list of tokens"),
        ({CONFIG: {"extra_special_tokens": [7]}}, "extra_special_tokens: 0 is 7"),
        ({CONFIG: {"extra_special_tokens": {"image_token": ["a"]}}}, "image_token is ['a']"),
        ({MAP: {"eos_token": "<absent>"}}, "special_tokens_map.json: eos_token is '<absent>'"),
        ({ADDED: {"\ud800": NEXT}}, "added_tokens.json: \\ud800 has half a surrogate"),
    ],
)
def test_contradictions_are_named(plain: Path, tmp_path: Path, files: Files, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_folder(written(plain, tmp_path, files))
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_id_without_a_vector(plain: Path, tmp_path: Path) -> None:
    """A padding token that the embedding has no room for stops only prompts that contain it; one
    with an id in the files is refused at once, as in tokenizer.json."""
    pads = Tokenizer.from_folder(written(plain, tmp_path / "a", {CONFIG: {"pad_token": "[PAD]"}}))
    assert (pads.vocab_size, pads.num_ids) == (NEXT, NEXT + 1)
    encoder = PromptEncoder(pads, Limits(64, NEXT))
    params = SamplingParams(max_tokens=1)
    fine, over = encoder.encode([0, 1], [Prompt(params, text="a"), Prompt(params, text="a[PAD]")])
    assert fine.error is None
    assert over.error is not None
    assert over.error.code == "token_id_out_of_range"
    listed = {CONFIG: {"added_tokens_decoder": {str(NEXT): token("[PAD]")}}}
    assert Tokenizer.from_folder(written(plain, tmp_path / "b", listed)).vocab_size == NEXT + 1
