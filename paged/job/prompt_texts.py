"""Prompts of a finished run, read again from the input named in its manifest.

Neither report nor snapshot holds a prompt. The input is read by the code of a run and is used only
if its digest is that of the run.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pagedrun.paged.files.gguf import is_gguf
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.job.inputs.arrow_source import HUB_PREFIX
from pagedrun.paged.job.inputs.byte_streams import is_remote
from pagedrun.paged.job.inputs.reader import (
    STDIN,
    InputFormat,
    Reading,
    is_repeatable,
    open_inputs,
    shown_inputs,
)
from pagedrun.paged.job.inputs.row import Row, RowSource
from pagedrun.paged.job.output.manifest import files_digest, read_manifest, text_digest
from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.job.prompts.requests import RequestBuilder
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.text.prompt_encoder import Limits, PromptEncoder
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import PagedrunError, UsageError, option
from pagedrun.paged.values.sampling_params import FIELD_NAMES, SamplingParams

MAX_TOKENS_SHOWN = 400
MAX_CHARS_SHOWN = 400


class TextsUnavailable(UsageError):
    """Prompts cannot be read again with certainty, for the given reason."""


@dataclass(frozen=True, slots=True)
class GivenTexts:
    """Prompt settings of which a manifest has only digests, given again by the user."""

    system: str | None = None
    prompt_template: str | None = None
    chat_template: str | None = None


class PromptTexts:
    """Prompts of some rows, as text."""

    def __init__(self, prompts: Mapping[int, tuple[int, ...]], tokenizer: Tokenizer) -> None:
        self._prompts = prompts
        self._tokenizer = tokenizer

    @classmethod
    def read(cls, manifest: Path, rows: Collection[int], given: GivenTexts) -> "PromptTexts":
        """Read the prompts of these rows; raises `TextsUnavailable`."""
        try:
            return _Reading(manifest, given).read(rows)
        except TextsUnavailable:
            raise
        except PagedrunError as error:
            raise TextsUnavailable(error.marked) from error
        except (OSError, ValueError) as error:
            raise TextsUnavailable(f"the prompts cannot be read again ({error})") from error

    def between(self, row: int, start: int, end: int) -> str | None:
        """Return the text of the row's prompt tokens [start, end), None without any.

        At most `MAX_TOKENS_SHOWN` tokens.
        """
        tokens = self._prompts.get(row, ())[start : min(end, start + MAX_TOKENS_SHOWN)]
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False) if tokens else None

    def beginning(self, row: int) -> str | None:
        """Return the start of the row's prompt, None for an invalid row."""
        text = self.between(row, 0, MAX_TOKENS_SHOWN)
        if text is None or len(text) <= MAX_CHARS_SHOWN:
            return text
        return text[: MAX_CHARS_SHOWN - 1] + "…"


class _Reading:
    """One call of `PromptTexts.read`."""

    def __init__(self, manifest: Path, given: GivenTexts) -> None:
        self._manifest = manifest
        self._saved = read_manifest(manifest)
        values = {name: each.value for name, each in self._saved.parameters.items()}
        self._parameters = JsonObject(f"{manifest}: parameters", values)
        self._given = given
        self._check_given()

    def read(self, rows: Collection[int]) -> PromptTexts:
        tokenizer = self._tokenizer()
        parameters = self._parameters
        model_impl = parameters.string("model_impl") or "auto"  # default of older manifests
        model = describe_model(self._model_folder(), model_impl)
        overlong = Overlong(parameters.text("on_overlong"))
        max_model_len = parameters.integer("max_model_len", 1, model.max_position_embeddings)
        limits = Limits(max_model_len, model.vocab_size, overlong)
        sampling = {name: parameters.get(name) for name in FIELD_NAMES}
        template = self._given.prompt_template
        kwargs = parameters.nested("chat_template_kwargs")
        prompts = PromptConfig(
            field=parameters.string("prompt_field"),
            template=None if template is None else PromptTemplate(template),
            template_kwargs={} if kwargs is None else kwargs.fields,
            system=self._given.system,
            raw=parameters.boolean("raw", True),
            time=self._saved.prompt_time,
        )
        defaults = SamplingParams().override(sampling)
        built = PromptBuilder(prompts, defaults, tokenizer)
        builder = RequestBuilder(built, PromptEncoder(tokenizer, limits))
        saved = self._saved.input
        names = [self._input_name(name) for name in (saved.path, *saved.more_paths)]
        reading = Reading(
            format=InputFormat(parameters.string("input_format") or InputFormat.AUTO),
            delimiter=parameters.string("delimiter"),
            encoding=parameters.string("encoding"),
        )
        with open_inputs(names, reading) as source:
            chosen = list(_chosen(source, rows))
            self._check_digest(shown_inputs(names), source)
        asked = (row.request for row in builder.build(chosen))
        return PromptTexts(
            {request.index: request.prompt_token_ids for request in asked if request is not None},
            tokenizer,
        )

    def _check_given(self) -> None:
        """Raise unless the given texts are those of the run."""
        for name in ("system", "prompt_template", "chat_template"):
            if name not in self._parameters:
                raise TextsUnavailable(f"{self._manifest} is not a manifest of this version")
            text = getattr(self._given, name)
            saved = self._parameters.get(name)
            if saved is not None and text is None:
                raise TextsUnavailable(
                    f"the run used {option(name)}, which is not stored in its files; pass it again"
                )
            if text_digest(text) != saved:
                raise TextsUnavailable(f"{option(name)} differs from that of the run")

    def _tokenizer(self) -> Tokenizer:
        model = self._model_folder()
        saved = self._parameters.string("tokenizer")
        folder = model if saved is None else Path(saved)
        if files_digest(model, folder) != self._saved.model.files_sha256:
            raise TextsUnavailable(f"the files of {model} have changed since the run")
        return Tokenizer.from_folder(folder, self._given.chat_template)

    def _model_folder(self) -> Path:
        folder = Path(self._saved.model.path)
        if not (folder if is_gguf(folder) else folder / "config.json").is_file():
            raise TextsUnavailable(f"the model of the run, {folder}, no longer exists")
        return folder

    def _input_name(self, name: str) -> str:
        """Return the present path of an input of the run."""
        if name == STDIN:
            raise TextsUnavailable("the run read its rows from standard input")
        if is_remote(name):
            raise TextsUnavailable(f"the run read its rows from an object store ({name})")
        if name.startswith(HUB_PREFIX):
            raise TextsUnavailable(f"the run read its rows from the hub ({name})")
        beside = str(self._manifest.parent / name)
        for path in (name, beside):  # relative paths start at the run's working directory
            if is_repeatable(path):
                return str(path)
        raise TextsUnavailable(f"the input of the run, {name}, no longer exists")

    def _check_digest(self, name: str, source: RowSource) -> None:
        saved = self._saved.input
        if not saved.whole:
            raise TextsUnavailable("the run read only a part of its input")
        digest = source.digest(whole=source.drain())
        if (digest.num_bytes, digest.sha256) != (saved.num_bytes, saved.sha256):
            raise TextsUnavailable(f"{name} has changed since the run")


def _chosen(source: RowSource, rows: Collection[int]) -> Iterator[Row]:
    wanted = set(rows)
    last = max(wanted, default=-1)
    return (row for row in islice(source, last + 1) if row.index in wanted)
