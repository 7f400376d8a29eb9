"""Readers of files from elsewhere, each as it is called for one file."""

import gzip
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import zstandard

from pagedrun.paged.cache.prefix_store.folder import MARKER, StoreFolder
from pagedrun.paged.cache.prefix_store.listing import StoreListing
from pagedrun.paged.cache.prefix_store.store_files import PrefixIndex, StoreFiles
from pagedrun.paged.job.inputs.reader import Reading, open_rows
from pagedrun.paged.job.output.manifest import read_manifest
from pagedrun.paged.job.output.saved_rows import FinishedRows, SavedAnswer
from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.job.prompts.requests import RequestBuilder
from pagedrun.paged.metrics.inspection import InspectionQuery, inspect_run
from pagedrun.paged.metrics.saved_report import SavedReport
from pagedrun.paged.metrics.snapshot_file import read_snapshot
from pagedrun.paged.models.checkpoint.checkpoint import ModelTensors, open_checkpoint
from pagedrun.paged.models.generation_config import GenerationConfig
from pagedrun.paged.models.model_config import ModelConfig, num_rotary_positions
from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.models.sentence_folder import SentenceFolder
from pagedrun.paged.text.grammar import GrammarCompiler, Grammars
from pagedrun.paged.text.prompt_encoder import Limits, PromptEncoder
from pagedrun.paged.text.templates.sandbox import Sandbox
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import PagedrunError, UsageError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes import demo
from pagedrun.recipes.recipe import Recipe
from tests.fuzz import seeds
from tests.fuzz.mutation import (
    Mutate,
    bytes_alone,
    framed_json,
    gzipped,
    json_lines,
    json_tree,
    store_entry,
    stored_zip,
)
from tests.fuzz.seeds import Seeds

MAX_LINE_BYTES = 4096
MAX_MESSAGE_CHARS = 4000


@dataclass(frozen=True)
class Reader:
    """Reader of a file called `name`, with files `beside` it. `mutate` keeps the form that it has
    around what is read, such as a length or a digest. `seeds` are files that it takes."""

    name: str
    read: Callable[[Path], object]
    seeds: Seeds
    mutate: Mutate = bytes_alone
    beside: Mapping[str, Seeds] = field(default_factory=dict)

    def within(self, folder: Path) -> Callable[[bytes], str]:
        """Return the function that reads one file in `folder`: it returns the message of a
        documented error, an empty one without, and raises what is none."""
        for name, content in self.beside.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content()[0])
        path = folder / self.name
        path.parent.mkdir(exist_ok=True)

        def read(data: bytes) -> str:
            path.write_bytes(data)
            try:
                self.read(path)
            except PagedrunError as error:
                return checked(error)
            return ""

        return read


def checked(error: PagedrunError) -> str:
    """Return the message of an error, which UTF-8 can hold and which is not endless."""
    message = str(error)
    message.encode()
    assert 0 < len(message) <= MAX_MESSAGE_CHARS, "a message without end"
    return message


def _network(path: Path) -> None:
    """Read what is known before weights are: the network, and that the tensors are its own."""
    model = path if path.suffix == ".gguf" else path.parent
    config = ModelConfig.from_folder(model)
    with open_checkpoint(model) as checkpoint:
        tensors = ModelTensors(checkpoint, config.network)
        for name in checkpoint.names:
            assert checkpoint.stored(name).num_bytes >= 0
        assert tensors.num_bytes >= 0


def _config(path: Path) -> None:
    config = ModelConfig.from_folder(path.parent)
    assert config.network.num_bytes(2) > 0
    repr(config)
    num_rotary_positions(config, 64, path.parent)
    assert all(0 <= each < config.vocab_size for each in config.eos_token_ids)


def _generation_config(path: Path) -> None:
    GenerationConfig.from_folder(path.parent)
    _config(path)


def _pooled(path: Path) -> None:
    assert PooledModelSpec.read_network(path.parent).network.num_bytes(2) > 0


def _tokenizer(path: Path) -> None:
    tokenizer = Tokenizer.from_folder(path if path.suffix == ".gguf" else path.parent)
    for ids in tokenizer.encode_batch(["Hello <|im_end|>\nä 你好", ""], add_special_tokens=True):
        tokenizer.decode(ids).encode()
    if tokenizer.chat_template is not None:
        tokenizer.render_chat([{"role": "user", "content": "a"}])


@cache
def _demo() -> Tokenizer:
    return Tokenizer.from_folder(demo.__path__[0])


@cache
def _requests() -> RequestBuilder:
    prompts = PromptBuilder(PromptConfig(), SamplingParams(), _demo())
    encoder = PromptEncoder(_demo(), Limits(64, _demo().vocab_size))
    return RequestBuilder(prompts, encoder, keeps_columns=True)


def _rows(path: Path) -> None:
    """Read the rows of an input, up to the requests that they make, and what outputs have of them;
    raises the error of the last row that has one."""
    found = None
    with open_rows(str(path), Reading(max_line_bytes=MAX_LINE_BYTES)) as source:
        for row in _requests().build(source):
            written = json.dumps(dict(row.input), ensure_ascii=False, allow_nan=False)
            f"{row.id}{written}".encode()
            found = row.error or found
        source.digest(whole=source.drain())
    if found is not None:
        raise found


