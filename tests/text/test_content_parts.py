"""Lists of content parts are rendered as Transformers renders them, where a template walks them."""

import copy
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from pagedrun.paged.text.prompt import present
from pagedrun.paged.text.templates.content_parts import walks_content
from pagedrun.paged.text.templates.sandbox import Sandbox
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError
from tests.text.chats import CHATS, TEMPLATES, VARIABLES, Rows, expected

WALKING = {"folded_system", "switched_thoughts", "visible_text"}
# Of each message.
SHAPES = {
    "in the loop": "{% for p in m.content %}{{ p.text }}{% endfor %}",
    "by key": "{% for p in m['content'] %}{{ p['text'] }}{% endfor %}",
    "by get": "{% for p in m.get('content') or [] %}{{ p.text }}{% endfor %}",
    "of a variable": "{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}",
    "in a macro": "{% macro show(c) %}{% if c is string %}{{ c }}{% else %}"
    "{% for p in c %}{{ p.text }}{% endfor %}{% endif %}{% endmacro %}{{ show(m.content) }}",
    "of a named argument": "{% macro show(a, c) %}{% for p in c %}{{ p.text }}{% endfor %}"
    "{% endmacro %}{{ show(1, c=m.content) }}",
    "of a namespace": "{% set n = namespace() %}{% set n.c = m.content %}"
    "{% for p in n.c %}{{ p.text }}{% endfor %}",
    "by filters": "{{ m.content | selectattr('type', 'equalto', 'text') | "
    "map(attribute='text') | join('+') }}",
    "by number": "{{ m.content[0].text }}",
    "of a slice": "{% for p in m.content[:1] %}{{ p.text }}{% endfor %}",
}
PLAIN = {
    "printed": "{{ m.content }}",
    "trimmed": "{{ m['content'] | trim }}",
    "split": "{{ m.content.split('</think>')[-1] }}",
    "cut": "{{ m.content[1:] }}",
    "another list": "{% for c in m.tool_calls or [] %}{{ c }}{% endfor %}{{ m.content }}",
}


def of_each(template: str) -> str:
    """Return the template of a chat from that of a message."""
    return "{% for m in messages %}" + template + "{% endfor %}"


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


SAID = [("user", ("Is it ", "warm?")), ("assistant", ("Yes", ".")), ("user", ("Why",))]
IN_PARTS: list[dict[str, Any]] = [{"role": role, "content": parts(*texts)} for role, texts in SAID]
JOINED: list[dict[str, Any]] = [{"role": role, "content": "\n".join(texts)} for role, texts in SAID]


@pytest.fixture(scope="module")
def folder(make_tokenizer: Callable[..., Path]) -> Path:
    return make_tokenizer(adds_bos=True)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def rendered(theirs: Any, template: str, chat: Any, **variables: Any) -> str:
    text = theirs.apply_chat_template(
        copy.deepcopy(chat),
        chat_template=template,
        tokenize=False,
        add_generation_prompt=True,
        **variables,
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("shape", SHAPES)
def test_a_template_that_walks_parts_gets_them(shape: str, folder: Path, theirs: Any) -> None:
    template = of_each(SHAPES[shape])
    tokenizer = Tokenizer.from_folder(folder, template)
    wanted = rendered(theirs, template, IN_PARTS)
    assert "Is it " in wanted
    assert tokenizer.render_chat(IN_PARTS) == wanted
    assert Rows(tokenizer, {}, present()).text(IN_PARTS) == wanted


@pytest.mark.parametrize("shape", PLAIN)
def test_another_gets_the_text(shape: str, folder: Path, theirs: Any) -> None:
    """Where Transformers would print the list itself, or fail."""
    template = of_each(PLAIN[shape])
    tokenizer = Tokenizer.from_folder(folder, template)
    assert tokenizer.render_chat(IN_PARTS) == rendered(theirs, template, JOINED)
    assert Rows(tokenizer, {}, present()).text(IN_PARTS) == rendered(theirs, template, JOINED)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_templates_of_the_families(name: str, folder: Path, theirs: Any) -> None:
    tree = Sandbox.for_chats().parse(TEMPLATES[name])
    assert walks_content(tree) == (name in WALKING)
    chat = IN_PARTS if name in WALKING else JOINED
    tokenizer = Tokenizer.from_folder(folder, TEMPLATES[name])
    assert tokenizer.render_chat(IN_PARTS) == rendered(theirs, TEMPLATES[name], chat)


def test_a_role_whose_parts_are_printed_gets_text(folder: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}[{{ p.text }}]"
        "{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    tokenizer = Tokenizer.from_folder(folder, template)
    assert tokenizer.render_chat(IN_PARTS) == "[Is it ][warm?]Yes\n.[Why]"


def test_a_template_that_refuses_parts_gets_text(folder: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}"
        "{% endfor %}{% else %}{{ m.content + '!' }}{% endif %}{% endfor %}"
    )
    chat = [IN_PARTS[1], {"role": "user", "content": "a"}]
    with pytest.raises(RowError, match="the chat template failed"):
        Tokenizer.from_folder(folder, template + "{{ messages + 1 }}").render_chat(chat)
    assert Tokenizer.from_folder(folder, template).render_chat(chat) == "Yes\n.!"


