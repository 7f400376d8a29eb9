"""Folders of sentence-transformers: modules, lengths, prompts and activations, without torch.

The layouts of versions 2 to 6 are read as version 6 reads them, field by field. A field that would
change a vector or a score, and is not one of those here, is refused, as are modules of other names:
nothing is imported.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import HEAD
from pagedrun.paged.models.modules.norm import LayerNormSpec
from pagedrun.paged.models.pooler_steps import (
    Activation,
    DenseStep,
    LogitStep,
    NormStep,
    PoolerSpec,
    activation,
)
from pagedrun.paged.models.sentence_routes import ROUTERS, Router
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.pooling import Pooling

MODULES_FILE = "modules.json"
MAX_BYTES = 2**20  # of a file of settings; real ones have a few kB
MAX_MODULES = 64
_MOST = 2**30  # tokens or ids
_PLACE = re.compile(r"(?!.*\.\.)[\w\-][\w.\-]{0,99}(/[\w\-][\w.\-]{0,99}){0,3}")
_TOKENS, _VECTOR, _SCORES = "token_embeddings", "sentence_embedding", "scores"

# Output of a network by the task it is loaded for: its name in Transformers, and in the library.
_TASKS = {
    "feature-extraction": ("last_hidden_state", _TOKENS),
    "sequence-classification": ("logits", _SCORES),
    "text-generation": ("logits", "causal_logits"),
}
# Earlier versions called the file by the kind of model.
_TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in (*("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"),)
)
# Arguments of Transformers, by either name, and those that change no number.
_ARGUMENTS = {
    ("model_kwargs", "model_args"): (
        *("attn_implementation", "torch_dtype", "dtype", "add_pooling_layer", "device_map"),
        *("low_cpu_mem_usage", "trust_remote_code", "use_safetensors"),
    ),
    ("processor_kwargs", "tokenizer_args"): (
        *("model_max_length", "padding_side", "use_fast", "trust_remote_code"),
    ),
    ("config_kwargs", "config_args"): ("trust_remote_code",),
}
_NEVER = ("query_length", "document_length", "query_expansion", "tokenizer_name_or_path")
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


class Lowering(StrEnum):
    """Way in which texts are written in lower case.

    None; the whole text and its prompt as by Python, which knows the final sigma, and special
    tokens with them; or as the first step of the tokenizer, which does neither.
    """

    NONE = "none"
    TEXT = "text"
    TOKENIZER = "tokenizer"


class PairForm(StrEnum):
    """Form of a query and a document as a model reads them.

    Two texts, as the tokenizer joins them; the prompt of Qwen3-Reranker; or messages of the roles
    `query` and `document` in the chat template of the folder.
    """

    TEXTS = "texts"
    QWEN3 = "qwen3"
    TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class SentenceFolder:
    """Settings of a model folder that sentence-transformers reads.

    `kind`: its class of the library. `task`: what the network is loaded for. `pooler`: that of
    modules.json, None without one. `routes`: names that choose other modules. `max_length`: of a
    text, in tokens; None: as many as there are positions. `prompts` are texts to put before a text,
    by name. `truncate_dim`: numbers of a vector that are kept, behind everything else.
    `activation`: of scores. `pairs`: form of pairs, with `template_variables`, and parts of a
    message that are lists if `has_parts`. `with_types`: the tokenizer tells the texts of a pair
    apart.
    """

    kind: str = "SentenceTransformer"
    task: str = "feature-extraction"
    pooler: PoolerSpec | None = None
    routes: tuple[str, ...] = ()
    max_length: int | None = None
    lowering: Lowering = Lowering.NONE
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    truncate_dim: int | None = None
    activation: Activation | None = None
    pairs: PairForm = PairForm.TEXTS
    template_variables: Mapping[str, JSONValue] = field(default_factory=dict)
    has_parts: bool = False
    with_types: bool = True

    @classmethod
    def read(cls, folder: Path, route: str | None = None) -> "SentenceFolder":
        """Read the files of a folder; without modules.json only the length of its tokenizer counts.

        `route`: name of the task by which a Router chooses modules; the default route for a name
        that it does not know. Raises `ModelError` naming file and field for a setting that is
        invalid, or would change numbers and is not supported, and `UsageError` if a Router needs a
        route.
        """
        length, with_types = _tokenizer(folder)
        if not (folder / MODULES_FILE).exists():
            return cls(max_length=length, with_types=with_types)
        modules = JsonObject.read_list(folder / MODULES_FILE, MAX_BYTES)
        if not 0 < len(modules) <= MAX_MODULES:
            raise ModelError(
                f"{folder / MODULES_FILE} lists {len(modules)} modules; it must list 1 to "
                f"{MAX_MODULES}"
            )
        modules, routes = _routed(folder, modules, route)
        kinds = [_kind_of(number, module) for number, module in enumerate(modules)]
        places = [_place_of(folder, module) for module in modules]
        if kinds[0] != "Transformer" or places[0]:
            raise _not_supported(modules[0], kinds[0], 0)
        found = _with_transformer(_described(folder), folder, length)
        for number, kind in enumerate(kinds[1:], 1):
            found = _with_module(found, folder, modules[number], kind, places[number], number)
        return replace(found._checked(folder), with_types=with_types, routes=routes)

    def limit(self, num_positions: int) -> int:
        """Return the longest text in tokens, of a model with so many positions."""
        return num_positions if self.max_length is None else min(self.max_length, num_positions)

    def _checked(self, folder: Path) -> "SentenceFolder":
        path = folder / MODULES_FILE
        if self.task == "feature-extraction":
            if self.pooler is None:
                raise ModelError(
                    f"{path}: it lists no Pooling, which makes vectors of hidden states"
                )
            if self.kind == "CrossEncoder" and self.pooler.scores == "vector":
                raise ModelError(f"{path}: no module makes the scores of a CrossEncoder")
        if self.task == "text-generation" and self.pooler is None:
            raise ModelError(f"{path}: it lists no LogitScore, which makes a score of logits")
        return self


def _routed(
    folder: Path, modules: list[JsonObject], route: str | None
) -> tuple[list[JsonObject], tuple[str, ...]]:
    """Return the modules with those of a route in place of each Router, and the names of routes."""
    found: list[JsonObject] = []
    tasks: dict[str, None] = {}
    for module in modules:
        if _class_of(module) not in ROUTERS:
            found.append(module)
            continue
        router = Router.read(folder, _place_of(folder, module))
        if not found:
            raise ModelError(
                f"{router.origin}: a Router in the first place, whose routes have networks of "
                f"their own, is not supported; it has the routes {router.shown}. Pass a folder "
                "whose Transformer comes first"
            )
        found += router.modules(route)
        tasks.update(dict.fromkeys(router.tasks))
    return found, tuple(tasks)


def _class_of(module: JsonObject) -> str:
    """Return the class of a module of the library; nothing of this name is imported."""
    package, _, kind = module.text("type").rpartition(".")
    if package.partition(".")[0] != "sentence_transformers":
        raise module.error("type", "a module of sentence_transformers: no other code is run")
    return kind


def _kind_of(number: int, module: JsonObject) -> str:
    kind = _class_of(module)
    if kind not in ("Transformer", *_MODULES):
        raise _not_supported(module, kind, number)
    return kind


def _not_supported(module: JsonObject, kind: str, number: int) -> ModelError:
    shown = kind if kind.isidentifier() and len(kind) < 80 else "of another name"
    return ModelError(
        f"{module.origin}: a module {shown} at place {number} is not supported; those of pagedrun "
        f"are Transformer (first, in the folder itself), then {', '.join(_MODULES)}, and Routers "
        "of these"
    )


def _place_of(folder: Path, module: JsonObject) -> str:
    """Return the folder of a module, inside the model's."""
    place = module.string("path") or ""
    wanted = "a folder inside the model's"
    if place and not _PLACE.fullmatch(place):
        raise module.error("path", wanted)
    # Files of a hub's cache are links to its blobs; folders there are none.
    own = os.path.realpath(folder)
    if os.path.commonpath((own, os.path.realpath(folder / place))) != own:
        raise module.error("path", f"{wanted}, and no link")
    return place


