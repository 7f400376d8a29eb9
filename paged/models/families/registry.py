"""The families that pagedrun can run, by the `model_type` of config.json."""

from typing import Any

from pagedrun.paged.models.families.ernie4_5 import ERNIE4_5
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.gemma2 import GEMMA2
from pagedrun.paged.models.families.gemma3 import GEMMA3
from pagedrun.paged.models.families.gemma4 import GEMMA4, GEMMA4_UNIFIED
from pagedrun.paged.models.families.glm4 import GLM4
from pagedrun.paged.models.families.gpt_oss import GPT_OSS
from pagedrun.paged.models.families.granite import GRANITE
from pagedrun.paged.models.families.hunyuan_v1_dense import HUNYUAN_V1_DENSE
from pagedrun.paged.models.families.lfm2 import LFM2
from pagedrun.paged.models.families.llama import LLAMA
from pagedrun.paged.models.families.ministral import MINISTRAL
from pagedrun.paged.models.families.ministral3 import MINISTRAL3
from pagedrun.paged.models.families.mistral import MISTRAL
from pagedrun.paged.models.families.mixtral import MIXTRAL
from pagedrun.paged.models.families.olmo2 import OLMO2
from pagedrun.paged.models.families.olmo3 import OLMO3
from pagedrun.paged.models.families.phi3 import PHI3
from pagedrun.paged.models.families.qwen2 import QWEN2
from pagedrun.paged.models.families.qwen2_moe import QWEN2_MOE
from pagedrun.paged.models.families.qwen3 import QWEN3
from pagedrun.paged.models.families.qwen3_5 import QWEN3_5
from pagedrun.paged.models.families.qwen3_5_moe import QWEN3_5_MOE
from pagedrun.paged.models.families.qwen3_moe import QWEN3_MOE
from pagedrun.paged.models.families.qwen3_next import QWEN3_NEXT
from pagedrun.paged.models.families.seed_oss import SEED_OSS
from pagedrun.paged.models.families.smollm3 import SMOLLM3

FAMILIES: dict[str, Family[Any]] = {
    "ernie4_5": ERNIE4_5,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4_UNIFIED,
    "glm4": GLM4,
    "gpt_oss": GPT_OSS,
    "granite": GRANITE,
    "hunyuan_v1_dense": HUNYUAN_V1_DENSE,
    "lfm2": LFM2,
    "llama": LLAMA,
    "ministral": MINISTRAL,
    "ministral3": MINISTRAL3,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "phi3": PHI3,
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_5_moe_text": QWEN3_5_MOE,
    "qwen3_5_text": QWEN3_5,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_next": QWEN3_NEXT,
    "seed_oss": SEED_OSS,
    "smollm3": SMOLLM3,
}
# Folders that hold a decoder beside parts for images: the type of the decoder where its config,
# `text_config`, does not name it.
NESTED: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
# Other decoders that such folders may hold, where `text_config` names them.
NESTED_TOO: dict[str, tuple[str, ...]] = {
    "mistral3": ("ministral3",),
}
