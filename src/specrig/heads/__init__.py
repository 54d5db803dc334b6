"""The heads. They are found by their folders; importing them loads no torch. A folder `heads/<name>/` holds

- `__init__.py`: one `HeadRecipe` of that name, without torch;
- `module.py`: what the head computes, as an `nn.Module` that drafts and that learns (for example `EagleLayers`);
  `load(folder, target)`, which drafters call, and `initialise(folder, config, seed)`, which writes an untrained head; the
  module's docstring states the checkpoint's format;
- `training.py`: one `Learner`, where gradients train it; else a function `make` (see `training.fit`).
"""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from pathlib import Path
from typing import Any

from specrig.discovery import RegistrationError, defined, modules, only
from specrig.heads.base import HeadRecipe

FILES = ("__init__.py", "module.py", "training.py")


def check(recipe: type[HeadRecipe], folder: Path) -> None:
    """Raise RegistrationError for a head whose interface is wrong; the message says what is wrong with it."""
    problems = [f"it has no {name}" for name in ("title", "about") if not getattr(recipe, name, "")]
    if getattr(recipe, "name", None) != folder.name:
        problems.append(f"its name is {getattr(recipe, 'name', None)!r}, the folder's is {folder.name!r}")
    problems += [f"there is no {file}" for file in FILES if not (folder / file).is_file()]
    if missing := sorted(getattr(recipe, "__abstractmethods__", ())):
        problems.append(f"it does not define {', '.join(missing)}")
    problems += [f"its key {key!r} has no default" for key, field in recipe.model_fields.items() if field.is_required()]
    if problems:
        raise RegistrationError(f"heads/{folder.name}: {recipe.__name__}: " + "; ".join(problems))


@cache
def registry() -> dict[str, type[HeadRecipe]]:
    """Name -> recipe, in alphabetical order. Raises RegistrationError for a folder that holds no well-formed head."""
    found: dict[str, type[HeadRecipe]] = {}
    for name, module in modules(__name__, __path__, folders=True):
        named = [recipe for recipe in defined(module, HeadRecipe) if "name" in vars(recipe)]
        found[name] = only(named, HeadRecipe, f"heads/{name}")
        check(found[name], Path(str(module.__file__)).parent)
    return found


def trained() -> dict[str, type[HeadRecipe]]:
    """Name of a head that can be made -> its kind: those of the target, and `draft_<name>` of those for drafts."""
    return registry() | {f"draft_{name}": kind for name, kind in registry().items() if kind.for_drafts}


def of_draft(name: str) -> bool:
    """Whether a head is made from the pair's draft: a `draft_<name>`, or a kind that says so."""
    kind = trained().get(name)
    return kind is not None and (kind.of_draft or name != kind.name)


def part(name: str, file: str) -> Any:
    """The module `file` of a head's folder; `draft_<name>` is of the same folder."""
    return importlib.import_module(module_name(name, file))


def module_name(name: str, file: str) -> str:
    """Its dotted name."""
    return f"{__name__}.{trained()[name].name}.{file}"


def learner_class(name: str) -> Any:
    """The `Learner` of a head that gradients train. Raises RegistrationError where its folder holds none or several."""
    from specrig.heads.learner import Learner

    module = part(name, "training")
    found = [learner for learner in defined(module, Learner) if not inspect.isabstract(learner)]
    return only(found, Learner, module.__name__)


def initialise(name: str, folder: Path, target: Any, draft: Any, seed: int) -> None:
    """Write an untrained head for models of these configurations, where any draft will do.

    name: its kind, or `draft_<kind>` for one of the draft's.
    """
    part(name, "module").initialise(folder, draft if of_draft(name) else target, seed)