def _template(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    messages: list[JSONValue] = [{"role": "user", "content": "a\nb"}]
    sandbox = Sandbox.for_chats(max_work=1_000_000, max_memory=2**23)
    try:
        sandbox.render(sandbox.from_string(text), {"messages": messages, "tools": None})
    except OverflowError:
        return  # the whole budget takes seconds
    except Exception:
        pass  # its callers say that the template failed
    with suppress(PagedrunError):
        PromptTemplate(text).render({"messages": messages, "text": "a"})
    Tokenizer.from_folder(path.parent).render_chat([{"role": "user", "content": "a\nb"}])


@cache
def _grammars() -> Grammars:
    compiler = GrammarCompiler(_demo(), _demo().vocab_size, [2])
    return Grammars(compiler, max_kept=1, max_seconds=2)


def _structure(field: str, path: Path) -> None:
    """Compile the structure in a file, the value of the sampling parameter `field`."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    structure = SamplingParams().override({field: text}).structure
    if structure is not None:
        _grammars().compiled(structure).result()


def _snapshot(path: Path) -> None:
    snapshot = read_snapshot(path)
    for moment in ("peak", "first", "last"):
        json.dumps(inspect_run(snapshot, None, InspectionQuery(moment, (0, 1, 2))))


def _report(path: Path) -> None:
    json.dumps(inspect_run(None, SavedReport.read(path), InspectionQuery()))


def _output(path: Path) -> None:
    for line in path.read_bytes().splitlines(keepends=True):
        SavedAnswer.parse(line)
    FinishedRows.read(str(path))


def _store(path: Path) -> None:
    """List a store with a file, and read that as a run does, by a name that is of its bytes."""
    json.dumps(StoreListing.read(path.parent).to_dict())
    data = path.read_bytes()
    name = f"{'0' * 16}-{hashlib.sha256(data).hexdigest()}.safetensors"
    with tempfile.TemporaryDirectory() as folder:
        warnings: list[str] = []
        opened = StoreFolder.open(Path(folder))
        files = StoreFiles(opened, PrefixIndex(4), 2**20, warnings.append)
        (Path(folder) / name).write_bytes(data)
        files.read(name, lambda entry, tensors: None)
        if warnings:
            raise UsageError(warnings[0])


def _recipe(path: Path) -> None:
    from pagedrun.cli.options.settings import recipe_settings

    Recipe.read(path, recipe_settings())


_TOKENIZER = {"tokenizer.json": seeds.of("tokenizer")}
_CONFIG = {"config.json": seeds.of("config")}
_STORE = f"store/{'0' * 16}-{'0' * 64}.safetensors"
READERS = {
    "gguf": Reader("model.gguf", _network, seeds.ggufs),
    "gguf-tokenizer": Reader("model.gguf", _tokenizer, seeds.ggufs),
    "safetensors": Reader(
        "model.safetensors", _network, seeds.safetensors, framed_json, beside=_CONFIG
    ),
    "index": Reader(
        "model.safetensors.index.json",
        _network,
        seeds.of("index"),
        json_tree,
        beside={**_CONFIG, "a.safetensors": seeds.safetensors},
    ),
    "config": Reader("config.json", _config, seeds.configs, json_tree),
    "encoder-config": Reader("config.json", _pooled, seeds.of("encoder-config"), json_tree),
    "generation-config": Reader(
        "generation_config.json",
        _generation_config,
        seeds.of("generation-config"),
        json_tree,
        beside=_CONFIG,
    ),
    "modules": Reader(
        "modules.json",
        lambda path: SentenceFolder.read(path.parent),
        seeds.of("modules"),
        json_tree,
        beside={"1_Pooling/config.json": seeds.of("pooling")},
    ),
    "tokenizer": Reader("tokenizer.json", _tokenizer, seeds.of("tokenizer"), json_tree),
    "tokenizer-config": Reader(
        "tokenizer_config.json",
        _tokenizer,
        seeds.of("tokenizer-config"),
        json_tree,
        beside=_TOKENIZER,
    ),
    "template": Reader("chat_template.jinja", _template, seeds.of("template"), beside=_TOKENIZER),
    "schema": Reader("a.json", partial(_structure, "json_schema"), seeds.of("schema"), json_tree),
    "regex": Reader("a.txt", partial(_structure, "regex"), seeds.of("regex")),
    "grammar": Reader("a.lark", partial(_structure, "grammar"), seeds.of("grammar")),
    "jsonl": Reader("a.jsonl", _rows, seeds.of("jsonl"), json_lines),
    "json": Reader("a.json", _rows, seeds.of("json"), json_tree),
    "csv": Reader("a.csv", _rows, seeds.of("csv")),
    "tsv": Reader("a.tsv", _rows, seeds.of("tsv")),
    "txt": Reader("a.txt", _rows, seeds.of("txt")),
    "gzip": Reader("a.jsonl.gz", _rows, seeds.packed("jsonl", gzip.compress), gzipped),
    "zstd": Reader("a.csv.zst", _rows, seeds.packed("csv", zstandard.compress)),
    "manifest": Reader("a.run.json", read_manifest, seeds.of("manifest"), json_tree),
    "report": Reader("a.report.json", _report, seeds.of("report"), json_tree),
    "snapshot": Reader("a.snapshot.npz", _snapshot, seeds.snapshots, stored_zip),
    "output": Reader("a.jsonl", _output, seeds.of("output"), json_lines),
    "store": Reader(
        _STORE,
        _store,
        seeds.store_entries,
        store_entry,
        beside={f"store/{MARKER}": lambda: [b"{}"]},
    ),
    "recipe": Reader("a.yaml", _recipe, seeds.of("recipe")),
}
