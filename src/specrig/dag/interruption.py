"""Ctrl-C during a run: one line, instead of what Snakemake says of each job that it stops."""

from __future__ import annotations

import logging
import os
import signal
from types import FrameType

SNAKEMAKE = "snakemake.logging"
"""The name of Snakemake's logger."""
MESSAGE = "\nInterrupted. Finished cells are kept; the same command continues.\n"


class Interruption:
    """Whether the process was interrupted, as `onerror` and Snakemake's logger read it."""

    def __init__(self) -> None:
        """Listen for Ctrl-C from now on, unless the process ignores it, as shells make background processes do."""
        self.happened = False
        logging.getLogger(SNAKEMAKE).addFilter(lambda _: not self.happened)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.happened:
            self.happened = True
            os.write(2, MESSAGE.encode())  # a signal may arrive within a print
        signal.default_int_handler(number, frame)
