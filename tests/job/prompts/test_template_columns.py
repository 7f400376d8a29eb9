"""What a prompt template reads of a row, and what it only has in single braces."""

import pytest

from pagedrun.paged.job.prompts.template_columns import TemplateColumns


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
