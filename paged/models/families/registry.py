"""The families that pagedrun can run, by the `model_type` of config.json."""

from typing import Any

from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.llama import LLAMA
from pagedrun.paged.models.families.mistral import MISTRAL
from pagedrun.paged.models.families.qwen2 import QWEN2
from pagedrun.paged.models.families.qwen3 import QWEN3

FAMILIES: dict[str, Family[Any]] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
}