def _tokenizer(folder: Path) -> tuple[int | None, bool]:
    """Return `model_max_length` of tokenizer_config.json, and whether pairs have token types.

    Types are given by every class of Transformers before 5, by default; its general one since then
    gives none.
    """
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return None, True
    own = JsonObject.read(path)
    names = own.get("model_input_names")
    with_types = own.get("tokenizer_class") != "TokenizersBackend"
    if isinstance(names, list):
        with_types = "token_type_ids" in names
    return _length(own, "model_max_length"), with_types


def _length(config: JsonObject, name: str) -> int | None:
    """Return a length in tokens; None if it is absent or endless, as Transformers writes it."""
    if not config.has(name):
        return None
    value = config.number(name, 1, 1e300)
    return int(value) if value < _MOST else None


def _described(folder: Path) -> SentenceFolder:
    """Return the settings of config_sentence_transformers.json."""
    path = folder / "config_sentence_transformers.json"
    if not path.exists():
        return SentenceFolder(lowering=Lowering.TOKENIZER)
    own = JsonObject.read(path, MAX_BYTES)
    kind = own.string("model_type") or "SentenceTransformer"
    if kind not in ("SentenceTransformer", "CrossEncoder"):
        raise own.error("model_type", '"SentenceTransformer" or "CrossEncoder"')
    prompts = own.nested("prompts")
    given = {} if prompts is None else {name: prompts.string(name) for name in prompts.fields}
    default = own.string("default_prompt_name")
    if default is not None and default not in given:
        raise own.error("default_prompt_name", "the name of one of its prompts")
    cut = own.integer("truncate_dim", 1, _MOST) if own.has("truncate_dim") else None
    return SentenceFolder(
        kind,
        prompts={name: text or "" for name, text in given.items()},
        default_prompt_name=default,
        truncate_dim=cut if kind == "SentenceTransformer" else None,
        activation=activation(own, "activation_fn") if kind == "CrossEncoder" else None,
        lowering=_lowering(own),
    )


