"""Imports that a process with a model would wait for and that nothing here uses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

UNUSED = {
    "transformers.generation.candidate_generator": "is_sklearn_available",
    "transformers.loss.loss_for_object_detection": "is_scipy_available",
}
"""Module -> by what it asks whether to import a package. The first adapts a confidence threshold in assisted
generation, which the transformers engine switches off; the second detects objects.
"""


class _Without(MetaPathFinder):
    """Let these modules find their packages missing."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Find nothing, but tell transformers before it imports such a module."""
        if name in UNUSED:
            import transformers.utils

            setattr(transformers.utils, UNUSED[name], lambda: False)


def skip_unused() -> None:
    """Start without scikit-learn and SciPy where transformers alone would import them."""
    if not any(isinstance(finder, _Without) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Without())
