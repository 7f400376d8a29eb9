"""Models of every kind saved by sentence-transformers, with the vectors and scores it has for them.

The module runs under each generation of the library, and needs nothing of pagedrun. Fixtures of
generations that the tests cannot install are recorded in a virtual environment of their own:

    pip install "sentence-transformers==3.4.1" "transformers==4.57.6" torch
    python tests/support/saved_models.py tests/execution/pooling/saved

A fixture has the files of each folder as text; weights of the network are drawn again from a seed.
"""

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes", "no", "<q>", "<d>", "<end>", "W1"),
    *("οδος", "οδοσ", "[sep]"),
    *(f"w{number}" for number in range(40)),
]
NUM_POSITIONS = 48
SIZE = 16
LONG = " ".join(f"w{(7 * number) % 40}" for number in range(90))
TEXTS = ["w1", "w2 w3 w4 w5 w6", "w9 other w8", "W1 ΟΔΟΣ [SEP] w2", "w3 w1 " * 9, LONG]
PAIRS = [("w1 w2", "w3 w4 w5"), ("w7", "w3 [SEP] W1"), ("w1 " * 5, LONG), (LONG, LONG)]
_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }} {% elif m.role == 'query' %}"
    "<q> {{ m.content }} {% elif m.role == 'document' %}<d> {{ m.content }} {% endif %}"
    "{% endfor %}<end> {% if think %}w39{% endif %}"
)


@dataclass(frozen=True)
class Kind:
    """Kind of model: `since` is the first version (major, minor) that can make it.

    make: saves a model to the second folder, from the bare one in the first. task: that of the
    texts, for a model with routes.
    """

    name: str
    make: Callable[[Path, Path], None]
    scores: bool = False
    since: tuple[int, int] = (2, 0)
    base: str = "bert"
    task: str | None = None


def version() -> tuple[int, int]:
    """Return the installed version, major and minor."""
    import sentence_transformers

    major, minor, *_ = sentence_transformers.__version__.split(".")
    return int(major), int(minor)


def drawn(shapes: dict[str, list[int]], seed: int = 0) -> dict[str, torch.Tensor]:
    """Return weights by name; the same in every version of every library."""
    found = {}
    for number, name in enumerate(sorted(shapes)):
        draws = np.random.default_rng([seed, number]).random(shapes[name], dtype=np.float32)
        found[name] = torch.from_numpy((draws - 0.5) * 1.2 + ("Norm.weight" in name))
    return found


def write_base(folder: Path, kind: str, template: bool = False) -> None:
    """Write a network that no version of the library has saved."""
    sizes: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": SIZE,
        "intermediate_size": SIZE,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": NUM_POSITIONS,
        "pad_token_id": 0,
    }
    if kind == "qwen3":
        decoder = {"num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True}
        config: Any = transformers.Qwen3Config(**sizes, **decoder)
        model: Any = transformers.Qwen3ForCausalLM(config)
    elif kind == "bert-scores":
        config = transformers.BertConfig(**sizes, num_labels=1)
        model = transformers.BertForSequenceClassification(config)
    else:
        model = transformers.BertModel(transformers.BertConfig(**sizes))
    model.load_state_dict(drawn_state(model), strict=False)
    model.save_pretrained(folder)
    write_tokenizer(folder, kind != "qwen3", _TEMPLATE if template else None)


def drawn_state(model: Any) -> dict[str, torch.Tensor]:
    """Return weights for a model's parameters."""
    return drawn({name: list(each.shape) for name, each in model.named_parameters()})


def write_tokenizer(folder: Path, is_encoder: bool, template: str | None) -> None:
    """Write a tokenizer of words, which knows case."""
    backend = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    if is_encoder:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "sep_token": "[SEP]"}
    fast: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=40, **special
    )
    if template is not None:
        fast.chat_template = template
    fast.save_pretrained(folder)


def _modules() -> Any:
    if version() < (5, 4):
        import sentence_transformers.models as found
    else:
        import sentence_transformers.sentence_transformer.modules as found
    return found


def _vectors(base: Path, out: Path, *modules: Any, transformer: Any = None, **model: Any) -> None:
    from sentence_transformers import SentenceTransformer

    first = _modules().Transformer(str(base), **(transformer or {}))
    made = SentenceTransformer(modules=[first, *modules], device="cpu", **model)
    for module in modules:
        module.load_state_dict(drawn_state(module))
    made.save(str(out), create_model_card=False)


def _pooling(*modes: str, include_prompt: bool = True) -> Any:
    switches = {
        "cls": "pooling_mode_cls_token",
        "max": "pooling_mode_max_tokens",
        "mean": "pooling_mode_mean_tokens",
        "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
        "weightedmean": "pooling_mode_weightedmean_tokens",
        "lasttoken": "pooling_mode_lasttoken",
    }
    if version() >= (5, 4):
        return _modules().Pooling(SIZE, pooling_mode=modes, include_prompt=include_prompt)
    chosen = {each: name in modes for name, each in switches.items()}
    return _modules().Pooling(SIZE, include_prompt=include_prompt, **chosen)


