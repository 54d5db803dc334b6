"""Secrets taken out of texts: passwords in addresses, and those that the environment holds for MLflow."""

from __future__ import annotations

import io
import os
import re
from typing import TextIO
from urllib.parse import unquote

SECRET = "***"
SECRET_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
_USER_INFO = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s:/@\"']*:)(?P<secret>[^\s\"']+)(?=@)", re.IGNORECASE)
"""The password of `scheme://user:password@host`, up to the last `@`: people do not quote those in passwords."""
_QUERY = re.compile(r"(?P<before>[?&]\w*(?:password|passwd|pwd|token|secret)=)[^&\s\"']+", re.IGNORECASE)


def redacted(text: str) -> str:
    """`text` with `***` for every password or token in an address, and wherever a password of
    `MLFLOW_TRACKING_URI` or a value of `SECRET_VARIABLES` stands by itself.
    """
    in_address = [found["secret"] for found in _USER_INFO.finditer(os.environ.get("MLFLOW_TRACKING_URI", ""))]
    text = _QUERY.sub(rf"\g<before>{SECRET}", _USER_INFO.sub(rf"\g<before>{SECRET}", text))
    for secret in (*in_address, *map(unquote, in_address), *(os.environ.get(name, "") for name in SECRET_VARIABLES)):
        if len(secret) > 3:  # a shorter one is found in ordinary words, and betrays itself by being missing there
            text = text.replace(secret, SECRET)
    return text


class RedactedStream(io.TextIOBase):
    """A text stream that passes on what is written to it, `redacted`. For `contextlib.redirect_stdout` and `_stderr`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text` without its secrets. Returns its length, as streams do."""
        self._stream.write(redacted(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream behind."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Whether the stream behind is a terminal."""
        return self._stream.isatty()
