"""Models of a task with their poolers, read from a model folder without torch.

Folders of sentence-transformers list the modules of a pooler in modules.json; models for sequence
classification have the head of their family; other folders have none, and the pooling is a default
or a flag's.
"""

from collections.abc import Mapping, Sequence
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
    DenseStep,
    NormStep,
    PoolerSpec,
    Scores,
    Step,
    StepActivation,
    TokenStep,
)
from pagedrun.paged.models.quant.registry import with_quantization
from pagedrun.paged.models.runnable_config import read_configs
from pagedrun.paged.values.errors import ModelError, UsageError, listed, option
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.pooling import Pooling, PoolingParams, Task


@dataclass(frozen=True, slots=True)
class PooledModelSpec:
    """Model of a task with its pooler.

    `prompts` are texts to put before a text, by name; `prompt` is that of this run. `max_length`
    bounds a text, in tokens. `has_prompt_of_pairs`: pairs are one text of a template, not two
    texts. `lowers_case`: texts are written in lower case first.
    """

    config: ModelConfig
    pooler: PoolerSpec
    max_length: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""
    has_prompt_of_pairs: bool = False
    lowers_case: bool = False

    @classmethod
    def read(cls, folder: Path, params: PoolingParams) -> "PooledModelSpec":
        """Read the folder of a model for a task.

        Raises `ModelError` for a model that has no such result or is not supported, `UsageError`
        for a setting that it does not have.
        """
        if is_gguf(folder):
            raise ModelError(f"{folder}: a GGUF file has no pooling; pass a model folder")
        modules = _listed_modules(folder)
        raw, _ = read_configs(folder)
        config = cls.read_network(folder)
        pooler = _pooler(folder, raw, config, modules, params)
        spec = cls(config, pooler, config.max_position_embeddings)
        if params.task is Task.RERANK and isinstance(_last(spec.pooler), TokenStep):
            spec = replace(spec, has_prompt_of_pairs=True)
        return spec._with_modules(folder, modules, params)

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
    def shares_prefixes(self) -> bool:
        """True if a text's result is that of its last token, which sees only those before it: texts
        share the keys and values of common prefixes."""
        network = self.config.network
        is_causal = isinstance(network, DecoderSpec) and network.is_causal
        return is_causal and self.pooler.poolings == (Pooling.LAST,)

    @property
    def identity(self) -> dict[str, str]:
        """Everything of it that the bytes of a result depend on besides the network, by name."""
        return {"pooler": f"{self.pooler} {self.prompt!r} {self.max_length} {self.lowers_case}"}

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

    def _with_modules(
        self, folder: Path, modules: PoolerSpec | None, params: PoolingParams
    ) -> "PooledModelSpec":
        """Return the model with the lengths and prompts of a folder of sentence-transformers."""
        prompts, default, length, lowers = {}, None, self.max_length, False
        path = folder / "sentence_bert_config.json"
        if modules is not None and path.exists():
            own = JsonObject.read(path)
            if own.has("max_seq_length"):
                length = min(length, own.integer("max_seq_length", 1, 2**27))
            lowers = own.boolean("do_lower_case", False)
        path = folder / "config_sentence_transformers.json"
        if path.exists():
            own = JsonObject.read(path)
            given = own.nested("prompts")
            prompts = {} if given is None else {n: str(text) for n, text in given.fields.items()}
            default = own.string("default_prompt_name")
        spec = replace(self, max_length=length, prompts=prompts, lowers_case=lowers)
        return replace(spec, prompt=_prompt(folder, prompts, default, params))


def _prompt(
    folder: Path, prompts: Mapping[str, str], default: str | None, params: PoolingParams
) -> str:
    if params.prompt is not None:
        if params.prompt_name is not None:
            raise UsageError(f"{option('prompt')} and {option('prompt_name')} exclude each other")
        return params.prompt
    name = params.prompt_name or default
    if name is None:
        return ""
    if name not in prompts:
        has = f"it has {listed(prompts)}" if prompts else "it has none"
        raise UsageError(
            f"{option('prompt_name')} {name}: {folder} has no prompt of this name; {has}, and "
            f"{option('prompt')} gives the text itself"
        )
    return prompts[name]


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
    modules: PoolerSpec | None,
    params: PoolingParams,
) -> PoolerSpec:
    """Return the pooler of a task; settings of the run have precedence."""
    names = raw.get("architectures")
    architectures = [str(each) for each in names] if isinstance(names, list) else []
    classifies = any(each.endswith("ForSequenceClassification") for each in architectures)
    if params.task is Task.EMBED:
        if classifies and modules is None and params.pooling is None:
            raise ModelError(
                f"{folder}: {architectures[0]} gives scores; use pagedrun classify or rerank, or "
                f"pass {option('pooling')} for the vectors of its texts"
            )
        default = Pooling.LAST if config.network.is_causal else Pooling.MEAN
        pooler = PoolerSpec((default,)) if modules is None else modules
        if params.pooling is not None:
            pooler = replace(pooler, poolings=(params.pooling,))
        normalizes = pooler.normalizes if params.normalize is None else params.normalize
        return replace(pooler, normalizes=normalizes, dimensions=params.dimensions)
    if classifies:
        return _classifier(raw, config, params)
    if params.task is Task.RERANK and config.network.is_causal:
        return PoolerSpec((Pooling.LAST,), (TokenStep(HEAD),), "softmax")
    raise ModelError(
        f"{folder}: {', '.join(architectures) or 'its architecture'} has no head that "
        f"{'scores pairs' if params.task is Task.RERANK else 'scores labels'}; pass a model "
        "for sequence classification"
    )


