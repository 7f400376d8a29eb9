"""Decoders that score pairs: which are known to, by what prompt, and which are refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from pagedrun.paged.execution.pooling.pairs import RERANK_PREFIX, RERANK_SUFFIX
from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.models.sentence_folder import PairForm
from pagedrun.paged.values.errors import ModelError, UsageError
from pagedrun.paged.values.pooling import RERANK_INSTRUCTION, PoolingParams, Task
from tests.support.pooled_engines import pooled_model, requests, results
from tests.support.tiny_encoders import texts, write_model

PARAMS = PoolingParams(task=Task.RERANK)
_CARD = (
    "---\nlicense: apache-2.0\nbase_model:\n- Qwen/{base}\n---\n# {title}\n\nBetter than {other}.\n"
)


def card(base: str, title: str, other: str = "others") -> Callable[[Path], object]:
    content = _CARD.format(base=base, title=title, other=other)
    return lambda folder: (folder / "README.md").write_text(content)


def field(name: str, value: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))

    return change


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


KNOWN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "the name of the folder": ("qwen3-reranker-0.6B-copy", nothing),
    "the name of the repository": ("models--Qwen--Qwen3-Reranker-4B/snapshots/0123abc", nothing),
    "the name it was saved under": ("a", field("_name_or_path", "Qwen/Qwen3-Reranker-8B")),
    "the field of vLLM": ("a", field("is_original_qwen3_reranker", True)),
    "the title of its card": ("a", card("Qwen3-0.6B-Base", "Qwen3-Reranker-0.6B")),
    "the base of its card": ("a", card("Qwen3-Reranker-0.6B", "My judge")),
}
UNKNOWN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a chat model": ("Qwen3-0.6B", nothing),
    "a reranker with a prompt of its own": ("zerank", field("pipeline_tag", "text-ranking")),
    "a folder beside rerankers": ("qwen3-reranker/base", nothing),
    "a card that compares": ("a", card("Qwen3-4B", "ctxl-rerank", "Qwen3-Reranker-4B")),
}


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    write_model(folder, "qwen3", "ForCausalLM")
    return folder


def placed(model: Path, folder: Path) -> Path:
    """Return a folder with the files of a model."""
    folder.mkdir(parents=True)
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("sign", KNOWN)
def test_a_copy_of_qwen3_reranker_has_its_prompt(sign: str, qwen3: Path, tmp_path: Path) -> None:
    name, change = KNOWN[sign]
    folder = placed(qwen3, tmp_path / name)
    change(folder)
    spec = PooledModelSpec.read(folder, PARAMS)
    assert spec.saved.pairs is PairForm.QWEN3


@pytest.mark.parametrize("sign", UNKNOWN)
def test_another_decoder_is_refused_by_name(sign: str, qwen3: Path, tmp_path: Path) -> None:
    name, change = UNKNOWN[sign]
    folder = placed(qwen3, tmp_path / name)
    change(folder)
    with pytest.raises(ModelError) as caught:
        PooledModelSpec.read(folder, PARAMS)
    assert f"{folder}: Qwen3ForCausalLM answers prompts" in str(caught.value)
    assert "is_original_qwen3_reranker" in str(caught.value)


def test_another_family_is_refused_whatever_its_name(qwen3: Path, tmp_path: Path) -> None:
    folder = placed(qwen3, tmp_path / "Qwen3-Reranker-0.6B")
    field("model_type", "llama")(folder)
    field("architectures", ["LlamaForCausalLM"])(folder)
    with pytest.raises(ModelError, match="LlamaForCausalLM answers prompts"):
        PooledModelSpec.read(folder, PARAMS)


def test_a_conversion_to_a_head_has_the_prompt_too(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-Reranker-0.6B-seq-cls"
    write_model(folder, "qwen3", "ForSequenceClassification", num_labels=1)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    query, *documents = texts([4, 9, 30])
    model = pooled_model(folder, Task.RERANK)
    about = f"<Instruct>: {RERANK_INSTRUCTION}\n<Query>: {query}\n<Document>: "
    found = results(model.load_engine(), requests(model, [about + each for each in documents]))
    for index, each in enumerate(documents):
        parts = [RERANK_PREFIX, about + each, RERANK_SUFFIX]
        ids = [token for part in model.tokenizer.encode_batch(parts, False) for token in part]
        with torch.no_grad():
            score = torch.sigmoid(theirs(torch.tensor([ids])).logits[0, 0]).item()
        assert abs(found[index][0] - score) <= 1e-5


_OF_USERS = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (_OF_USERS, 0),
        ("{{ raise_exception('no') }}", 1),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}", None),
    ],
)
def test_a_head_behind_a_chat_template_needs_roles_of_pairs(
    template: str, message: int | None, tmp_path: Path
) -> None:
    write_model(tmp_path / "model", "qwen3", "ForSequenceClassification", num_labels=1)
    (tmp_path / "model/chat_template.jinja").write_text(template)
    model = pooled_model(tmp_path / "model", Task.RERANK)
    if message is None:
        [request] = requests(model, [("w1 w2", "w3")])
        [ids] = model.tokenizer.encode_batch(["query: w1 w2 document: w3 "], False)
        assert list(request.texts[0].token_ids) == ids
        with pytest.raises(UsageError, match="has an order of its own"):
            pooled_model(tmp_path / "model", Task.RERANK, pair_order="document")
        return
    words = ("does not render messages of the roles query and document", "template failed")
    with pytest.raises(ModelError, match=words[message]):
        requests(model, [("w1 w2", "w3")])


def test_a_published_reranker_by_logits_keeps_its_field_by_field_form(
    qwen3: Path, tmp_path: Path
) -> None:
    """As sentence-transformers 5.4 saves mxbai-rerank or zerank: one token, no difference."""
    folder = placed(qwen3, tmp_path / "zerank")
    kinds = ("base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore")
    modules: list[dict[str, Any]] = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, ("", "1_LogitScore"), strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
    own = {"transformer_task": "text-generation", "module_output_name": "causal_logits"}
    (folder / "sentence_bert_config.json").write_text(json.dumps(own))
    (folder / "1_LogitScore").mkdir()
    score = {"true_token_id": 9, "false_token_id": None}
    (folder / "1_LogitScore/config.json").write_text(json.dumps(score))
    spec = PooledModelSpec.read(folder, PARAMS)
    assert (spec.pooler.scores, spec.saved.pairs) == ("sigmoid", PairForm.TEXTS)
    (folder / "1_LogitScore/config.json").write_text('{"true_token_id": 100000}')
    with pytest.raises(ModelError, match="beyond the vocabulary"):
        PooledModelSpec.read(folder, PARAMS)
