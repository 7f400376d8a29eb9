"""What a prompt template reads of a row, and what it only has in single braces."""

import tracemalloc

import pytest

from pagedrun.paged.job.prompts.prompt_builder import TemplateColumns


@pytest.mark.parametrize(
    ("source", "names", "reads_row", "in_braces"),
    [
        ("About {{ city }}", {"city"}, False, ()),
        ("About {city} and { name }", set(), False, ("city", "name")),
        ("{{ city }}: {city}", {"city"}, False, ("city",)),
        ('{"a": {{ city }}}', {"city"}, False, ()),
        ("{% raw %}{{ city }}{% endraw %}", set(), False, ()),
        ("{{ '{city}' }}", set(), False, ()),
        ("{# {city} #}", set(), False, ()),
        ("{{ row.city }} {{ row['my name'] }}", {"row", "city", "my name"}, False, ()),
        ("{{ row | tojson }}", {"row"}, True, ()),
        ("{% for key in row %}{{ key }}{% endfor %}", {"row"}, True, ()),
        ("{{ row[column] }}", {"row", "column"}, True, ()),
        ("{% set city = 'x' %}{{ city }}", set(), False, ()),
        ("{{ broken", set(), False, ()),
    ],
)
def test_of(source: str, names: set[str], reads_row: bool, in_braces: tuple[str, ...]) -> None:
    assert TemplateColumns.of(source) == TemplateColumns(frozenset(names), reads_row, in_braces)


@pytest.mark.parametrize(
    "expression",
    ["9**9**9", "'a' * 10**10", "'a'|center(10**10)", "[0] * 10**10", "'%10000000000d' % 1"],
)
def test_constants_are_not_computed(expression: str) -> None:
    """A template that hangs the command, or fills memory, before its first row."""
    tracemalloc.start()
    try:
        found = TemplateColumns.of("{{ " + expression + " }}{{ city }}")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.names == {"city"}
    assert peak < 100 * 2**20
