"""An error that layers share, and what a message of ours says of another error."""

from __future__ import annotations


class EngineError(RuntimeError):
    """An engine that cannot be used, or fails; the message names what, why and the fix."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not blank, or the error's type where the message is empty."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def with_type(error: BaseException) -> str:
    """An error's type and the first line of its message."""
    kind, reason = type(error).__name__, first_line(error)
    return f"{kind}: {'no message' if reason == kind else reason}"
