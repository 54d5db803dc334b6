"""Shapes of the tensors in a file of torch (.bin, .pt), without torch and without running what a pickle names.

Such a file is a ZIP archive whose `data.pkl` rebuilds a dictionary of tensors from stored numbers. Here only that
dictionary is rebuilt, and each tensor is its shape.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]] | None:
    """Tensor name -> shape; None for a file that holds anything else, or that an old torch wrote."""
    try:
        with zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl") or name == "data.pkl")
            with archive.open(name) as opened:
                tensors = _Shapes(opened).load()
    except Exception:  # whatever a damaged or foreign pickle raises: loading says what is wrong with it
        return None
    if not isinstance(tensors, dict) or not all(isinstance(shape, tuple) for shape in tensors.values()):
        return None
    return dict(tensors)


class _Shapes(pickle.Unpickler):
    """Unpickles tensors as their shapes; refuses everything but dictionaries of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, size, *_: tuple(size)
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda shape, *_: shape
        if module == "torch" and name.endswith("Storage"):
            return name
        raise pickle.UnpicklingError(f"{module}.{name} is no tensor")

    def persistent_load(self, pid: Any) -> None:
        """The stored numbers, which nobody needs."""
