"""Templates that would reach out, or never end: input 25, requirement S3."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagedrun.paged.text.sandbox import Sandbox

Run = Callable[..., Any]
BIG = "{% set big = 'x' * 10**7 %}"
ENDLESS = {
    "loops": "{% for i in range(9**5) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "product": "{{ 'x' * 10**9 }}",
    "list product": "{{ [1] * 10**9 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "doubled text": "{% set n = namespace(a='x') %}{% for _ in range(99) %}"
    "{% set n.a = n.a ~ n.a %}"
    "{% endfor %}{{ n.a | length }}",
    "added text": "{% set n = namespace(a='x') %}{% for _ in range(99) %}"
    "{% set n.a = n.a + n.a %}"
    "{% endfor %}{{ n.a | length }}",
    "doubled lists": "{% set n = namespace(a=[1]) %}{% for _ in range(99) %}"
    "{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a == 1 }}",
    "squares": "{% set n = namespace(a=9) %}{% for _ in range(99) %}{% set n.a = n.a * n.a %}"
    "{% endfor %}",
    "plain text": "{% for _ in range(9**5) %}" + "x" * 5000 + "{% endfor %}",
    "width": "{{ 'x' | center(10**9) }}",
    "method": "{{ 'x'.rjust(10**9) }}",
    "format": "{{ '{:>1000000000}'.format(1) }}",
    "borrowed width": "{{ '{:>{}}'.format(1, 10**9) }}",
    "percent": "{{ '%*d' % (10**9, 1) }}",
    "percent filter": "{{ '%1000000000d' | format(1) }}",
    "indent": "{{ 'x' | indent(10**9, true) }}",
    "json": "{{ [1] | tojson(indent=10**9) }}",
    "join": BIG + "{{ ([big] * 10**5) | join }}",
    "join method": BIG + "{{ ''.join([big] * 10**5) }}",
    "replace": BIG + "{{ big | replace('x', big) }}",
    "replace method": BIG + "{{ big.replace('x', big) }}",
    "printed list": BIG + "{{ [big] * 10**5 }}",
    "tabs": "{{ '\t'.expandtabs(10**9) }}",
    "round": "{{ 2 | round(10**9, 'ceil') }}",
    "slices": "{{ [1] | slice(10**9) | list }}",
    "range": "{{ range(10**18) | list }}",
    "mapped": "{{ range(10**6) | map('center', 10**5) | list }}",
}
REACHING = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__()[0] }}",
    "globals": "{{ raise_exception.__globals__.x }}{{ cycler.__init__.__globals__.os }}",
    "attr": "{{ (''|attr('__class__')).x }}",
    "sandbox": "{{ range.__self__.filters }}",
    "format": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "change": "{{ given.clear() }}",
    "file": "{% include '/etc/passwd' %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_25_s03_a_template_ends(generate: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt template and a chat template, each by its flag, with a row beside that is fine.

    By counting: without the clock they end as well.
    """
    monkeypatch.setattr("pagedrun.paged.text.sandbox.MAX_RENDER_SECONDS", math.inf)
    prompt = generate([{"prompt": "a"}], "--prompt-template", ENDLESS[name])
    chat = generate(
        [{"messages": [{"role": "user", "content": "a"}]}, {"prompt": "a", "raw": True}],
        "--chat-template",
        ENDLESS[name],
    )
    assert (prompt.status, prompt.codes) == (3, ["template_error"])
    assert (chat.status, chat.codes) == (3, ["template_error", None])
    assert chat.error(0)["line"] == 1
    assert len(chat.error(0)["message"]) < 200


@pytest.mark.parametrize("name", REACHING)
def test_25_s03_a_template_reaches_nothing(generate: Run, name: str) -> None:
    template = REACHING[name].replace("given", "row")
    assert generate([{"prompt": "a"}], "--prompt-template", template).codes == ["template_error"]
    template = REACHING[name].replace("given", "messages")
    chat = [{"messages": [{"role": "user", "content": "a"}]}]
    assert generate(chat, "--chat-template", template).codes == ["template_error"]


def test_25_what_counting_does_not_see_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps, each of which takes a second by the clock that is looked at."""
    clock = itertools.count()
    monkeypatch.setattr(
        "pagedrun.paged.text.sandbox.time", SimpleNamespace(monotonic=lambda: float(next(clock)))
    )
    sandbox = Sandbox()
    template = sandbox.from_string("{% for _ in range(num_turns) %}{% endfor %}")
    assert sandbox.render(template, {"num_turns": 5}) == ""
    with pytest.raises(OverflowError, match="more than 10 seconds"):
        sandbox.render(template, {"num_turns": 50})


@pytest.mark.parametrize("flag", ["--prompt-template", "--chat-template"])
@pytest.mark.parametrize("template", ["{{ a", "{% nonsense %}", "{{ a | no_such_filter }}"])
def test_25_a_template_that_is_none_is_refused(generate: Run, flag: str, template: str) -> None:
    done = generate([{"prompt": "a"}], flag, template)
    assert (done.status, done.rows) == (2, [])
    assert f"{flag}, line 1: " in done.err


def test_25_a_missing_template_fails_chats_alone(generate: Run, broken: Path) -> None:
    config = broken / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"chat_template"', '"nothing"'))
    chat = {"messages": [{"role": "user", "content": "a"}]}
    done = generate([chat, {"prompt": "a", "raw": True}], using=broken)
    assert (done.status, done.codes) == (3, ["template_error", None])
    assert "--chat-template" in done.error(0)["message"]


def test_25_a_template_of_the_model_folder_is_held_to_the_same(generate: Run, broken: Path) -> None:
    (broken / "chat_template.jinja").write_text(ENDLESS["doubled text"])
    chat = {"messages": [{"role": "user", "content": "a"}]}
    assert generate([chat, {"prompt": "a", "raw": True}], using=broken).codes == [
        "template_error",
        None,
    ]


def test_s03_it_is_the_immutable_sandbox_with_what_chats_need() -> None:
    assert issubclass(Sandbox, ImmutableSandboxedEnvironment)
    sandbox = Sandbox.for_chats()
    source = (
        "{% generation %}{% for m in messages if m.n %}{% if loop.last %}{% break %}{% endif %}"
        "{{ m.n ~ '-' ~ loop.index }};{% endfor %}{% endgeneration %}"
        "{{ messages | map(attribute='n') | join('+') }}{{ {'a': [1, '<é>']} | tojson }}"
        "{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}{{ dict(a=1)['a'] }}"
        "{{ 'a,b'.split(',')[1:] | length }}{{ 'x' in ('x', 'y') }}{{ strftime_now('') }}"
    )
    messages = [{"n": 1}, {"n": 0}, {"n": 2}]
    variables = {"messages": messages, "strftime_now": str}
    text = sandbox.render(sandbox.from_string(source), variables)
    assert text == '1-1;1+0+2{"a": [1, "<é>"]}211True'


def test_s03_each_rendering_has_the_whole_budget() -> None:
    sandbox = Sandbox(max_steps=1000)
    template = sandbox.from_string("{% for i in range(900) %}{% endfor %}ok")
    assert [sandbox.render(template, {}) for _ in range(4)] == ["ok"] * 4
