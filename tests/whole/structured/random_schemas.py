"""Random JSON schemas: objects, arrays, enums, patterns, bounds, references, nested, in Unicode."""

import random
from typing import Any

WORDS = (
    "name",
    "größe",
    "城市",
    "emoji 🎈",
    'quo"te',
    "back\\slash",
    "a",
    "line\nbreak",
    "émile",
    "",
)
PATTERNS = ("^[a-c]{1,4}$", "^(ab|cd)+$", "^[0-9]{2}-[0-9]{2}$", "^(é|ü|日){1,3}$", "x", "^#")

Schema = dict[str, Any]


def random_schema(seed: int) -> Schema:
    """Return the schema of an object that every run makes the same."""
    made = _Maker(random.Random(seed))
    schema = made.object(3)
    return {**schema, "$defs": made.definitions}


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.definitions: dict[str, Schema] = {"leaf": {"type": "boolean"}}

    def any(self, depth: int) -> Schema:
        plain = [self.string, self.number, self.word, self.constant, self.reference]
        nested = [self.object, self.array, self.either]
        if depth > 0 and self._rng.random() < 0.5:
            return self._rng.choice(nested)(depth - 1)
        return self._rng.choice(plain)()

    def object(self, depth: int) -> Schema:
        rng = self._rng
        names = rng.sample(WORDS, rng.randint(0, 4))
        required = [name for name in names if rng.random() < 0.7]
        return {
            "type": "object",
            "properties": {name: self.any(depth) for name in names},
            "required": required,
            "additionalProperties": rng.random() < 0.1,
        }

    def array(self, depth: int) -> Schema:
        least = self._rng.randint(0, 2)
        most = least + self._rng.randint(0, 2)
        items = self.any(depth)
        return {"type": "array", "items": items, "minItems": least, "maxItems": most}

    def either(self, depth: int) -> Schema:
        return {"anyOf": [self.any(depth) for _ in range(self._rng.randint(1, 3))]}

    def string(self) -> Schema:
        rng = self._rng
        if rng.random() < 0.5:
            return {"type": "string", "pattern": rng.choice(PATTERNS), "maxLength": 8}
        least = rng.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 5)}

    def number(self) -> Schema:
        low = self._rng.randint(-1000, 1000)
        high = low + self._rng.randint(0, 500)
        kind = self._rng.choice(("integer", "number"))
        return {"type": kind, "minimum": low, "maximum": high}

    def word(self) -> Schema:
        choices: list[Any] = [*self._rng.sample(WORDS, 3), 7, None, True, [1, "b"], {"k": "é"}]
        return {"enum": self._rng.sample(choices, self._rng.randint(1, 4))}

    def constant(self) -> Schema:
        return self._rng.choice(
            [{"type": "null"}, {"type": "boolean"}, {"const": self._rng.choice(WORDS)}]
        )

    def reference(self) -> Schema:
        return {"$ref": "#/$defs/leaf"}
