"""The keywords of `LLM` are those of the configurations."""

from pathlib import Path
from typing import get_type_hints

from pagedrun.paged.values.engine_config import EngineConfig, EngineOptions, ReplicaConfig
from pagedrun.paged.values.flags import flag_fields


def test_they_have_the_names_and_the_types_of_the_fields() -> None:
    fields = [*flag_fields(EngineConfig), *flag_fields(ReplicaConfig)]
    expected = {each.field: each.kind for each in fields if each.field != "model"}
    for name in ("swap_dir", "prefix_store", "packed_dir"):
        expected[name] = str | Path | None  # a path may be given as text
    assert get_type_hints(EngineOptions) == expected
    assert list(EngineOptions.__annotations__) == list(expected)
    assert not EngineOptions.__required_keys__