OPENAI: dict[str, Any] = {
    "role": "assistant",
    "content": "Yes.",
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": None,
    "id": "msg_1",
}


def test_messages_of_openais_answers_are_read(folder: Path) -> None:
    """As in its responses: what has no text has no effect."""
    rows = Rows(Tokenizer.from_folder(folder, of_each(PLAIN["printed"])), {}, present())
    user = {"role": "user", "content": "a", "id": "msg_0"}
    assert rows.text([user, OPENAI, user]) == "aYes.a"
    citation = [{"type": "url_citation", "url_citation": {"url": "x"}}]
    assert rows.text([user, {**OPENAI, "annotations": citation}, user]) == "aYes.a"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert rows.text([user, {**OPENAI, "content": None, "tool_calls": [call]}]) == "a"
    thought = {"role": "assistant", "content": None, "reasoning_content": "b"}
    assert rows.text([user, thought, user]) == "aa"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"refusal": "no"}, "messages[1].refusal is not supported; give its text as content"),
        ({"function_call": {"name": "f"}}, "messages[1].function_call is not supported; give it"),
        ({"audio": {"id": "x"}}, "messages[1].audio is not supported; a message may have role"),
        ({"weight": 1}, "messages[1].weight is not supported"),
        ({"content": None}, "messages[1].content is null; it must be text"),
        ({"x" * 500: 1}, f"messages[1].{'x' * 40}… is not supported"),
    ],
)
def test_a_field_that_is_refused_is_named(more: Any, named: str, folder: Path) -> None:
    rows = Rows(Tokenizer.from_folder(folder, of_each(PLAIN["printed"])), {}, present())
    with pytest.raises(RowError) as caught:
        rows.text([{"role": "user", "content": "a"}, {**OPENAI, **more}])
    assert caught.value.code == "unsupported_content"
    assert named in caught.value.message


ARCHIVE = "llama_cpp_python==0.3.36"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The templates that llama.cpp keeps of published models, from its archive at the index."""
    folder = tmp_path_factory.mktemp("archive")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}"]
    got = subprocess.run([*command, "--no-binary", "llama_cpp_python", ARCHIVE], check=False)
    if got.returncode:
        pytest.skip(f"the index does not have {ARCHIVE}")
    found = {}
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        for member in archive:
            if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                file = archive.extractfile(member)
                assert file is not None
                found[Path(member.name).stem] = file.read().decode("utf-8")
    return found


@pytest.mark.long
def test_published_templates_render_as_in_transformers(
    published: dict[str, str], folder: Path, theirs: Any
) -> None:
    assert len(published) >= 60
    num_equal = 0
    for name, template in published.items():
        tokenizer = Tokenizer.from_folder(folder, template)
        walks = walks_content(Sandbox.for_chats().parse(template))
        for variables in VARIABLES.values():
            for chat in (*CHATS.values(), IN_PARTS if walks else JOINED):
                wanted = expected(theirs, template, chat, variables)
                found = Rows(tokenizer, variables, present()).text(chat)
                if "Solar" in name and "reasoning_content" in str(chat):
                    continue  # reads only `reasoning`, which Transformers leaves out
                assert found == wanted, (name, chat)
                num_equal += wanted is not None
    assert num_equal > 2000
