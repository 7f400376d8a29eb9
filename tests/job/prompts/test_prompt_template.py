"""The prompt template: what it can reach, and that it ends."""

import pytest

from pagedrun.paged.job.prompts.prompt_config import PromptTemplate
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.json_value import JSONValue


def render(source: str, **columns: JSONValue) -> str:
    return PromptTemplate(source).render(columns)


def test_columns_are_variables() -> None:
    assert render("{{ a }}-{{ row['b c'] }}", a=1, **{"b c": "x"}) == "1-x"
    assert render("{% for i in range(3) %}{{ i }}{% endfor %}") == "012"
    assert render("{{ range }}", range="mine") == "mine"
    assert render("{{ text }}", text="<b> & {{ not_a_template }}") == "<b> & {{ not_a_template }}"


@pytest.mark.parametrize("source", ["{{ a", "{% for %}", "{{ a | no_such_filter }}", "{% x %}"])
def test_a_template_that_does_not_compile_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="prompt_template"):
        PromptTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ missing }}",
        "{{ a.missing.more }}",
        "{{ 1 / 0 }}",
        "{{ a + 1 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ row.clear() }}",
        "{{ a.append(1) }}{{ items.append(1) }}",
        "{{ 'x' * 10**9 }}",
        "{{ 10**9 * [1] }}",
        "{{ 10 ** (10 ** 9) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(10**30) %}{% endfor %}",
        "{{ '\\ud800' }}",
    ],
)
def test_a_template_that_fails_fails_its_row_soon(source: str) -> None:
    template = PromptTemplate(source)
    with pytest.raises(RowError) as caught:
        template.render({"a": "text", "items": [1]})
    assert caught.value.code == "template_error"
    caught.value.message.encode("utf-8")


@pytest.mark.parametrize(
    "source",
    ["{{ name }}", "{{ name.more }}", "{% for x in name %}{% endfor %}", "{{ name|upper ~ a }}"],
)
def test_a_column_that_is_missing_is_named(source: str) -> None:
    with pytest.raises(RowError, match="needs a column 'name', which the row does not") as caught:
        render(source, a=1)
    assert (caught.value.code, caught.value.param) == ("template_error", "name")
    assert render("{% if name is defined %}{{ name }}{% endif %}{{ name|default('x') }}") == "x"


def test_the_output_is_bounded() -> None:
    template = PromptTemplate("{% for i in range(10) %}{{ a }}{% endfor %}", max_chars=1000)
    assert len(template.render({"a": "x" * 100})) == 1000
    with pytest.raises(RowError, match="exceeds 1000 characters"):
        template.render({"a": "x" * 101})


def test_one_row_does_not_use_up_the_next_ones_range() -> None:
    template = PromptTemplate("{% for i in range(90000) %}{% endfor %}ok")
    assert [template.render({}) for _ in range(20)] == ["ok"] * 20
