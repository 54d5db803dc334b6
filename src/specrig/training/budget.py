"""What a recipe's trainings cost: floating-point operations of their matrix products, memory and disk. For planning; no
torch here.

A forward pass takes 2 operations a weight and token, and 2·T·D a layer and token for causal attention over T tokens;
learning takes three times as many (Kaplan et al., arXiv:2001.08361, section 2.1). A target is given by its shape,
whatever its origin.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from specrig.models.facts import Shape as Target
from specrig.training.eagle3_recipe import Eagle3Training
from specrig.training.eagle_recipe import HeadTraining
from specrig.training.hydra_recipe import HydraTraining
from specrig.training.medusa_recipe import MedusaTraining
from specrig.training.recipe import Distillation, Optimisation, Recipe, Shape

LEARNING = 3
"""Forward and backward pass in forward passes."""
LEARNT_BYTES = 16
"""Of a weight that learns: itself, its gradient and two moments in float32."""
FROZEN_BYTES = 4
"""Of a weight of the teacher."""
LOGIT_BYTES = 16
"""Of a logit of a batch: the student's and the teacher's, and what the backward pass keeps of each."""
_LEARN_STATES = ("draft", "medusa", "draft_medusa", "joint", "eagle", "eagle3", "hydra")
"""Trainings that read stored states of the target."""
STATE_BYTES = 2
"""Of a number in a stored hidden state."""
EAGLE3_STREAMS = 3
"""Layers of the target whose states EAGLE-3 reads, besides the last."""


def training_flop(recipe: Recipe, models: Iterable[str], target: Target) -> float:
    """Operations to train `models` of a pair with this target, and to write the text that they learn from.

    models: names in `stages.STAGES`, or `joint` for Medusa-2.
    """
    wanted = list(models)
    if not set(wanted) - {"target"}:
        return sum(_COSTS[name](recipe, target) for name in wanted)
    return (
        sum(_COSTS[name](recipe, target) for name in wanted) + _text(recipe, target) + _states(recipe, wanted, target)
    )


def training_memory(recipe: Recipe, model: str, target: Target) -> float:
    """Bytes that training one of the models takes at its peak: the teacher, what learns, and a batch's logits."""
    whole = {"target": recipe.target_training, "draft": recipe.draft_training}.get(model)
    head = _head(recipe, model)
    tokens = whole.batch * whole.sequence / whole.accumulate if whole else float(head.batch * recipe.text.sequence)
    learns = target.parameters if model in ("target", "joint") else 0
    frozen = 0 if model == "target" else target.parameters
    logits = tokens * _drafted(recipe.distillation if whole else head, target) * LOGIT_BYTES
    return (learns + _weights(recipe, model, target)) * LEARNT_BYTES + frozen * FROZEN_BYTES + logits


def training_disk(recipe: Recipe, models: Iterable[str], target: Target) -> float:
    """Bytes on disk: the trained models with their checkpoints, and the hidden states that they learn from."""
    wanted = list(models)
    kept = sum(
        (target.parameters if name in ("target", "joint") else 0) + _weights(recipe, name, target) for name in wanted
    )
    return kept * (FROZEN_BYTES + LEARNT_BYTES) + sum(
        count * recipe.text.sequence * streams * _hidden(target) * STATE_BYTES
        for count, streams in _stored(recipe, wanted).items()
    )


def _stored(recipe: Recipe, models: Iterable[str]) -> dict[int, int]:
    """Texts -> streams of the target's hidden states that trainings read of so many texts; trainings share what they
    have in common.
    """
    found: dict[int, int] = {}
    for name in models:
        if name in _LEARN_STATES:
            texts, streams = _sequences(recipe, name), 1 + (EAGLE3_STREAMS if name == "eagle3" else 0)
            found[texts] = max(streams, found.get(texts, 0))
    return found


def _weights(recipe: Recipe, model: str, target: Target) -> float:
    """Weights of a draft or head; 0 for a target."""
    D, V = _hidden(target), _vocabulary(target)
    if model == "draft":
        return float(recipe.draft.parameters(V))
    if model in ("medusa", "draft_medusa", "joint"):
        width = recipe.draft.hidden if model == "draft_medusa" else D
        drafted = _drafted(recipe.medusa, target)
        return float(recipe.medusa.heads * width * (width + (drafted if recipe.medusa.owns(drafted) else 0)))
    if model == "eagle":
        return (
            _eagle_weights(recipe.eagle, target, 2, 1) - _drafted(recipe.eagle, target) * D
        )  # it shares the target's LM head
    if model == "hydra":
        return _hydra_weights(recipe, target)
    return _eagle_weights(recipe.eagle3, target, EAGLE3_STREAMS, 2) if model == "eagle3" else 0.0


def _head(recipe: Recipe, model: str) -> MedusaTraining | HydraTraining | HeadTraining:
    """How a head is trained."""
    known: dict[str, HydraTraining | HeadTraining] = {
        "eagle": recipe.eagle,
        "eagle3": recipe.eagle3,
        "hydra": recipe.hydra,
    }
    return known.get(model, recipe.medusa)


def _hidden(target: Target) -> int:
    return int(target.config["hidden_size"])


def _vocabulary(target: Target) -> int:
    return int(target.config["vocab_size"])


