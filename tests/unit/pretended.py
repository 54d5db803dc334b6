"""Devices that are pretended: `npy:0`, `npy:1`, … on which real values are computed by the CPU, and an operation that
mixes two fails.

As with CUDA, only `.to` and `copy_` cross devices; a tensor of no dimension and indices may lie on the CPU. PyTorch
takes up the device's name for the whole process, so scenes on such devices run in one of their own (`split_scenes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "npy"
GENERATOR = torch.Generator
aten = torch.ops.aten
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Their indices may lie on the CPU."""
CROSSING = {aten._to_copy.default, aten.copy_.default}


class MisplacedError(RuntimeError):
    """An operation was given tensors of two devices."""


class Pretended(Tensor):
    """A tensor that says it lies on a pretended device; `held`: its values, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> Pretended:
        sizes = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=device, **sizes)
        made.held = held
        return made

    def tolist(self) -> Any:
        return self.held.tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


def compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the values held, and let its results lie where CUDA would put them. Raises MisplacedError."""
    if function.overloadpacket is aten.to:  # into `_to_copy`, where it moves anything
        with Operations():
            return function.decompose(*args, **kwargs)
    if function is aten._has_compatible_shallow_copy_type.default:
        return False
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    pretended = [tensor for tensor in tensors if isinstance(tensor, Pretended)]
    goes = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    if not pretended and (goes is None or goes.type != NAME):
        return function(*args, **kwargs)
    if function not in CROSSING:
        _check(function, args, tensors)
    place = goes or (args[0] if function is aten.copy_.default else pretended[0]).device
    if goes is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    held = tree_map(lambda leaf: leaf.held if isinstance(leaf, Pretended) else leaf, (args, kwargs))
    found = function(*held[0], **held[1])
    if function is aten.copy_.default:
        return args[0]
    own = {id(tensor.held): tensor for tensor in pretended}  # of operations in place

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or place.type != NAME:
            return leaf
        return own[id(leaf)] if id(leaf) in own else Pretended(leaf, place)

    return tree_map(put, found)


def _check(function: Any, args: Any, tensors: list[Tensor]) -> None:
    places = {str(tensor.device) for tensor in tensors if isinstance(tensor, Pretended)}
    free = {id(leaf) for leaf in tree_leaves(args[1])} if function in INDEXING else set()
    on_cpu = any(
        not isinstance(tensor, Pretended) and tensor.dim() > 0 and id(tensor) not in free for tensor in tensors
    )
    if len(places) > 1 or (places and on_cpu):
        raise MisplacedError(f"{function}: tensors on {', '.join(sorted(places) + ['cpu'] * on_cpu)}")


class Operations(TorchDispatchMode):
    """Also operations without such a tensor may make one: `torch.zeros(…, device="npy:1")`."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


class Constants(TorchFunctionMode):
    """What `torch.tensor`, and a list as an index, make of Python's values reaches no dispatcher that could be asked."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu").type == NAME:
            return function(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        if function in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[1], tuple):
            index = tuple(torch.tensor(part) if isinstance(part, list) else part for part in args[1])
            args = (args[0], index, *args[2:])
        return function(*args, **kwargs)


def register() -> None:
    """Once a process."""
    _setup_privateuseone_for_python_backend(NAME)


@contextmanager
def devices() -> Iterator[None]:
    """Within, tensors can lie on `npy:0` and so on, all without gradients: views of one made with are not to be had
    without.
    """
    # Random numbers are drawn by the CPU, so they are those that it draws otherwise.
    with torch.inference_mode(), Constants(), Operations(), patch("torch.Generator", lambda device="cpu": GENERATOR()):
        yield