def _lowering(own: JsonObject) -> Lowering:
    """Return how `do_lower_case` is meant by the version that wrote a folder.

    Versions before 5.4 lowered texts before the tokenizer saw them.
    """
    versions = own.nested("__version__")
    version = None if versions is None else versions.string("sentence_transformers")
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    if found is None or (int(found[1]), int(found[2])) >= (5, 4):
        return Lowering.TOKENIZER
    return Lowering.TEXT


def _with_transformer(found: SentenceFolder, folder: Path, length: int | None) -> SentenceFolder:
    """Return the settings with those of the network; length: of the tokenizer."""
    paths = (folder / name for name in _TRANSFORMER_FILES)
    path = next((each for each in paths if each.exists()), None)
    if path is None:
        return replace(found, max_length=length, lowering=Lowering.NONE)
    own = JsonObject.read(path, MAX_BYTES)
    known = {"max_seq_length", "do_lower_case", "transformer_task", "modality_config"}
    known |= {"module_output_name", "processing_kwargs", "unpad_inputs", *_NEVER}
    _refuse_others(own, {*known, *(name for names in _ARGUMENTS for name in names)})
    for name in _NEVER:
        if own.has(name):
            raise own.error(name, "null: it is not supported")
    task = own.string("transformer_task") or "feature-extraction"
    if task not in _TASKS:
        raise own.error("transformer_task", f"one of {', '.join(_TASKS)}")
    if found.kind == "SentenceTransformer" and task != "feature-extraction":
        raise own.error("transformer_task", '"feature-extraction" for a model of vectors')
    _, output = _TASKS[task]
    if (own.string("module_output_name") or output) != output:
        raise own.error("module_output_name", f'"{output}" for {task}')
    lowers = own.boolean("do_lower_case", False)
    found = replace(found, task=task, lowering=found.lowering if lowers else Lowering.NONE)
    found = _with_modalities(found, own)
    found = _with_processing(found, own)
    if found.max_length is not None:
        return found
    if own.has("max_seq_length"):
        length = own.integer("max_seq_length", 1, _MOST)
    return replace(found, max_length=_checked_arguments(own) or length)


