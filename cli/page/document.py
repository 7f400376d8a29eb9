"""Self-contained HTML pages.

A content security policy in the page's head allows its own scripts, by digest, and nothing else: no
other script and no request. Text from files and models is passed through `safe` and HTML-escaped;
figures for the charts are JSON in which no tag can end.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pagedrun._version import __version__
from pagedrun.cli.terminal.console import safe
from pagedrun.cli.terminal.units import show_size
from pagedrun.paged.files.atomic import replace_file
from pagedrun.paged.job.output.output_file import OutputError

ASSETS = Path(__file__).parent / "assets"
# Escaped, none of these can end a script or begin a comment. ASCII JSON contains no literal U+2028
# or U+2029.
_JSON_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}


@dataclass(frozen=True, slots=True)
class Document:
    """Page: a template of `assets/`, its scripts in order, and their input.

    `values` are variables of the template; their strings are untrusted. `data` is the scripts'
    input, serialized as JSON.
    """

    template: str
    scripts: Seq[str]
    values: Mapping[str, object]
    data: Mapping[str, object]

    def html(self) -> str:
        """Return the page as HTML."""
        scripts = [_plotly(), *(_script(name) for name in ("charts.js", *self.scripts))]
        digests = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
        return (
            _environment()
            .get_template(self.template)
            .render(
                **self.values,
                policy=f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; "
                "img-src data: blob:; base-uri 'none'; form-action 'none'",
                style=Markup((ASSETS / "page.css").read_text(encoding="utf-8")),
                scripts=[Markup(script) for script in scripts],
                data=Markup(embed(self.data)),
                version=__version__,
            )
        )

    def write(self, path: Path) -> None:
        """Write the page to `path` atomically, readable by its owner only; raises `OutputError`."""
        try:
            replace_file(path, [self.html().encode("utf-8")])
        except OSError as error:
            raise OutputError(f"{path} cannot be written ({error.strerror})", error) from error


def embed(data: Mapping[str, object]) -> str:
    """Return `data` as ASCII JSON without tags, safe inside a script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.translate(_JSON_ESCAPES)


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return _closed(get_plotlyjs())


def _script(name: str) -> str:
    return _closed((ASSETS / name).read_text(encoding="utf-8"))


def _closed(script: str) -> str:
    """Return `script`; `AssertionError` if it contains markup that would end its element."""
    lowered = script.lower()
    assert not any(each in lowered for each in ("</script", "<script", "<!--", "\r")), "not inline"
    return script


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = show_size
    return environment


def _shown(value: object) -> object:
    """Return a template value, text with invisible characters escaped."""
    return safe(value) if isinstance(value, str) and not isinstance(value, Markup) else value


class Headline(NamedTuple):
    """Large figure of a page: its label, its value as text, and a comparison."""

    label: str
    value: str
    note: str = ""
