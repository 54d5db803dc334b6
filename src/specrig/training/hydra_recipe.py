"""The recipe of Hydra heads: the `training.hydra:` block of a study's config. Its defaults train the quick embedded
pair's. No torch.
"""

from __future__ import annotations

from specrig.training.medusa_recipe import HeadsTraining


class HydraTraining(HeadsTraining):
    """How many heads, each of which knows what was drafted before it; all read out with the target's own LM head, which
    stays as it is.
    """
