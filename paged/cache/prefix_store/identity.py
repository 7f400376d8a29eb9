"""StoreIdentity: all that keys and values depend on, but the tokens."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedrun.paged.values.option_names import option

# What a user calls the fields of an identity.
_NAMES = {
    "weights": "weights",
    "config": "config.json",
    "dtype": option("dtype"),
    "kv_dtype": option("kv_cache_dtype"),
    "block_size": option("block_size"),
    "reproducible": option("reproducible"),
}


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Which runs may use each other's keys and values: those with the same `fingerprint`.

    `model` is a name for people. `fields` hold what decides the bytes: the weights and the shape
    of the model, the number formats, the block size; and, since the last bits of a sum belong to
    whoever summed it, the machine and the code: processor or GPU, threads, libraries, kernels.
    """

    model: str
    fields: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that name all fields."""
        text = json.dumps(self.fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differing(self, other: "StoreIdentity") -> list[str]:
        """Return what differs, in a user's words; options are marked as messages mark them."""
        names = [
            _NAMES.get(name, "machine or version")
            for name in sorted({*self.fields, *other.fields})
            if self.fields.get(name) != other.fields.get(name)
        ]
        return list(dict.fromkeys(names))
