"""What lies beside the package in its checkout: configs, prompts, weights, the workflow."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
"""The folder of the checkout."""


def here_or_shipped(path: Path) -> Path:
    """The path; a relative one that is not there from here, and is there from the checkout, from the checkout.

    A link to nowhere is there: what it stands for is missing, and whoever reads it says so.
    """
    try:
        here = path.exists() or path.is_symlink()
        return path if here or not (CHECKOUT / path).exists() else CHECKOUT / path
    except OSError:  # a name that is too long
        return path
