"""The bundled recipes, and where the name of a recipe leads."""

from pathlib import Path

from pagedrun.paged.values.errors import UsageError, nearest

_FOLDER = Path(__file__).parent / "bundled"
SUFFIX = ".yaml"


def bundled_names() -> list[str]:
    """Return the names of the bundled recipes, in order."""
    return sorted(path.stem for path in _FOLDER.glob(f"*{SUFFIX}"))


def bundled_path(name: str) -> Path:
    """Return the file of a bundled recipe; `UsageError` if there is none of this name."""
    names = bundled_names()
    if name not in names:
        hint = nearest(name, names) or f"; there are {', '.join(names)}"
        raise UsageError(f"{name}: no bundled recipe of this name{hint}")
    return _FOLDER / f"{name}{SUFFIX}"


def find_recipe(name: str) -> tuple[Path, str]:
    """Return the file that `name` names, and how messages name it.

    The name of a bundled recipe is that recipe; `./NAME` is a file in any case.
    """
    if name in bundled_names():
        return _FOLDER / f"{name}{SUFFIX}", f"{name}{SUFFIX}"
    path = Path(name).expanduser()
    if path.is_dir():
        raise UsageError(f"--recipe {name} is a folder; name the YAML file in it")
    if not path.exists():
        names = bundled_names()
        hint = nearest(name, names) or f"; the bundled ones are {', '.join(names)}"
        raise UsageError(f"--recipe {name}: no such file, and no bundled recipe{hint}")
    return path, name