def _length(base: Path, out: Path) -> None:
    prompts = {"query": "w1 w2 ", "document": ""}
    options: Any = {"prompts": prompts, "similarity_fn_name": "dot"}
    normalize = _modules().Normalize()
    first = {"max_seq_length": 20}
    _vectors(base, out, _pooling("mean"), normalize, transformer=first, **options)


def _unlimited(base: Path, out: Path) -> None:
    _vectors(base, out, _pooling("mean_sqrt_len_tokens"))


def _side_by_side(base: Path, out: Path) -> None:
    dense = _modules().Dense(3 * SIZE, 6)
    _vectors(base, out, _pooling("cls", "max", "mean"), dense)


def _weighted(base: Path, out: Path) -> None:
    dense = _modules().Dense(2 * SIZE, 8, bias=False, activation_function=torch.nn.GELU())
    _vectors(base, out, _pooling("weightedmean", "lasttoken"), dense, _modules().Normalize())


def _without_prompt(base: Path, out: Path) -> None:
    options: Any = {"prompts": {"task": "w5 W1 w6 "}, "default_prompt_name": "task"}
    pooling = _pooling("mean", "max", "weightedmean", include_prompt=False)
    _vectors(base, out, pooling, **options)


def _first_behind_prompt(base: Path, out: Path) -> None:
    options: Any = {"prompts": {"task": "w5 w6 "}, "default_prompt_name": "task"}
    _vectors(base, out, _pooling("cls", "lasttoken", include_prompt=False), **options)


def _lowered(base: Path, out: Path) -> None:
    options: Any = {"prompts": {"task": "W1 "}, "default_prompt_name": "task"}
    _vectors(base, out, _pooling("mean"), transformer={"do_lower_case": True}, **options)


def _sigmoid_between_norms(base: Path, out: Path) -> None:
    found = _modules()
    dense = found.Dense(SIZE, 7, activation_function=torch.nn.Sigmoid())
    last = found.Dense(7, 5, activation_function=torch.nn.Identity())
    _vectors(base, out, _pooling("mean"), found.Normalize(), dense, last, found.Normalize())


def _truncated(base: Path, out: Path) -> None:
    _vectors(base, out, _pooling("mean"), _modules().Normalize(), truncate_dim=6)


def _residual(base: Path, out: Path) -> None:
    found = _modules()
    narrow = found.Dense(SIZE, 8, activation_function=torch.nn.SiLU(), use_residual=True)
    same = found.Dense(8, 8, activation_function=torch.nn.LeakyReLU(), use_residual=True)
    _vectors(base, out, _pooling("mean"), narrow, found.Dropout(0.2), same, found.LayerNorm(8))


def _routes(base: Path, out: Path, prompts: dict[str, str], **options: Any) -> None:
    found = _modules()
    router = found.Router if hasattr(found, "Router") else found.Asym
    narrow = found.Dense(SIZE, 6, activation_function=torch.nn.Sigmoid())
    same = found.Dense(SIZE, SIZE)
    routes = {"query": [narrow, found.Normalize()], "passage": [same, found.Dropout(0.2)]}
    _vectors(base, out, _pooling("mean"), router(routes, **options), prompts=prompts)


def _routed(base: Path, out: Path) -> None:
    # Version 3 takes no prompts with the names of routes.
    _routes(base, out, {"query": "w1 w2 "} if version() >= (5, 0) else {})


def _routed_by_default(base: Path, out: Path) -> None:
    _routes(base, out, {}, default_route="passage")


def _routed_poolings(base: Path, out: Path) -> None:
    found = _modules()
    routes = {"first": [_pooling("cls"), found.Normalize()], "all": [_pooling("mean", "max")]}
    mappings = {("query", "text"): "first", (None, "text"): "all", ("query", "image"): "all"}
    router = found.Router(routes, allow_empty_key=False, route_mappings=mappings)
    _vectors(base, out, router)


def _scores(base: Path, out: Path, activation: Any = None, **options: Any) -> None:
    from sentence_transformers import CrossEncoder

    name = "default_activation_function" if version() < (4, 0) else "activation_fn"
    given = {} if activation is None else {name: activation}
    made = CrossEncoder(str(base), device="cpu", **given, **options)
    made.save_pretrained(str(out))


def _sigmoid_scores(base: Path, out: Path) -> None:
    _scores(base, out, max_length=16)


def _plain_scores(base: Path, out: Path) -> None:
    _scores(base, out, torch.nn.Identity())


def _tanh_scores(base: Path, out: Path) -> None:
    _scores(base, out, torch.nn.Tanh(), max_length=30)


def _prompted_scores(base: Path, out: Path) -> None:
    _scores(base, out, prompts={"task": "w5 w6 "}, default_prompt_name="task")


