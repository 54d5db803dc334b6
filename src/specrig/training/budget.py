"""What a recipe's trainings cost, in floating-point operations of their matrix products. For planning; no torch here.

A forward pass takes 2 operations a weight and token, and 2·T·D a layer and token for causal attention over T tokens; learning
takes three times as many (Kaplan et al., arXiv:2001.08361, section 2.1).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from specrig.training.eagle_recipe import HeadTraining
from specrig.training.recipe import Optimisation, Recipe, Shape

LEARNING = 3
"""Forward and backward pass in forward passes."""


def training_flop(recipe: Recipe, models: Iterable[str]) -> float:
    """What it costs to train `models` of a pair, and to write the text that they learn from.

    models: names in `stages.STAGES`, or `joint` for Medusa-2.
    """
    wanted = list(models)
    return sum(_COSTS[name](recipe) for name in wanted) + (_text(recipe) if set(wanted) - {"target"} else 0.0)


def _forward(shape: Shape, vocabulary: int, sequence: int) -> float:
    """Of one token."""
    return 2.0 * shape.parameters(vocabulary) + 2.0 * shape.layers * sequence * shape.hidden


def _grown(shape: Shape, vocabulary: int, settings: Optimisation) -> float:
    """`_forward`, averaged over the stages of a model that grows."""
    ends = [0.0, *(stage.until for stage in settings.growth), 1.0]
    depths = [*(stage.layers for stage in settings.growth), shape.layers]
    stages = zip(itertools.pairwise(ends), depths, strict=True)
    return sum(
        (end - start) * _forward(shape.model_copy(update={"layers": layers}), vocabulary, settings.sequence)
        for (start, end), layers in stages
    )


def _target(recipe: Recipe) -> float:
    settings = recipe.target_training
    return LEARNING * _grown(recipe.target, recipe.vocabulary, settings) * settings.steps * settings.batch * settings.sequence


def _draft(recipe: Recipe) -> float:
    settings = recipe.draft_training
    teacher = _forward(recipe.target, recipe.vocabulary, settings.sequence)
    own = LEARNING * _grown(recipe.draft, recipe.vocabulary, settings)
    return (own + teacher) * settings.steps * settings.batch * settings.sequence


def _text(recipe: Recipe) -> float:
    return _forward(recipe.target, recipe.vocabulary, recipe.text.sequence) * recipe.text.sequences * recipe.text.sequence


def _states(recipe: Recipe, shape: Shape, corpus_sequences: int) -> float:
    """Of what heads learn from: once for all steps."""
    tokens = (recipe.text.sequences + corpus_sequences) * recipe.text.sequence
    return _forward(shape, recipe.vocabulary, recipe.text.sequence) * tokens


def _medusa_heads(recipe: Recipe, shape: Shape) -> float:
    """Of one token of Medusa heads that learn."""
    return LEARNING * 2.0 * recipe.medusa.heads * shape.hidden * (shape.hidden + recipe.vocabulary)


def _medusa(recipe: Recipe, shape: Shape) -> float:
    settings = recipe.medusa
    learnt = settings.steps * settings.batch * recipe.text.sequence
    return _medusa_heads(recipe, shape) * learnt + _states(recipe, shape, settings.corpus_sequences)


def _joint(recipe: Recipe) -> float:
    token = LEARNING * _forward(recipe.target, recipe.vocabulary, recipe.text.sequence) + _medusa_heads(recipe, recipe.target)
    states = _states(recipe, recipe.target, recipe.medusa.corpus_sequences)
    return token * recipe.medusa.joint.steps * recipe.medusa.batch * recipe.text.sequence + states


def _eagle(recipe: Recipe, settings: HeadTraining, inputs: int, reads: int) -> float:
    """A head trained with these settings: `inputs` hidden widths enter it, `reads` its attention."""
    D, inner = recipe.target.hidden, recipe.target.intermediate
    weights = inputs * D * D + (3 * reads + 1) * D * D + 3 * D * inner + recipe.vocabulary * D
    learnt = settings.rollout * settings.steps * settings.batch * recipe.text.sequence
    return LEARNING * 2.0 * weights * learnt + _states(recipe, recipe.target, settings.corpus_sequences)


def _hydra(recipe: Recipe) -> float:
    settings, D = recipe.hydra, recipe.target.hidden
    weights = sum(2 * (head + 2) * D * D + recipe.vocabulary * D for head in range(settings.heads))
    learnt = settings.steps * settings.batch * recipe.text.sequence
    return LEARNING * 2.0 * weights * learnt + _states(recipe, recipe.target, settings.corpus_sequences)


def _layer_skip(recipe: Recipe) -> float:
    """Of all sets of layers that are tried, as if each left out none."""
    settings, layers = recipe.layer_skip, recipe.target.layers
    tried = 1 + layers + (round(settings.most * layers) - 1) * min(settings.candidates, layers)
    return tried * _forward(recipe.target, recipe.vocabulary, settings.tokens) * settings.texts * settings.tokens


_COSTS = {
    "target": _target,
    "draft": _draft,
    "medusa": lambda recipe: _medusa(recipe, recipe.target),
    "draft_medusa": lambda recipe: _medusa(recipe, recipe.draft) + _states(recipe, recipe.target, recipe.medusa.corpus_sequences),
    "eagle": lambda recipe: _eagle(recipe, recipe.eagle, 2, 1),
    "eagle3": lambda recipe: _eagle(recipe, recipe.eagle3, 3, 2),
    "hydra": _hydra,
    "layer_skip": _layer_skip,
    "rest": lambda _: 0.0,
    "joint": _joint,
}
