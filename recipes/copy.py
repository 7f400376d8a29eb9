"""A copy of a recipe and its sample in a folder of the user's."""

from pathlib import Path

from pagedrun.paged.values.errors import UsageError
from pagedrun.recipes.recipe import Recipe


def copy_recipe(recipe: Recipe, folder: Path) -> list[Path]:
    """Copy the recipe, then its sample, into `folder`, which is made if need be.

    Returns the paths of the copies. Raises `UsageError`, before anything is written, if one of the
    files is there already.
    """
    sources = [recipe.path, *([recipe.sample] if recipe.sample is not None else [])]
    copies = [folder / source.name for source in sources]
    for path in copies:
        if path.is_symlink() or path.exists():
            raise UsageError(f"{path} exists; name another folder, or move the file away")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, path in zip(sources, copies, strict=True):
            with path.open("xb") as file:  # x: never over another's file
                file.write(source.read_bytes())
    except OSError as error:
        name = error.filename or folder
        raise UsageError(f"{name} cannot be written ({error.strerror})") from error
    return copies
