"""Families by the `model_type` of config.json, and the known types that are not supported."""

from pagedrun.paged.models.families.albert import ALBERT
from pagedrun.paged.models.families.bert import BERT
from pagedrun.paged.models.families.deberta_v2 import DEBERTA_V2
from pagedrun.paged.models.families.distilbert import DISTILBERT
from pagedrun.paged.models.families.dots1 import DOTS1
from pagedrun.paged.models.families.electra import ELECTRA
from pagedrun.paged.models.families.ernie4_5 import ERNIE4_5
from pagedrun.paged.models.families.ernie4_5_moe import ERNIE4_5_MOE
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.gemma2 import GEMMA2
from pagedrun.paged.models.families.gemma3 import GEMMA3
from pagedrun.paged.models.families.gemma4 import GEMMA4, GEMMA4_UNIFIED
from pagedrun.paged.models.families.glm4 import GLM4
from pagedrun.paged.models.families.glm4_moe import GLM4_MOE
from pagedrun.paged.models.families.gpt_oss import GPT_OSS
from pagedrun.paged.models.families.granite import GRANITE
from pagedrun.paged.models.families.granitemoe import GRANITEMOE, GRANITEMOEHYBRID
from pagedrun.paged.models.families.gte import GTE
from pagedrun.paged.models.families.hunyuan_v1_dense import HUNYUAN_V1_DENSE
from pagedrun.paged.models.families.hunyuan_v1_moe import HUNYUAN_V1_MOE
from pagedrun.paged.models.families.jina_embeddings_v3 import JINA_EMBEDDINGS_V3
from pagedrun.paged.models.families.lfm2 import LFM2
from pagedrun.paged.models.families.lfm2_moe import LFM2_MOE
from pagedrun.paged.models.families.llama import LLAMA
from pagedrun.paged.models.families.mimo import MIMO
from pagedrun.paged.models.families.minimax_m2 import MINIMAX_M2
from pagedrun.paged.models.families.ministral import MINISTRAL
from pagedrun.paged.models.families.ministral3 import MINISTRAL3
from pagedrun.paged.models.families.mistral import MISTRAL
from pagedrun.paged.models.families.mixtral import MIXTRAL
from pagedrun.paged.models.families.modernbert import MODERNBERT
from pagedrun.paged.models.families.mpnet import MPNET
from pagedrun.paged.models.families.nomic_bert import NOMIC_BERT
from pagedrun.paged.models.families.olmo2 import OLMO2
from pagedrun.paged.models.families.olmo3 import OLMO3
from pagedrun.paged.models.families.olmoe import OLMOE
from pagedrun.paged.models.families.phi3 import PHI3
from pagedrun.paged.models.families.qwen2 import QWEN2
from pagedrun.paged.models.families.qwen2_moe import QWEN2_MOE
from pagedrun.paged.models.families.qwen3 import QWEN3
from pagedrun.paged.models.families.qwen3_5 import QWEN3_5
from pagedrun.paged.models.families.qwen3_5_moe import QWEN3_5_MOE
from pagedrun.paged.models.families.qwen3_moe import QWEN3_MOE
from pagedrun.paged.models.families.qwen3_next import QWEN3_NEXT
from pagedrun.paged.models.families.roberta import ROBERTA
from pagedrun.paged.models.families.seed_oss import SEED_OSS
from pagedrun.paged.models.families.smollm3 import SMOLLM3