def _with_modalities(found: SentenceFolder, own: JsonObject) -> SentenceFolder:
    """Return the settings with the kinds of input: texts, or messages of a chat template."""
    kinds = own.nested("modality_config")
    if kinds is None:
        return found
    _refuse_others(kinds, ("text", "message"))
    output, _ = _TASKS[found.task]
    for name in kinds.fields:
        each = kinds.section(name)
        if each.get("method") != "forward":
            raise each.error("method", '"forward"')
        if each.get("method_output_name") not in (output, [output]):
            raise each.error("method_output_name", f'"{output}" for {found.task}')
    if "message" not in kinds:
        return found
    if found.task == "feature-extraction":
        raise kinds.error(
            "message",
            "absent: texts of this model pass through a chat template, which is not supported for "
            "vectors",
        )
    shape = kinds.section("message").string("format") or "flat"
    if shape not in ("flat", "structured"):
        raise kinds.section("message").error("format", '"flat" or "structured"')
    return replace(found, pairs=PairForm.TEMPLATE, has_parts=shape == "structured")


def _with_processing(found: SentenceFolder, own: JsonObject) -> SentenceFolder:
    """Return the settings with arguments of the calls of the tokenizer and its template."""
    given = own.nested("processing_kwargs")
    if given is None:
        return found
    _refuse_others(given, ("text", "common", "chat_template"))
    for name in ("text", "common"):
        of_calls = given.nested(name)
        if of_calls is None:
            continue
        _refuse_others(
            of_calls,
            ("max_length", "padding", "padding_side", "pad_to_multiple_of", "truncation"),
        )
        if of_calls.get("truncation") not in (None, True, "longest_first"):
            raise of_calls.error("truncation", 'true or "longest_first"')
        if (length := _length(of_calls, "max_length")) is not None:
            found = replace(found, max_length=length)
    variables = given.nested("chat_template")
    if variables is None:
        return found
    _refuse_others(
        variables, [name for name, value in variables.fields.items() if _is_plain(name, value)]
    )
    return replace(found, template_variables=dict(variables.fields))


def _is_plain(name: str, value: JSONValue) -> bool:
    """Return true for a variable of a template, and false for an argument of its rendering."""
    arguments = ("max_length", "truncation", "padding", "restore_suffix", "tools", "documents")
    return name not in arguments and isinstance(value, bool | int | float | str)


def _checked_arguments(own: JsonObject) -> int | None:
    """Return `model_max_length` of arguments; `ModelError` for others that may change numbers."""
    length = None
    for names, harmless in _ARGUMENTS.items():
        for name in names:
            given = own.nested(name)
            if given is not None:
                _refuse_others(given, harmless)
                length = _length(given, "model_max_length") or length
    return length


