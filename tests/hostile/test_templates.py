"""Templates that would reach out, or never end: input 25, requirement S3."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagedrun.paged.text.templates.sandbox import Sandbox
from tests.hostile.hostile_templates import hostile_templates
from tests.support.every_pair import every_pair

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


@every_pair(in_turn="name", is_chat=[False, True], name=list(ENDLESS))
def test_25_s03_a_template_ends(generate: Run, name: str, is_chat: bool) -> None:
    """A prompt template or a chat template, each by its flag; a row beside a chat is fine."""
    if not is_chat:
        prompt = generate([{"prompt": "a"}], "--prompt-template", ENDLESS[name])
        assert (prompt.status, prompt.codes) == (3, ["template_error"])
        return
    chat = generate(
        [{"messages": [{"role": "user", "content": "a"}]}, {"prompt": "a", "raw": True}],
        "--chat-template",
        ENDLESS[name],
    )
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


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.heavy("a promise of SECURITY.md: templates that take all they may")
@LINUX
@pytest.mark.parametrize("share", [64, pytest.param(1, marks=pytest.mark.long)])
def test_25_s03_a_template_takes_seconds_and_a_hundred_megabytes(share: int) -> None:
    """Hundreds of ways to take more, in a process that cannot have more.

    A template that repeats something for ever has a share of the limits in the short form.
    """
    command = [sys.executable, "-m", "tests.hostile.hostile_templates", str(share)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    taken = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert taken.keys() == hostile_templates().keys()
    assert not [name for name, each in taken.items() if each["ended"].startswith("rendered")]
    # Python's own parser of deep nesting says so at once.
    without_memory = {n for n, each in taken.items() if each["ended"].startswith("MemoryError")}
    assert without_memory <= {"elifs"}
    assert max(each["bytes"] for each in taken.values()) < 256 * 2**20
    # Of the processor, which a busy machine does not change; one that runs away takes hours.
    assert max(each["seconds"] for each in taken.values()) < 60


INTERNALS = ("<class", "<module", "<function", "<built-in", "<slot", "<frame", "<code", "root:")
ESCAPES = (
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''['__cla' ~ 'ss__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ ['']|map(attribute='__class__')|list }}",
    "{{ ['']|map('attr', '__class__')|list }}",
    "{{ [{'a': ''}]|map(attribute='a.__class__.__mro__')|list }}",
    "{{ ['']|selectattr('__class__')|list }}",
    "{{ ['']|groupby('__class__') }}",
    "{{ ['', 'a']|sort(attribute='__class__')|list }}",
    "{{ ['']|sum(attribute='__class__') }}",
    "{{ ['']|join(attribute='__class__') }}",
    "{{ [''] | max(attribute='__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{0[__class__]}'.format('') }}",
    "{{ '{a.__class__.__mro__}'.format(a='') }}",
    "{{ '{0.__class__}'|format('') }}",
    "{{ '{0.__class__.__base__}'.format_map({'0': ''}) }}",
    "{{ ('{0.__class__.__base__}'|safe).format('') }}",
    "{{ ['']|map('format', '')|list }}",
    "{{ ['{0.__class__.__mro__}']|map(attribute='format')|first }}",
    "{% set f = '{0.__class__.__mro__}'.format %}{{ f('') }}",
    "{% set d = {'f': '{0.__class__.__mro__}'.format} %}{{ d.f('') }}",
    "{{ ('%s' % ''.format).__self__ }}{{ ''.format.__self__ }}",
    "{{ ''.join.__self__.__class__ }}{{ ''.upper._owner }}{{ ''.upper._sandbox.budget }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ cycler('a').__init__.__globals__ }}{{ cycler('a').items }}{{ cycler('a').pos }}",
    "{{ joiner.__init__.__globals__ }}{{ joiner().sep }}{{ joiner().used }}",
    "{{ namespace.__init__.__globals__ }}{{ namespace(a=1).__class__ }}",
    "{{ namespace(__class__='').__class__ }}{{ namespace(a=1)._Namespace__attrs }}",
    "{{ lipsum.__globals__ }}",
    "{{ range.__self__.filters }}{{ range.__func__.__globals__ }}{{ range.__self__ }}",
    "{{ dict.__self__.budget }}{{ dict.mro() }}{{ dict.fromkeys }}",
    "{{ raise_exception.__self__.globals }}{{ strftime_now.__self__ }}",
    "{{ self.__init__.__globals__ }}{{ self._TemplateReference__context }}",
    "{{ self._TemplateReference__context.environment }}{{ self['x'] }}",
    "{% block a %}{{ self.a() }}{{ super.__init__ }}{% endblock %}",
    "{% for x in [1] %}{{ loop.__class__ }}{{ loop._iterator }}{{ loop._undefined }}{% endfor %}",
    "{% for x in [1] %}{{ loop.__init__.__globals__ }}{{ loop._recurse }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__call__.__globals__ }}{{ m._func.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._environment }}{{ m.name }}{{ m.arguments }}",
    "{% macro m() %}{{ caller.__init__.__globals__ }}{{ caller._func.__code__ }}{% endmacro %}"
    "{% call m() %}{% endcall %}",
    "{% macro m() %}{{ kwargs._block_vars }}{{ varargs.__class__ }}{% endmacro %}{{ m(1, a=2) }}",
    "{{ ([1]|map('upper')).gi_frame }}{{ ([1]|select).gi_code }}{{ ([1]|select).gi_yieldfrom }}",
    "{{ ([1]|map('upper')).gi_frame.f_back.f_globals }}",
    "{{ ([1]|reverse).__reduce__() }}{{ {}.items().mapping }}{{ {}.keys().mapping }}",
    "{{ missing.__init__.__globals__ }}{{ missing._undefined_exception }}",
    "{{ missing._fail_with_undefined_error.__globals__ }}{{ missing.__class__.__mro__ }}",
    "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "{{ (1).__class__.__base__ }}{{ (1).real }}{{ (1).from_bytes }}{{ 1.5.fromhex }}",
    "{{ true.__class__.__mro__ }}{{ none.__class__ }}{{ [].__class__.__init__ }}",
    "{{ ''.encode().__class__ }}{{ ''.maketrans }}{{ ''.translate }}",
    "{{ [].append(1) }}{{ [].sort() }}{{ {}.update(a=1) }}{{ {}.setdefault(1, 2) }}",
    "{{ given.clear() }}{{ given.pop() }}{{ given.extend([1]) }}",
    "{{ (''|safe).__html__.__self__ }}{{ (''|safe).escape }}{{ (''|safe).unescape() }}",
    "{{ (''|safe).__class__.__mro__ }}",
    "{{ ''|xmlattr }}",
    "{{ {'a': ''}|pprint }}",
    "{{ [1]|random }}",
    "{% include '/etc/passwd' %}",
    "{% include ['/etc/passwd'] ignore missing %}",
    "{% extends '/etc/passwd' %}",
    "{% import '/etc/passwd' as a %}{{ a }}",
    "{% from '/etc/passwd' import a with context %}{{ a }}",
    "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    "{% debug %}",
    "{% trans a=''.__class__ %}{{ a }}{% endtrans %}",
    "{% do ''.__class__ %}",
    "{{ environment }}{{ context }}{{ resolve }}{{ undefined }}{{ Markup }}{{ _loop_vars }}",
    "{{ environment.filters }}{{ eval_ctx.environment }}{{ request.application.__globals__ }}",
    "{{ config.items() }}{{ get_flashed_messages.__globals__ }}{{ url_for.__globals__ }}",
    "{{ {}.__class__ is defined }}{{ {}['__class__'].x }}",
    "{% set x = namespace() %}{% set x.__class__ = 1 %}{{ x.__class__.y }}",
    "{% with a=''.__class__ %}{{ a.__mro__ }}{% endwith %}",
    "{% filter attr('__class__') %}a{% endfilter %}",
    "{% set a %}{{ ''.__class__ }}{% endset %}{{ a.__class__ }}",
    "{{ dict(__class__='').__class__ }}{{ dict(a='')|attr('a') }}",
    "{{ ''|map('__class__')|list }}{{ ['']|map('string.__class__')|list }}",
    "{{ [''] | select('__class__') | list }}",
    "{{ 'x' is filter('__class__') }}{{ ('os' is test).__class__ }}",
)


@pytest.mark.parametrize("source", ESCAPES)
def test_25_s03_nothing_escapes(source: str) -> None:
    """What is not refused is undefined, and prints nothing of Python."""
    sandbox, given = Sandbox.for_chats(), [1]
    try:
        text = sandbox.render(sandbox.from_string(source), {"given": given})
    except Exception:
        text = ""
    assert not [word for word in INTERNALS if word in text], text
    assert not any(word in text for word in ("object at 0x", "generator", "jinja2", "pagedrun"))
    assert given == [1]


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
    text = sandbox.render(sandbox.from_string(source), {"messages": messages})
    assert text == '1-1;1+0+2{"a": [1, "<é>"]}211True'


def test_s03_each_rendering_has_the_whole_budget() -> None:
    sandbox = Sandbox(max_work=20_000)
    template = sandbox.from_string("{% for i in range(900) %}{% endfor %}ok")
    assert [sandbox.render(template, {}) for _ in range(4)] == ["ok"] * 4