def _scores_of_vectors(base: Path, out: Path) -> None:
    from sentence_transformers import CrossEncoder

    found = _modules()
    inner = found.Dense(SIZE, 8, activation_function=torch.nn.GELU())
    last = found.Dense(8, 1, activation_function=None, module_output_name="scores")
    modules = [found.Transformer(str(base)), _pooling("cls"), inner, last]
    made = CrossEncoder(modules=modules, device="cpu", activation_fn=torch.nn.Identity())
    for module in (inner, last):
        module.load_state_dict(drawn_state(module))
    made.save_pretrained(str(out), create_model_card=False)


def _scores_of_logits(base: Path, out: Path) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore

    first = _modules().Transformer(
        str(base),
        transformer_task="text-generation",
        processing_kwargs={"chat_template": {"think": True}},
    )
    yes, no = WORDS.index("yes"), WORDS.index("no")
    made = CrossEncoder(
        modules=[first, LogitScore(yes, no)],
        device="cpu",
        prompts={"task": "w5 w6"},
        default_prompt_name="task",
        activation_fn=torch.nn.Identity(),
    )
    made.save_pretrained(str(out), create_model_card=False)


KINDS = (
    Kind("length", _length),
    Kind("unlimited", _unlimited),
    Kind("side by side", _side_by_side),
    Kind("weighted", _weighted),
    Kind("without prompt", _without_prompt),
    Kind("first behind prompt", _first_behind_prompt, since=(5, 4)),
    Kind("lowered", _lowered),
    Kind("sigmoid between norms", _sigmoid_between_norms),
    Kind("truncated", _truncated),
    Kind("residual", _residual, since=(6, 0)),
    Kind("routed", _routed, task="query"),
    Kind("routed by default", _routed_by_default, since=(5, 0)),
    Kind("routed poolings", _routed_poolings, since=(5, 4)),
    Kind("routed poolings of queries", _routed_poolings, since=(5, 4), task="query"),
    Kind("sigmoid scores", _sigmoid_scores, True, base="bert-scores"),
    Kind("plain scores", _plain_scores, True, base="bert-scores"),
    Kind("tanh scores", _tanh_scores, True, base="bert-scores"),
    Kind("prompted scores", _prompted_scores, True, (5, 4), "bert-scores"),
    Kind("scores of vectors", _scores_of_vectors, True, (5, 4)),
    Kind("scores of logits", _scores_of_logits, True, (5, 4), "qwen3"),
)


def made_models(folder: Path) -> Iterator[tuple[Kind, Path, np.ndarray[Any, Any]]]:
    """Yield each kind that the installed version makes: its saved folder, and its results.

    The results are those of the folder when it is read again: of TEXTS, or the scores of PAIRS.
    """
    from sentence_transformers import CrossEncoder, SentenceTransformer

    for base in ("bert", "bert-scores", "qwen3"):
        write_base(folder / base, base, template=base == "qwen3")
    for kind in KINDS:
        if version() < kind.since:
            continue
        out = folder / kind.name.replace(" ", "-")
        kind.make(folder / kind.base, out)
        if kind.scores:
            found = CrossEncoder(str(out), device="cpu").predict(list(PAIRS))
        else:
            found = _encoded(SentenceTransformer(str(out), device="cpu"), kind.task)
        yield kind, out, np.asarray(found)


def _encoded(model: Any, task: str | None) -> Any:
    if task is None:
        return model.encode(list(TEXTS))
    if version() < (5, 0):
        return model.encode([{task: text} for text in TEXTS])
    return {"query": model.encode_query, "document": model.encode_document}[task](list(TEXTS))


def record(into: Path) -> None:
    """Write the fixture of the installed version."""
    import sentence_transformers

    versions = {
        "sentence_transformers": sentence_transformers.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    kinds = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, out, found in made_models(Path(folder)):
            files = {}
            for path in sorted(out.rglob("*")):
                if path.suffix == ".json":
                    content = json.loads(path.read_text())
                    files[str(path.relative_to(out))] = json.dumps(content, ensure_ascii=False)
                elif path.suffix == ".jinja":
                    files[str(path.relative_to(out))] = path.read_text()
                elif path.suffix == ".safetensors" and path.parent != out:
                    data = base64.b64encode(path.read_bytes()).decode()
                    files[str(path.relative_to(out))] = f"base64:{data}"
            kinds[kind.name] = {
                "files": files,
                "scores": kind.scores,
                "base": kind.base,
                "task": kind.task,
                "results": [[round(float(x), 7) for x in np.ravel(row)] for row in found],
            }
    # A line for each kind.
    lines = [f"{json.dumps(name)}: {json.dumps(kind)}" for name, kind in kinds.items()]
    body = ",\n".join(lines)
    text = f'{{"versions": {json.dumps(versions)}, "kinds": {{\n{body}\n}}}}\n'
    (into / f"{versions['sentence_transformers']}.json").write_text(text)


def unpack(kind: dict[str, Any], bases: Path, out: Path) -> None:
    """Write the folder of a recorded kind; bases: folder with those of `write_base`."""
    out.mkdir()
    shutil.copy(bases / kind["base"] / "model.safetensors", out)
    for name, text in kind["files"].items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("base64:"):
            path.write_bytes(base64.b64decode(text.removeprefix("base64:")))
        else:
            path.write_text(text)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