def _with_module(
    found: SentenceFolder, folder: Path, module: JsonObject, kind: str, place: str, number: int
) -> SentenceFolder:
    """Return the settings with a module behind the network."""
    is_first = number == 1
    if kind not in _MODULES or is_first != (kind in ("Pooling", "LogitScore")):
        raise _not_supported(module, kind, number)
    config = folder / place / "config.json"
    has_config = bool(place) and (kind not in ("Normalize", "Dropout") or config.exists())
    own = JsonObject.read(config, MAX_BYTES) if has_config else JsonObject(str(config), {})
    if kind == "LogitScore":
        if found.task != "text-generation":
            raise _not_supported(module, kind, number)
        return replace(found, pooler=_logit_pooler(own))
    if found.task != "feature-extraction":
        raise _not_supported(module, kind, number)
    if kind == "Pooling":
        return replace(found, pooler=_pooling(own))
    pooler = found.pooler
    if pooler is None or pooler.scores != "vector":
        raise _not_supported(module, kind, number)
    if kind == "Dense":
        return replace(found, pooler=_with_dense(pooler, own, place, found.kind))
    if kind == "LayerNorm":
        norm = LayerNormSpec("norm", own.integer("dimension", 1, 2**20), 1e-5)
        return replace(found, pooler=pooler.followed_by(NormStep(norm, place)))
    if kind == "Normalize":
        for name in ("module_input_name", "module_output_name"):
            if (own.string(name) or _VECTOR) != _VECTOR:
                raise own.error(name, f'"{_VECTOR}"')
        return replace(found, pooler=replace(pooler, normalizes=True))
    return found  # Dropout, which is for training


def _logit_pooler(own: JsonObject) -> PoolerSpec:
    if (own.string("module_input_name") or "causal_logits") != "causal_logits":
        raise own.error("module_input_name", '"causal_logits"')
    true = own.integer("true_token_id", 0, _MOST)
    false = own.integer("false_token_id", 0, _MOST) if own.has("false_token_id") else None
    return PoolerSpec((Pooling.LAST,), (LogitStep(HEAD, true, false),), "sigmoid")


def _with_dense(pooler: PoolerSpec, own: JsonObject, place: str, kind: str) -> PoolerSpec:
    source = own.string("module_input_name") or _VECTOR
    if source != _VECTOR:
        raise own.error("module_input_name", f'"{_VECTOR}"')
    target = own.string("module_output_name") or source
    if target not in ((_VECTOR, _SCORES) if kind == "CrossEncoder" else (_VECTOR,)):
        raise own.error("module_output_name", f'"{_VECTOR}"')
    sizes = own.integer("out_features", 1, 2**20), own.integer("in_features", 1, 2**20)
    step = DenseStep(
        "linear",
        "tanh" if (function := activation(own, "activation_function")) is None else function,
        own.boolean("bias", True),
        place,
        sizes,
        own.boolean("use_residual", False),
    )
    pooler = pooler.followed_by(step)
    if target == _VECTOR:
        return pooler
    labels = tuple(f"LABEL_{number}" for number in range(sizes[0])) if sizes[0] < 1024 else ()
    return replace(pooler, scores="sigmoid", labels=labels)


def _pooling(own: JsonObject) -> PoolerSpec:
    """Return the poolings of a module's config.json, in either of its styles."""
    sizes = ("embedding_dimension", "word_embedding_dimension")
    _refuse_others(own, (*sizes, "pooling_mode", "include_prompt", *_POOLING_SWITCHES))
    for name in sizes:
        own.integer(name, 1, 2**20, 1)
    with_prompt = own.boolean("include_prompt", True)
    given = own.get("pooling_mode")
    if given is not None:
        names: list[JSONValue] = given if isinstance(given, list) else [given]
        known = [_POOLINGS[name] for name in names if isinstance(name, str) and name in _POOLINGS]
        if not names or len(known) != len(names) or len(names) > len(_POOLINGS):
            raise own.error("pooling_mode", f"one or several of {', '.join(_POOLINGS)}")
        return PoolerSpec(tuple(known), with_prompt=with_prompt)
    chosen = [each for name, each in _POOLING_SWITCHES.items() if own.boolean(name, False)]
    return PoolerSpec(tuple(chosen) or (Pooling.MEAN,), with_prompt=with_prompt)


def _refuse_others(own: JsonObject, known: Collection[str]) -> None:
    """Raise `ModelError` for the first field that is not known, unless it is null."""
    for name in own.fields:
        if name not in known and own.has(name):
            raise own.error(name, "absent: what it means is not known, and it may change numbers")


_MODULES = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout", "LogitScore")
