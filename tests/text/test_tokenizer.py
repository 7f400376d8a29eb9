"""Tokenizer must agree with transformers, and turn bad text and templates into row errors."""

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.text.prompt import require_unicode
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import ModelError, RowError, UsageError

BOS, IM_START, IM_END = 259, 257, 258
MakeTokenizer = Callable[..., Path]
TEXTS = ["", "Hello", " two  spaces ", "naïve – 漢字 🙂", "<|im_end|>", "<s>", "a<s>b", "\0\n\r"]


@pytest.fixture(scope="session")
def plain(make_tokenizer: MakeTokenizer) -> Path:
    return make_tokenizer()


@pytest.fixture(scope="session")
def with_bos(make_tokenizer: MakeTokenizer) -> Path:
    return make_tokenizer(adds_bos=True)


def copy(folder: Path, target: Path, **changes: Any) -> Path:
    """Copy a tokenizer folder, changing fields of tokenizer_config.json (None: removing)."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    path = target / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return target


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def row_error(call: Callable[[], object]) -> RowError:
    with pytest.raises(RowError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("add_special_tokens", [False, True])
def test_encodes_as_transformers_does(plain: Path, add_special_tokens: bool) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(plain)
    ours = Tokenizer.from_folder(plain)
    encoded = ours.encode_batch(TEXTS, add_special_tokens)
    assert encoded == theirs(TEXTS, add_special_tokens=add_special_tokens)["input_ids"]
    for ids in encoded:
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_bos_is_added_once(with_bos: Path) -> None:
    tokenizer = Tokenizer.from_folder(with_bos)
    ids = tokenizer.encode_batch(["x", "<s>x", "<s><s>x", "x<s>", "", "<s>"], True)
    x = ids[0][1]
    assert ids == [[BOS, x], [BOS, x], [BOS, BOS, x], [BOS, x, BOS], [BOS], [BOS]]
    assert tokenizer.encode_batch(["x", "<s>x"], False) == [[x], [BOS, x]]


def test_a_bos_that_the_tokenizer_does_not_add_is_kept(plain: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(copy(plain, tmp_path, bos_token="<s>"))
    assert tokenizer.bos_token_id == BOS
    assert tokenizer.encode_batch(["<s><s>"], True) == [[BOS, BOS]]


def test_ids_and_vocab_size(plain: Path, with_bos: Path) -> None:
    tokenizer = Tokenizer.from_folder(plain)
    assert (tokenizer.vocab_size, tokenizer.eos_token_id) == (261, IM_END)
    assert tokenizer.bos_token_id is None
    assert Tokenizer.from_folder(with_bos).bos_token_id == BOS


def test_vocab_size_counts_to_the_largest_id(plain: Path, tmp_path: Path) -> None:
    copy(plain, tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    letter = next(letter for letter, number in data["model"]["vocab"].items() if number == 10)
    data["model"]["vocab"][letter] = 999
    path.write_text(json.dumps(data))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.vocab_size == tokenizer.num_ids == 1000


def test_long_form_of_special_tokens(plain: Path, tmp_path: Path) -> None:
    token = {"__type": "AddedToken", "content": "<s>", "lstrip": True, "special": True}
    assert Tokenizer.from_folder(copy(plain, tmp_path, bos_token=token)).bos_token_id == BOS


def test_truncation_and_padding_left_in_the_file_are_ignored(plain: Path, tmp_path: Path) -> None:
    copy(plain, tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    data["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    data["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    path.write_text(json.dumps(data))
    ids = Tokenizer.from_folder(tmp_path).encode_batch(["a" * 100, "b"], True)
    assert [len(row) for row in ids] == [100, 1]


def test_a_cut_of_some_texts_leaves_later_ones_whole(plain: Path) -> None:
    tokenizer = Tokenizer.from_folder(plain)
    (cut,) = tokenizer.encode_pairs(["a" * 9], add_special_tokens=False, max_tokens=4)
    (whole,) = tokenizer.encode_pairs(["a" * 9], add_special_tokens=False)
    assert (cut.ids, cut.rest) == (whole.ids[:4], [whole.ids[4:8], whole.ids[8:]])
    assert (len(whole.ids), whole.rest) == (9, [])


@functools.cache
def tokenizer_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@given(st.lists(st.text(), max_size=4))
def test_text_comes_back(plain: Path, texts: list[str]) -> None:
    tokenizer = tokenizer_of(plain)
    for text, ids in zip(texts, tokenizer.encode_batch(texts, False), strict=True):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_decoding_does_not_tidy_spaces(plain: Path) -> None:
    tokenizer = Tokenizer.from_folder(plain)
    text = "it 's a , b . Do n't !"
    assert tokenizer.decode(tokenizer.encode_batch([text], False)[0]) == text


def test_decoding_skips_special_tokens_and_padding_ids(plain: Path) -> None:
    tokenizer = Tokenizer.from_folder(plain)
    ids = tokenizer.encode_batch(["a<|im_end|>b"], False)[0]
    assert tokenizer.decode([*ids, 319]) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\ud83d alone"])
def test_lone_surrogates_never_reach_the_tokenizer(plain: Path, text: str) -> None:
    tokenizer = Tokenizer.from_folder(plain)
    assert row_error(lambda: tokenizer.encode_batch(["fine", text], True)).code == "invalid_unicode"
    assert row_error(lambda: tokenizer.render_chat(user(text))).code == "invalid_unicode"
    assert row_error(lambda: require_unicode(text, "system")).param == "system"
    require_unicode("\U0001f642")


def test_chat_equals_transformers(plain: Path) -> None:
    from transformers import AutoTokenizer

    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi <|im_end|> 🙂"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Why"},
    ]
    tokenizer = Tokenizer.from_folder(plain)
    text = tokenizer.render_chat(messages)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert text.endswith("<|im_start|>assistant\n")
    theirs = AutoTokenizer.from_pretrained(plain).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    ids = tokenizer.encode_batch([text], False)[0]
    assert ids == theirs
    assert ids.count(IM_END) == 4 + 1  # the user's own is one too: Hugging Face's default
    assert ids.count(IM_START) == 5


def test_variables_cannot_replace_those_of_every_chat(plain: Path) -> None:
    template = "{{ messages }}{{ tools }}{{ eos_token }}{{ add_generation_prompt }}"
    tokenizer = Tokenizer.from_folder(plain, template)
    given = dict.fromkeys(("messages", "tools", "eos_token", "add_generation_prompt"), "mine")
    assert tokenizer.render_chat(user("x"), given) == tokenizer.render_chat(user("x"))


STARTED: list[dict[str, Any]] = [
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": " I think: "},
]
TRIMMING = (
    "{% for message in messages %}<s>{{ message.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


@pytest.mark.parametrize("template", [None, TRIMMING], ids=["as it is", "trimming"])
def test_the_last_message_can_be_gone_on_with_as_in_transformers(
    plain: Path, template: str | None
) -> None:
    from transformers import AutoTokenizer

    ours = Tokenizer.from_folder(plain, template).render_chat(STARTED, continues_last=True)
    theirs = AutoTokenizer.from_pretrained(plain).apply_chat_template(
        STARTED, chat_template=template, tokenize=False, continue_final_message=True
    )
    assert ours == theirs
    assert ours.rstrip().endswith("I think:")


@pytest.mark.parametrize(
    ("template", "last", "code"),
    [
        ("{{ messages[0].content }}", "I think", "template_error"),
        (None, None, "unsupported_content"),
    ],
)
def test_a_message_that_cannot_be_gone_on_with(
    plain: Path, template: str | None, last: str | None, code: str
) -> None:
    tokenizer = Tokenizer.from_folder(plain, template)
    messages: list[dict[str, Any]] = [STARTED[0], {"role": "assistant", "content": last}]
    error = row_error(lambda: tokenizer.render_chat(messages, continues_last=True))
    assert (error.code, error.param) == (code, "messages")


def test_where_the_template_comes_from(plain: Path, tmp_path: Path) -> None:
    named = [
        {"name": "tool_use", "template": "tool"},
        {"name": "default", "template": "{{ bos_token }}list {{ eos_token }}"},
    ]
    folder = copy(plain, tmp_path, chat_template=named, bos_token="<s>")
    assert Tokenizer.from_folder(folder).render_chat(user("x")) == "<s>list <|im_end|>"
    (folder / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    assert Tokenizer.from_folder(folder).render_chat(user("x")) == "file x"
    given = Tokenizer.from_folder(folder, chat_template="given {{ messages[0].content }}")
    assert given.render_chat(user("x")) == "given x"


@pytest.mark.parametrize("chat_template", [None, [{"name": "rag", "template": "x"}], []])
def test_no_template_says_what_to_do(plain: Path, tmp_path: Path, chat_template: Any) -> None:
    folder = copy(plain, tmp_path, chat_template=chat_template)
    error = row_error(lambda: Tokenizer.from_folder(folder).render_chat(user("x")))
    assert error.code == "template_error"
    assert "chat_template" in error.message
    assert "prompt" in error.message


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('Conversation roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ range(10 ** 9) | list }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% include '/etc/passwd' %}",
        "{% for _ in range(300) %}{{ 'x' * 1000000 }}{% endfor %}",
        "{{ messages[0].role * 5000000 }}",
        "{{ '\\ud800' }}x{{ messages[0].nothing.at_all }}",
    ],
)
def test_a_failing_template_is_a_row_error(plain: Path, template: str) -> None:
    tokenizer = Tokenizer.from_folder(plain, chat_template=template)
    error = row_error(lambda: tokenizer.render_chat(user("x")))
    assert error.code == "template_error"
    assert error.param == "messages"
    assert len(error.message) <= RowError.MAX_MESSAGE


@pytest.mark.parametrize(
    "template", ["{{ messages", "a\n{% for %}", "{{ messages | no_such_filter }}"]
)
def test_a_template_that_is_no_jinja_is_refused(plain: Path, template: str) -> None:
    line = template.count("\n") + 1
    with pytest.raises(UsageError, match=f"chat_template, line {line}: "):
        Tokenizer.from_folder(plain, chat_template=template)


@pytest.mark.parametrize(
    "template", ["chatml", "my/template.jinja", "{{ prompt }}", "You are kind."]
)
def test_a_template_that_never_reads_the_messages_is_refused(plain: Path, template: str) -> None:
    with pytest.raises(UsageError) as caught:
        Tokenizer.from_folder(plain, chat_template=template)
    assert caught.value.field == "chat_template"
    assert ("@file" in str(caught.value)) == (" " not in template)


def test_a_model_s_own_broken_template_stops_only_chats(plain: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(copy(plain, tmp_path, chat_template="{{ messages"))
    assert tokenizer.encode_batch(["a"], add_special_tokens=False)
    assert row_error(lambda: tokenizer.render_chat(user("x"))).code == "template_error"


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hi",
        {"role": "user", "content": "x"},
        ["hi"],
        [{"content": "x"}],
        [{"role": 1, "content": "x"}],
        user(7),
        user({"text": "x"}),
        user([{"type": "image_url", "image_url": {"url": "http://x"}}]),
        user([{"type": "text", "text": "x"}, {"type": "image"}]),
        user(["x"]),
    ],
)
def test_messages_that_are_no_text(plain: Path, messages: Any) -> None:
    error = row_error(lambda: tokenizer_of(plain).render_chat(messages))
    assert error.code == "unsupported_content"


def test_text_parts_are_joined_and_the_row_is_left_alone(plain: Path) -> None:
    messages = user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])
    before = json.dumps(messages)
    text = tokenizer_of(plain).render_chat(messages)
    assert text == tokenizer_of(plain).render_chat(user("one\ntwo"))
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "needs tokenizer.json (the fast tokenizer)"),
        (b"", "is not a tokenizer"),
        (b"{}", "is not a tokenizer"),
        (b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "is not a tokenizer"),
        (b"\xff\xfe", "is not a tokenizer"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    ],
)
def test_a_broken_tokenizer_file_is_named(
    plain: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = copy(plain, tmp_path) / "tokenizer.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bos_token", "<absent>"),
        ("eos_token", {"content": "<absent>"}),
        ("eos_token", 7),
        ("eos_token", {"content": ["x"]}),
        ("bos_token", "\ud800"),
        ("chat_template", 7),
        ("chat_template", "x" * 2_000_000),
    ],
)
def test_a_broken_tokenizer_config_is_named(
    plain: Path, tmp_path: Path, field: str, value: Any
) -> None:
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_folder(copy(plain, tmp_path, **{field: value}))
    assert field.replace("_", " ") in str(caught.value).replace("_", " ")


def test_tokenizer_config_is_optional_and_cannot_name_code(plain: Path, tmp_path: Path) -> None:
    copy(
        plain,
        tmp_path,
        tokenizer_class="Evil",
        auto_map={"AutoTokenizer": ["evil.Evil", None]},
        pad_token="<absent>",
    )
    (tmp_path / "evil.py").write_text("raise SystemExit('the model folder ran code')")
    assert Tokenizer.from_folder(tmp_path).vocab_size == 261
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.eos_token_id is None
    assert tokenizer.chat_template is None


def test_importing_the_module_does_not_import_transformers() -> None:
    script = (
        "import sys, pagedrun.paged.text.tokenizer, pagedrun.paged.models.hub\n"
        "import pagedrun.paged.models.model_config\n"
        "sys.exit(sorted({'transformers', 'tokenizers', 'torch', 'huggingface_hub'}"
        " & sys.modules.keys()) or 0)"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
