"""JSONValue: what a JSON document may hold; `isinstance` tells which it is."""

JSONValue = bool | int | float | str | None | list["JSONValue"] | dict[str, "JSONValue"]
