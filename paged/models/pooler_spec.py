"""Models of a task with their poolers, read from a model folder without torch.

Folders of sentence-transformers list the modules of a pooler in modules.json; models for sequence
classification have the head of their family; other folders have none, and the pooling is a default
or a flag's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pagedrun.paged.files.gguf import is_gguf
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import HEAD
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.registry import ENCODERS, FAMILIES
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.embedding import EncoderEmbeddingSpec
from pagedrun.paged.models.modules.norm import LayerNormSpec
from pagedrun.paged.models.pooler_steps import (
    Activation,
    DenseStep,
    LogitStep,
    NormStep,
    PoolerSpec,
    Scores,
    Step,
    TokenStep,
    UnitStep,
    activation,
)
from pagedrun.paged.models.quant.registry import with_quantization
from pagedrun.paged.models.runnable_config import read_configs
from pagedrun.paged.models.sentence_folder import MODULES_FILE, PairForm, SentenceFolder
from pagedrun.paged.values.errors import ModelError, UsageError, listed, option
from pagedrun.paged.values.pooling import (
    RERANK_INSTRUCTION,
    PairOrder,
    Pooling,
    PoolingParams,
    Task,
)


@dataclass(frozen=True, slots=True)
class PooledModelSpec:
    """Model of a task with its pooler.

    `saved`: settings of its folder, for texts and pairs. `prompt` is put before each text, or
    before the first of a pair.
    """

    folder: Path
    config: ModelConfig
    pooler: PoolerSpec
    saved: SentenceFolder = field(default_factory=SentenceFolder)
    prompt: str = ""

    @classmethod
    def read(cls, folder: Path, params: PoolingParams) -> "PooledModelSpec":
        """Read the folder of a model for a task.

        Raises `ModelError` for a model that has no such result or is not supported, `UsageError`
        for a setting that it does not have.
        """
        if is_gguf(folder):
            raise ModelError(f"{folder}: a GGUF file has no pooling; pass a model folder")
        saved = SentenceFolder.read(folder, params.prompt_name)
        raw, _ = read_configs(folder)
        config = cls.read_network(folder)
        pooler, saved = _pooler(folder, raw, config, saved, params)
        if saved.pairs is PairForm.TEMPLATE and params.pair_order is PairOrder.DOCUMENT:
            raise UsageError(
                f"{option('pair_order')} document: the chat template of {folder} has an order of "
                "its own; leave it out"
            )
        return cls(folder, config, pooler, saved, _prompt(folder, saved, params))

    @classmethod
    def read_network(cls, folder: Path) -> ModelConfig:
        """Read the model of a folder without a head, for any task; raises as `read`."""
        raw, generation = read_configs(folder)
        raw = with_quantization(folder, raw)
        config = _bidirectional(raw, generation)
        config = replace(config, network=replace(config.network, head=None, has_head=False))
        config = replace(config, network=_ignoring_heads(config.network))
        _refuse_unsupported(config.network, raw)
        return config

    @property
    def max_length(self) -> int:
        """Longest text, in tokens."""
        return self.saved.limit(self.config.max_position_embeddings)

    @property
    def shares_prefixes(self) -> bool:
        """True if a text's result is that of its last token, which sees only those before it: texts
        share the keys and values of common prefixes."""
        network = self.config.network
        is_causal = isinstance(network, DecoderSpec) and network.is_causal
        return is_causal and self.pooler.poolings == (Pooling.LAST,)

    @property
    def identity(self) -> dict[str, str]:
        """Everything of it that the bytes of a result depend on besides the network, by name."""
        saved = replace(self.saved, pooler=None, prompts={})
        return {"pooler": f"{self.pooler} {self.prompt!r} {self.max_length} {saved}"}

    def with_answers(self, no_and_yes: Sequence[Sequence[int]]) -> "PooledModelSpec":
        """Return the model with the tokens of `no` and `yes`, whose logits are compared.

        Raises `ModelError` if one of them is not one token.
        """
        if not isinstance(_last(self.pooler), TokenStep):
            return self
        if [len(each) for each in no_and_yes] != [1, 1]:
            raise ModelError(
                "the tokenizer has no tokens `no` and `yes`, whose logits score a pair; pass a "
                "reranker such as Qwen3-Reranker"
            )
        (no,), (yes,) = no_and_yes
        step = TokenStep(HEAD, (no, yes))
        return replace(self, pooler=replace(self.pooler, steps=(step,)))


def _prompt(folder: Path, saved: SentenceFolder, params: PoolingParams) -> str:
    name = params.prompt_name or saved.default_prompt_name
    is_route = params.prompt_name in saved.routes
    if params.prompt is not None:
        if params.prompt_name is not None and not is_route:
            raise UsageError(f"{option('prompt')} and {option('prompt_name')} exclude each other")
        return params.prompt
    if saved.pairs is PairForm.TEMPLATE and params.instruction != RERANK_INSTRUCTION:
        return params.instruction
    if name is None or (is_route and name not in saved.prompts):
        return ""
    if name not in saved.prompts:
        has = f"it has {listed(saved.prompts)}" if saved.prompts else "it has none"
        raise UsageError(
            f"{option('prompt_name')} {name}: {folder} has no prompt of this name; {has}, and "
            f"{option('prompt')} gives the text itself"
        )
    return saved.prompts[name]


def _bidirectional(raw: JsonObject, generation: JsonObject | None) -> ModelConfig:
    """Return the config of an encoder, or of a decoder with or without a causal mask."""
    sees_all = raw.boolean("use_bidirectional_attention", False)
    sees_all = sees_all or not raw.boolean("is_causal", True)
    fields = dict(raw.fields)
    if sees_all:
        del_fields = ("use_bidirectional_attention", "is_causal")
        fields = {name: value for name, value in fields.items() if name not in del_fields}
        if raw.get("model_type") == "gemma3_text" and raw.has("sliding_window"):
            # As transformers 5: tokens less than half a window and one away are seen.
            fields["sliding_window"] = raw.integer("sliding_window", 1, 2**27) // 2 + 1
    plain = JsonObject(raw.origin, fields)
    config = ModelConfig.from_json(plain, generation, {**FAMILIES, **ENCODERS})
    if not sees_all:
        return config
    return replace(config, network=replace(config.network, is_causal=False))


def _ignoring_heads(network: DecoderSpec) -> DecoderSpec:
    """Return a network whose checkpoint may have heads, and names without `model.`."""
    tensors = network.tensors
    if isinstance(network.embedding, EncoderEmbeddingSpec):
        return network
    bare = replace(tensors.layouts[0], model="")
    return replace(
        network,
        tensors=replace(
            tensors,
            layouts=(*tensors.layouts, bare),
            dropped=(*tensors.dropped, f"{HEAD}.", "score.", "classifier.", "head.", "decoder."),
        ),
    )


def _refuse_unsupported(network: DecoderSpec, raw: JsonObject) -> None:
    if not network.is_capturable:
        raise ModelError(
            f"{raw.origin}: model_type {raw.get('model_type')!r} has recurrent layers, which have "
            "no vectors of texts here; use another model"
        )
    if any(each.source is not None for each in network.attentions.values()):
        raise ModelError(
            f"{raw.origin}: model_type {raw.get('model_type')!r} has layers that read the keys of "
            "others, which have no vectors of texts here; use another model"
        )


def _last(pooler: PoolerSpec) -> Step | None:
    return pooler.steps[-1] if pooler.steps else None


def _pooler(
    folder: Path,
    raw: JsonObject,
    config: ModelConfig,
    saved: SentenceFolder,
    params: PoolingParams,
) -> tuple[PoolerSpec, SentenceFolder]:
    """Return the pooler of a task, and the settings of texts with it.

    Settings of the run have precedence over those of the folder.
    """
    names = raw.get("architectures")
    architectures = [str(each) for each in names] if isinstance(names, list) else []
    classifies = any(each.endswith("ForSequenceClassification") for each in architectures)
    scores = saved.kind == "CrossEncoder"
    shown = ", ".join(architectures) or "its architecture"
    if params.task is Task.EMBED:
        if (scores or (classifies and saved.pooler is None)) and params.pooling is None:
            raise ModelError(
                f"{folder}: {'a CrossEncoder' if scores else shown} gives scores; use pagedrun "
                f"classify or rerank, or pass {option('pooling')} for the vectors of its texts"
            )
        if scores:  # its prompts and modules are for scores
            saved = SentenceFolder(max_length=saved.max_length, lowering=saved.lowering)
        return _vectors(config, saved, params), saved
    if params.task is Task.RERANK and scores and saved.task != "sequence-classification":
        return _scored_modules(folder, config, saved), saved
    if classifies and (scores or saved.pooler is None):
        if params.task is Task.RERANK and config.network.is_causal:
            saved = replace(saved, pairs=_pairs_of_decoder(folder, raw, saved))
        elif saved.pairs is PairForm.TEMPLATE:
            raise ModelError(
                f"{folder}: texts of this model pass through a chat template; use pagedrun rerank"
            )
        return _classifier(raw, config, saved, params), saved
    if params.task is Task.RERANK and config.network.is_causal:
        if not _is_qwen3_reranker(folder, raw):
            raise ModelError(
                f"{folder}: {shown} answers prompts, and nothing in the folder says that it is a "
                "reranker, or what its prompt is; pass a model saved as a CrossEncoder of "
                "sentence-transformers, or one for sequence classification. A copy of "
                'Qwen3-Reranker has "is_original_qwen3_reranker": true in config.json, or its name'
            )
        saved = replace(saved, pairs=PairForm.QWEN3)
        return PoolerSpec((Pooling.LAST,), (TokenStep(HEAD),), "softmax"), saved
    raise ModelError(
        f"{folder}: {shown} has no head that "
        f"{'scores pairs' if params.task is Task.RERANK else 'scores labels'}; pass a model "
        "for sequence classification"
    )


def _vectors(config: ModelConfig, saved: SentenceFolder, params: PoolingParams) -> PoolerSpec:
    """Return the pooler of vectors."""
    default = Pooling.LAST if config.network.is_causal else Pooling.MEAN
    pooler = PoolerSpec((default,)) if saved.pooler is None else saved.pooler
    if params.pooling is not None:
        pooler = replace(pooler, poolings=(params.pooling,))
    dimensions = params.dimensions
    if dimensions is None and saved.truncate_dim is not None:
        dimensions = saved.truncate_dim
        if params.normalize is None and pooler.normalizes:
            # The library cuts behind all modules, and does not scale again.
            pooler = replace(pooler, steps=(*pooler.steps, UnitStep()), normalizes=False)
    normalizes = pooler.normalizes if params.normalize is None else params.normalize
    return replace(pooler, normalizes=normalizes, dimensions=dimensions)


def _scored_modules(folder: Path, config: ModelConfig, saved: SentenceFolder) -> PoolerSpec:
    """Return the pooler of a cross-encoder whose modules make scores of vectors or logits."""
    pooler = saved.pooler
    assert pooler is not None
    network = config.network
    for step in pooler.steps:
        if not isinstance(step, LogitStep):
            continue
        if max(step.token_id, step.less or 0) >= config.vocab_size:
            raise ModelError(
                f"{folder / MODULES_FILE}: its LogitScore reads a token beyond the vocabulary of "
                f"{config.vocab_size}"
            )
        if not network.is_causal or network.logits_cap is not None or network.logits_divisor != 1:
            raise ModelError(
                f"{folder}: scores of logits are supported for decoders whose logits are those of "
                f"a linear head; model_type {config.model_type!r} is another"
            )
    if len(pooler.labels) > 1:
        raise ModelError(f"{folder}: it has {len(pooler.labels)} scores, and a reranker has one")
    return replace(pooler, scores=saved.activation or "sigmoid")


def _pairs_of_decoder(folder: Path, raw: JsonObject, saved: SentenceFolder) -> PairForm:
    """Return the form of the pairs of a decoder with a head that scores them."""
    if saved.pairs is PairForm.TEMPLATE or saved.kind == "CrossEncoder":
        return saved.pairs
    if _is_qwen3_reranker(folder, raw):
        return PairForm.QWEN3
    config = folder / "tokenizer_config.json"
    has_template = (folder / "chat_template.jinja").exists() or (
        config.exists() and JsonObject.read(config).has("chat_template")
    )
    return PairForm.TEMPLATE if has_template else PairForm.TEXTS


_QWEN3_RERANKER = re.compile(r"qwen3-reranker", re.IGNORECASE)
_CARD_OF_QWEN3_RERANKER = re.compile(
    r"^(#\s*|base_model:\s*(-\s*)?[\"']?)(Qwen/)?Qwen3-Reranker", re.IGNORECASE | re.MULTILINE
)
_CARD_BYTES = 2**16


def _is_qwen3_reranker(folder: Path, raw: JsonObject) -> bool:
    """Return true for Qwen3-Reranker and its copies.

    Their config.json is that of Qwen3: vLLM's field in it, the folder's name (in a hub's cache that
    of the repository), the name it was saved under, or the title or base of the model card says so.
    """
    if raw.get("model_type") != "qwen3":
        return False
    if raw.boolean("is_original_qwen3_reranker", False):
        return True
    own = folder.resolve()
    names = [folder.name, own.name, raw.string("_name_or_path") or ""]
    if own.parent.name == "snapshots":
        names.append(own.parent.parent.name)
    if any(_QWEN3_RERANKER.search(name) for name in names):
        return True
    card = folder / "README.md"
    if not card.is_file():
        return False
    with card.open("rb") as file:
        text = file.read(_CARD_BYTES).decode(errors="replace")
    return _CARD_OF_QWEN3_RERANKER.search(text) is not None


def _classifier(
    raw: JsonObject, config: ModelConfig, saved: SentenceFolder, params: PoolingParams
) -> PoolerSpec:
    """Return the pooler of a model for sequence classification, by its family."""
    labels = _labels(raw)
    pooling, steps = _head(raw, config)
    one = len(labels) == 1
    if params.task is Task.RERANK:
        if not one:
            raise ModelError(
                f"{raw.origin}: it has {len(labels)} labels, and a reranker has one; use "
                "pagedrun classify"
            )
        scores = saved.activation or _reranker_scores(raw)
        return PoolerSpec((pooling,), steps, scores, labels=labels)
    problem = raw.string("problem_type")
    kind: Scores = "sigmoid" if one or problem == "multi_label_classification" else "softmax"
    if problem == "regression":
        kind = "identity"
    return PoolerSpec((pooling,), steps, kind, labels=labels)


def _reranker_scores(raw: JsonObject) -> Activation:
    """Return the function of a cross-encoder's score, as sentence-transformers before 5.4 saves it.

    Versions from 4 on write it into an object of config.json, earlier ones beside the fields.
    """
    own = raw.nested("sentence_transformers")
    found = None if own is None else activation(own, "activation_fn")
    found = found or activation(raw, "sbert_ce_default_activation_function")
    return found or "sigmoid"


def _labels(raw: JsonObject) -> tuple[str, ...]:
    given = raw.nested("id2label")
    if given is None:
        return tuple(f"LABEL_{i}" for i in range(raw.integer("num_labels", 1, 2**20, 2)))
    try:
        by_id = {int(number): str(name) for number, name in given.fields.items()}
        return tuple(by_id[number] for number in range(len(by_id)))
    except (KeyError, ValueError) as error:
        raise raw.error("id2label", "an object of names by the numbers from 0 on") from error


def _head(raw: JsonObject, config: ModelConfig) -> tuple[Pooling, tuple[Step, ...]]:
    """Return the pooling and the steps of the head of a family."""
    last = DenseStep("classifier")
    match config.model_type:
        case "bert":
            return Pooling.CLS, (DenseStep("bert.pooler.dense", "tanh"), last)
        case "albert":
            return Pooling.CLS, (DenseStep("albert.pooler", "tanh"), last)
        case "deberta-v2":
            functions: dict[str, Activation] = {"gelu": "gelu", "relu": "relu", "tanh": "tanh"}
            name = raw.string("pooler_hidden_act") or "gelu"
            if name not in functions:
                raise raw.error("pooler_hidden_act", " or ".join(functions))
            return Pooling.CLS, (DenseStep("pooler.dense", functions[name]), last)
        case "electra":
            first = DenseStep("classifier.dense", "gelu")
            return Pooling.CLS, (first, DenseStep("classifier.out_proj"))
        case "gte" | "nomic_bert":
            return Pooling.CLS, (DenseStep(f"{config.model_type}.pooler.dense", "tanh"), last)
        case "roberta" | "xlm-roberta" | "camembert" | "mpnet" | "jina_embeddings_v3":
            first = DenseStep("classifier.dense", "tanh")
            return Pooling.CLS, (first, DenseStep("classifier.out_proj"))
        case "distilbert":
            return Pooling.CLS, (DenseStep("pre_classifier", "relu"), last)
        case "modernbert":
            if (raw.string("classifier_activation") or "gelu") != "gelu":
                raise raw.error("classifier_activation", '"gelu"')
            size = config.hidden_size
            norm = LayerNormSpec(
                "head.norm",
                size,
                raw.number("norm_eps", 0.0, 1.0, 1e-5),
                raw.boolean("norm_bias", False),
            )
            pooling = Pooling(raw.string("classifier_pooling") or "cls")
            return pooling, (DenseStep("head.dense", "gelu"), NormStep(norm), last)
    return Pooling.LAST, (DenseStep("score", has_bias=False),)
