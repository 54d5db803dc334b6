"""What a pass of n tokens costs beside a pass of one, measured on the device that decodes."""

from __future__ import annotations

import torch

from specrig.runtime.model import CachedModel
from specrig.runtime.replay import Replay

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Tokens a row of the passes that are timed."""
LEAST, MOST, AGREE = 8, 16, 0.02
"""How often widths are timed: until that lowers the least time of none of them by this share, at least and at most so
often. With three turns and the sum of all widths, which the widest decide, a pass of two tokens cost 1.00 in one job and
1.13 in the next.
"""
NARROW, WIDE_TURNS = 16, 3
"""Up to which width they are timed in every turn; wider ones, which few drafts reach, in so many."""
IN_A_ROW = 2
"""Passes of a width one after the other: matrix registers slow a processor down for a while, so the pass that follows a
wide one takes longer than others of its width.
"""


@torch.inference_mode()
def pass_costs(model: CachedModel) -> list[float]:
    """Time of passes of 1, 2, ... tokens a row over that of a pass of one, for the rows and the context that it holds.

    The context stays as it is. Each width counts with its fastest run, since everything else on a machine only adds
    time; widths take turns until these times settle. Between the widths that were timed the cost is drawn straight. It never falls with the
    width: a wider pass can do what a narrower one does.
    """
    began = model.now()  # without what recordings took, which leave themselves out
    room = model.cache.slots - max(model.lengths)
    widths = [width for width in WIDTHS if width <= room]
    fastest = dict.fromkeys(widths, float("inf"))
    tokens = torch.zeros((model.cache.batch_size, max(widths, default=1)), dtype=torch.long, device=model.device)
    for repeat in range(MOST):
        timed = [width for width in widths if width <= NARROW or repeat < WIDE_TURNS]
        before = dict(fastest)
        for width in (width for width in timed for _ in range(IN_A_ROW)):
            started = model.now()
            model.forward(tokens[:, :width])
            fastest[width] = min(fastest[width], model.now() - started)
        if repeat + 1 >= LEAST and all(fastest[width] > (1 - AGREE) * before[width] for width in timed):
            break
    model.watch.clear()
    Replay.spent += model.now() - began  # a last batch with fewer rows is timed within a measured run
    costs, known = [1.0], 1
    for width in widths[1:]:
        cost = max(fastest[width] / fastest[1], costs[-1])
        step = (cost - costs[-1]) / (width - known)
        costs += [costs[-1] + step * more for more in range(1, width - known + 1)]
        known = width
    return costs