def _drafted(settings: Distillation | MedusaTraining | HydraTraining | HeadTraining, target: Target) -> int:
    """Tokens that can be drafted."""
    return min(settings.draft_vocabulary or _vocabulary(target), _vocabulary(target))


def _teaches(target: Target, sequence: int) -> float:
    """A forward pass of the target for one token."""
    return 2.0 * target.active_parameters + 2.0 * target.layers * sequence * _hidden(target)


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


def _target(recipe: Recipe, target: Target) -> float:
    settings = recipe.target_training
    return (
        LEARNING
        * _grown(recipe.target, recipe.vocabulary, settings)
        * settings.steps
        * settings.batch
        * settings.sequence
    )


def _draft(recipe: Recipe, target: Target) -> float:
    """On the corpus the target runs beside the draft; of its own text its states are computed once, and then only its
    logits.
    """
    settings, share = recipe.draft_training, recipe.distillation.generated_share
    own = LEARNING * _grown(recipe.draft, _vocabulary(target), settings)
    passes = (1 - share) * _teaches(target, settings.sequence) + share * 2.0 * _hidden(target) * _drafted(
        recipe.distillation, target
    )
    return (own + passes) * settings.steps * settings.batch * settings.sequence


def _text(recipe: Recipe, target: Target) -> float:
    return _teaches(target, recipe.text.sequence) * recipe.text.sequences * recipe.text.sequence


def _states(recipe: Recipe, models: Iterable[str], target: Target) -> float:
    """Of the states that models learn from, once for all with the same texts if EAGLE-3 comes first; a draft's of its
    Medusa heads besides.
    """
    token, sequence = _teaches(target, recipe.text.sequence), recipe.text.sequence
    draft = (
        _forward(recipe.draft, _vocabulary(target), sequence) * _sequences(recipe, "medusa")
        if "draft_medusa" in models
        else 0.0
    )
    return sequence * (sum(token * count for count in _stored(recipe, models)) + draft)


def _sequences(recipe: Recipe, model: str) -> int:
    """Texts whose states a training reads."""
    own = recipe.text.sequences
    if model == "draft":
        return own if recipe.distillation.generated_share else 0
    return own + _head(recipe, model).corpus_sequences


def _medusa_heads(recipe: Recipe, width: int, target: Target) -> float:
    """Of one token of Medusa heads that learn, on a model of this width."""
    return LEARNING * 2.0 * recipe.medusa.heads * width * (width + _drafted(recipe.medusa, target))


def _medusa(recipe: Recipe, target: Target) -> float:
    settings = recipe.medusa
    learnt = settings.steps * settings.batch * recipe.text.sequence
    return _medusa_heads(recipe, _hidden(target), target) * learnt


def _draft_medusa(recipe: Recipe, target: Target) -> float:
    settings = recipe.medusa
    learnt = settings.steps * settings.batch * recipe.text.sequence
    return _medusa_heads(recipe, recipe.draft.hidden, target) * learnt


def _joint(recipe: Recipe, target: Target) -> float:
    token = LEARNING * _teaches(target, recipe.text.sequence) + _medusa_heads(recipe, _hidden(target), target)
    return token * recipe.medusa.joint.steps * recipe.medusa.batch * recipe.text.sequence


def _eagle_weights(settings: HeadTraining, target: Target, inputs: int, reads: int) -> float:
    """Of a head: `inputs` hidden widths enter it, `reads` its attention; its LM head included."""
    D, inner = _hidden(target), int(target.config.get("intermediate_size") or 4 * _hidden(target))
    return float(inputs * D * D + (3 * reads + 1) * D * D + 3 * D * inner + _drafted(settings, target) * D)


def _eagle(recipe: Recipe, target: Target, settings: HeadTraining) -> float:
    weights = _eagle_weights(
        settings, target, *((EAGLE3_STREAMS, 2) if isinstance(settings, Eagle3Training) else (2, 1))
    )
    learnt = settings.rollout * settings.steps * settings.batch * recipe.text.sequence
    return LEARNING * 2.0 * weights * learnt


def _hydra_weights(recipe: Recipe, target: Target) -> float:
    """Of Hydra's heads; they share the target's LM head."""
    return float(sum(2 * (head + 2) * _hidden(target) ** 2 for head in range(recipe.hydra.heads)))


def _hydra(recipe: Recipe, target: Target) -> float:
    settings = recipe.hydra
    learnt = settings.steps * settings.batch * recipe.text.sequence
    said = settings.heads * _hidden(target) * _drafted(settings, target)
    return LEARNING * 2.0 * (_hydra_weights(recipe, target) + said) * learnt


def _layer_skip(recipe: Recipe, target: Target) -> float:
    """Of all sets of layers that are tried, as if each left out none."""
    settings, layers = recipe.layer_skip, target.layers
    tried = 1 + layers + (round(settings.most * layers) - 1) * min(settings.candidates, layers)
    return tried * _teaches(target, settings.tokens) * settings.texts * settings.tokens


_COSTS = {
    "target": _target,
    "draft": _draft,
    "medusa": _medusa,
    "draft_medusa": _draft_medusa,
    "eagle": lambda recipe, target: _eagle(recipe, target, recipe.eagle),
    "eagle3": lambda recipe, target: _eagle(recipe, target, recipe.eagle3),
    "hydra": _hydra,
    "layer_skip": _layer_skip,
    "rest": lambda *_: 0.0,
    "joint": _joint,
}
