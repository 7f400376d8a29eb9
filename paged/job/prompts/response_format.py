"""OpenAI's `response_format`, in this tool's own words."""

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue

RESPONSE_FORMAT = "response_format"


def structure_of(value: JSONValue) -> dict[str, JSONValue]:
    """Return the sampling fields that a `response_format` sets: one, or none for plain text.

    Raises `RowError` (`invalid_param`) for another type, or a schema that is not where it belongs.
    A schema is kept to whether it says `strict` or not.
    """
    asked = value if isinstance(value, dict) else {}
    match asked.get("type"):
        case "text":
            return {}
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            named = asked.get("json_schema")
            schema = named.get("schema") if isinstance(named, dict) else None
            if isinstance(schema, dict):
                return {"json_schema": schema}
            raise _invalid("needs the schema, an object, under json_schema.schema")
    raise _invalid("must be an object with type text, json_object or json_schema")


def _invalid(reason: str) -> RowError:
    return RowError("invalid_param", f"{RESPONSE_FORMAT} {reason}", param=RESPONSE_FORMAT)
