"""Routes of sentence-transformers: modules that a Router chooses by the task of a text.

`Router`, before version 5 `Asym`, stands in modules.json behind the network. Its routes are lists
of modules by name; a task, such as `query`, is the name of a route or is mapped to one. A route is
chosen as version 6 does for texts.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.values.errors import UsageError, listed, option

ROUTERS = ("Router", "Asym")
_FILES = ("router_config.json", "config.json")  # the second before version 5
_MAX_BYTES = 2**20
_MAX_KEY_CHARS = 1000
_MODALITY = "text"

_Key = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Router:
    """Routes of a module Router: their modules, as modules.json would list them.

    `mappings` have precedence over names: routes by task and modality, None for any.
    """

    origin: str
    routes: Mapping[str, list[JsonObject]]
    mappings: Mapping[_Key, str]
    default: str | None

    @classmethod
    def read(cls, folder: Path, place: str) -> "Router":
        """Read the router in `place` of a model folder; `ModelError` names an invalid field."""
        paths = [folder / place / name for name in _FILES]
        own = JsonObject.read(next((each for each in paths if each.exists()), paths[0]), _MAX_BYTES)
        types, structure = own.section("types"), own.section("structure")
        routes = {name: _modules(structure, name, types, place) for name in structure.fields}
        if not routes:
            raise own.error("structure", "an object of routes")
        given = own.nested("parameters") or JsonObject(own.origin, {})
        for name in given.fields:
            if name not in ("default_route", "allow_empty_key", "route_mappings"):
                raise given.error(name, "absent: what it means is not known")
        default = given.string("default_route")
        if default is None and given.boolean("allow_empty_key", True):
            default = next(iter(routes))
        if default is not None and default not in routes:
            raise given.error("default_route", f"one of {listed(routes)}")
        return cls(own.origin, routes, _mappings(given.nested("route_mappings"), routes), default)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names that choose a route."""
        mapped = [task for task, kind in self.mappings if task and kind in (None, _MODALITY)]
        return tuple(dict.fromkeys((*self.routes, *mapped)))

    @property
    def shown(self) -> str:
        """Routes with the classes of their modules, for messages."""
        kinds = {
            name: listed(each.text("type").rpartition(".")[2] for each in modules)
            for name, modules in self.routes.items()
        }
        return listed(f"{name} ({kind})" for name, kind in kinds.items())

    def modules(self, task: str | None) -> list[JsonObject]:
        """Return the modules for a task, or for none; `UsageError` where none has no route."""
        known = task if task in self.tasks else None
        for key in ((known, _MODALITY), (known, None), (None, _MODALITY), (None, None)):
            if key in self.mappings:
                return self.routes[self.mappings[key]]
        route = next((each for each in (known, _MODALITY) if each in self.routes), self.default)
        if route is None:
            raise UsageError(
                f"{self.origin}: it has no default route; {option('prompt_name')} chooses one of "
                f"{listed(self.tasks)}"
            )
        return self.routes[route]


def _modules(structure: JsonObject, route: str, types: JsonObject, place: str) -> list[JsonObject]:
    """Return the modules of a route, with the folders that they have inside the model's."""
    names = structure.get(route)
    if not isinstance(names, list):
        raise structure.error(route, "a list of modules")
    origin = f"{structure.origin}: {route}"
    found = []
    for name in names:
        if not isinstance(name, str) or name not in types:
            raise structure.error(route, "a list of names in types")
        path = f"{place}/{name}" if place else name
        found.append(JsonObject(origin, {"type": types.text(name), "path": path}))
    return found


def _mappings(given: JsonObject | None, routes: Mapping[str, object]) -> dict[_Key, str]:
    """Return the routes by task and modality, whose pairs are written as Python shows them."""
    found: dict[_Key, str] = {}
    for name in () if given is None else given.fields:
        assert given is not None
        route = given.text(name)
        if route not in routes:
            raise given.error(name, f"one of {listed(routes)}")
        try:
            key = ast.literal_eval(name) if len(name) < _MAX_KEY_CHARS else None
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            key = None
        match key:
            case (str() | None as task, str() | None as modality):
                found[task, modality] = route
            case (str() | None, tuple()):
                pass  # several modalities at once
            case _:
                raise given.error(name, "under a task and a modality, as in ('query', None)")
    return found