FAMILIES: dict[str, Family] = {
    "dots1": DOTS1,
    "ernie4_5_moe": ERNIE4_5_MOE,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4_UNIFIED,
    "glm4": GLM4,
    "glm4_moe": GLM4_MOE,
    "gpt_oss": GPT_OSS,
    "granite": GRANITE,
    "granitemoe": GRANITEMOE,
    "granitemoehybrid": GRANITEMOEHYBRID,
    "granitemoeshared": GRANITEMOE,
    "hunyuan_v1_dense": HUNYUAN_V1_DENSE,
    "hunyuan_v1_moe": HUNYUAN_V1_MOE,
    "lfm2": LFM2,
    "lfm2_moe": LFM2_MOE,
    "llama": LLAMA,
    "mimo": MIMO,
    "minimax_m2": MINIMAX_M2,
    "ministral": MINISTRAL,
    "ministral3": MINISTRAL3,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "olmoe": OLMOE,
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
    "ernie4_5": ERNIE4_5,
}
# Encoders, which give vectors and scores and no text.
ENCODERS: dict[str, Family] = {
    "albert": ALBERT,
    "bert": BERT,
    "camembert": ROBERTA,
    "deberta-v2": DEBERTA_V2,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "gte": GTE,
    "jina_embeddings_v3": JINA_EMBEDDINGS_V3,
    "modernbert": MODERNBERT,
    "mpnet": MPNET,
    "nomic_bert": NOMIC_BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
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

# Decoders with recurrent layers, which have no vectors and scores of texts.
WITHOUT_VECTORS = frozenset(
    {
        *("lfm2", "lfm2_moe", "qwen3_next"),
        *("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    }
)

_MAMBA = "recurrent layers (Mamba-2)"
_LATENT = "latent attention (MLA)"
_SHARED = "layers that read the keys of other layers"
_INDEXED = "attention to keys selected by an indexer"
_LATENT_INDEXED = f"{_LATENT}, and {_INDEXED}"
_HYPER = "several residual streams (hyper-connections)"
_UNDESCRIBED = "a standard description of its layers"
_PREFIXES = "support for its tensor names"

# By the `model_type` of config.json.
UNSUPPORTED: dict[str, tuple[str, str]] = {
    "afmoe": ("attention with an output gate, and its form of sliding windows", "glm4_moe"),
    "bailing_hybrid": (f"{_LATENT}, and recurrent layers (Kimi Delta Attention)", "glm4_moe"),
    "cohere2": ("layer norms with a mean, and attention beside feed-forward", "ministral"),
    "deepseek_v2": (_LATENT, "qwen2_moe"),
    "deepseek_v3": (_LATENT, "glm4_moe"),
    "deepseek_v32": (_LATENT_INDEXED, "glm4_moe"),
    "deepseek_v4": (f"{_INDEXED}, and {_HYPER}", "qwen3_moe"),
    "exaone4": (_UNDESCRIBED, "olmo3"),
    "gemma": (_UNDESCRIBED, "gemma2"),
    "gemma3n_text": (_SHARED, "gemma3_text"),
    "gemma3n": (_SHARED, "gemma3"),
    "glm4_moe_lite": (_LATENT, "glm4_moe"),
    "kimi_linear": (f"{_LATENT}, and recurrent layers (Kimi Delta Attention)", "qwen3_moe"),
    "llama4": ("attention in chunks", "llama"),
    "llama4_text": ("attention in chunks", "llama"),
    "mistral4": (_LATENT, "ministral3"),
    "nemotron_h": (_MAMBA, "llama"),
    "phimoe": ("layer norms with a mean, and a router that masks scores", "mixtral"),
    "phi": ("layer norms with a mean", "phi3"),
    "qwen3_vl": (_PREFIXES, "qwen3"),
    "qwen3_vl_moe": (_PREFIXES, "qwen3_moe"),
    "qwen2_5_vl": (_PREFIXES, "qwen2"),
    # Large ones, of which each has layers that no other model has.
    "glm5_next": (_LATENT_INDEXED, "glm4_moe"),
    "glm_moe_dsa": (_LATENT_INDEXED, "glm4_moe"),
    "hy_v4": (_LATENT_INDEXED, "hunyuan_v1_dense"),
    "inkling_mm_model": (
        "attention scores that depend on distance instead of rotations",
        "qwen3_moe",
    ),
    "inkling_text": ("attention scores that depend on distance instead of rotations", "qwen3_moe"),
    "kimi_k25": (_LATENT, "glm4_moe"),
    "lfm3": ("attention with an output gate for each head", "lfm2"),
    "mistral_large4": (_LATENT_INDEXED, "ministral3"),
    "muse_spark": ("gated residual streams, and norms after attention heads", "qwen3_moe"),
    "qwen4_exp": (f"{_INDEXED}, and embeddings of several tokens", "qwen3_moe"),
}