def _classifier(raw: JsonObject, config: ModelConfig, params: PoolingParams) -> PoolerSpec:
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
        return PoolerSpec((pooling,), steps, _reranker_scores(raw), labels=labels)
    problem = raw.string("problem_type")
    scores: Scores = "sigmoid" if one or problem == "multi_label_classification" else "softmax"
    if problem == "regression":
        scores = "identity"
    return PoolerSpec((pooling,), steps, scores, labels=labels)


def _reranker_scores(raw: JsonObject) -> Scores:
    """Return the function of a cross-encoder's score, as sentence-transformers does."""
    own = raw.nested("sentence_transformers")
    name = None if own is None else own.string("activation_fn")
    name = name or raw.string("sbert_ce_default_activation_function")
    known: dict[str, Scores] = {"Sigmoid": "sigmoid", "Identity": "identity"}
    kind = "Sigmoid" if name is None else name.rpartition(".")[2]
    if kind not in known:
        raise raw.error("activation_fn", " or ".join(known))
    return known[kind]


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
        case "roberta" | "xlm-roberta" | "camembert":
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


_POOLINGS = {
    "cls": Pooling.CLS,
    "max": Pooling.MAX,
    "mean": Pooling.MEAN,
    "mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "weightedmean": Pooling.WEIGHTED_MEAN,
    "lasttoken": Pooling.LAST,
}
# In the order in which their vectors are side by side.
_POOLING_SWITCHES = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": Pooling.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
_ACTIVATIONS: dict[str, StepActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
}


def _listed_modules(folder: Path) -> PoolerSpec | None:
    """Return the modules of a folder of sentence-transformers as a pooler; None without a list."""
    path = folder / "modules.json"
    if not path.exists():
        return None
    listed_modules = JsonObject.parse(str(path), b'{"modules":' + path.read_bytes() + b"}")
    modules = listed_modules.get("modules")
    pooler = PoolerSpec((Pooling.MEAN,))
    for number, each in enumerate(modules if isinstance(modules, list) else []):
        module = JsonObject(str(path), each if isinstance(each, dict) else {})
        pooler = _with_module(pooler, folder, module, number)
    return pooler


def _with_module(pooler: PoolerSpec, folder: Path, module: JsonObject, number: int) -> PoolerSpec:
    kind, place = module.text("type").rpartition(".")[2], module.string("path") or ""
    if Path(place).is_absolute() or ".." in Path(place).parts:
        raise module.error("path", "a folder inside the model's")
    match kind:
        case "Transformer" if number == 0 and not place:
            return pooler
        case "Pooling":
            own = JsonObject.read(folder / place / "config.json")
            return replace(pooler, poolings=_poolings(own))
        case "Dense" if not pooler.normalizes:
            own = JsonObject.read(folder / place / "config.json")
            name = own.string("activation_function") or "Tanh"
            function = _ACTIVATIONS.get(name.rpartition(".")[2])
            if function is None:
                raise own.error("activation_function", f"one of {', '.join(_ACTIVATIONS)}")
            step = DenseStep("linear", function, own.boolean("bias", True), place)
            return replace(pooler, steps=(*pooler.steps, step))
        case "Normalize":
            return replace(pooler, normalizes=True)
    raise ModelError(
        f"{module.origin}: a module {kind} at place {number} is not supported; those of pagedrun "
        "are Transformer (first, in the folder itself), Pooling, Dense and Normalize (last)"
    )


def _poolings(config: JsonObject) -> tuple[Pooling, ...]:
    """Return the poolings of a module's config.json, in either of its styles."""
    if not config.boolean("include_prompt", True):
        raise config.error("include_prompt", "true: prompts are part of a text here")
    given = config.get("pooling_mode")
    if given is not None:
        names: list[JSONValue] = given if isinstance(given, list) else [given]
        if not names or not all(name in _POOLINGS for name in names):
            raise config.error("pooling_mode", f"one or several of {', '.join(_POOLINGS)}")
        return tuple(_POOLINGS[str(name)] for name in names)
    chosen = [each for name, each in _POOLING_SWITCHES.items() if config.boolean(name, False)]
    return tuple(chosen) or (Pooling.MEAN,)
