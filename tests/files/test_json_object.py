"""Fields of a model's JSON files: values of another type are refused, also those that Python would
take."""

import pytest

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

NAN = float("nan")


@pytest.mark.parametrize("value", [True, False, 2.0, "2", [2], -1, 9, 10**30])
def test_what_is_no_integer_of_the_range_is_refused(value: JSONValue) -> None:
    fields = JsonObject("config.json", {"n": value})
    with pytest.raises(ModelError, match=r"^config\.json: n is .*an integer from 0 to 8$"):
        fields.integer("n", 0, 8, default=3)


@pytest.mark.parametrize("value", [True, "0.5", NAN, float("inf"), -0.1, 10**400])
def test_what_is_no_number_of_the_range_is_refused(value: JSONValue) -> None:
    fields = JsonObject("config.json", {"x": value})
    with pytest.raises(ModelError, match=r"^config\.json: x is .*a number from 0 to 1$"):
        fields.number("x", 0.0, 1.0, default=0.5)


@pytest.mark.parametrize("value", [0, 1, "true", []])
def test_what_is_neither_true_nor_false_is_refused(value: JSONValue) -> None:
    fields = JsonObject("config.json", {"on": value})
    with pytest.raises(ModelError, match=r"^config\.json: on is .*true or false$"):
        fields.boolean("on", default=True)
