"""What a recipe's trainings cost: floating-point operations of their matrix products, memory and disk. For planning; no
torch here.

A forward pass takes 2 operations a weight and token, and 2·T·D a layer and token for causal attention over T tokens;
learning takes three times as many (Kaplan et al., arXiv:2001.08361, section 2.1). A target is given by its shape,
whatever its origin. What a head costs, its `HeadRecipe` says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from specrig import heads
from specrig.heads.base import LEARNING, HeadRecipe, NeuralHead, Sizes
from specrig.models.facts import Shape as Target
from specrig.training import shared_shards
from specrig.training.prompt_sources import relative_tokens
from specrig.training.recipe import Optimisation, Recipe, Shape

LEARNT_BYTES = 16
"""Of a weight that learns: itself, its gradient and two moments in float32."""
FROZEN_BYTES = 4
"""Of a weight of the teacher."""
LOGIT_BYTES = 16
"""Of a logit of a batch: the student's and the teacher's, and what the backward pass keeps of each."""
STATE_BYTES = 2
"""Of a number in a stored hidden state."""


def training_flop(recipe: Recipe, models: Iterable[str], target: Target) -> float:
    """Operations to train `models` of a pair with this target, and to write the text that they learn from.

    models: names in `stages.STAGES`, or `joint` for Medusa-2.
    """
    names, sizes, sequence = list(models), _sizes(target), recipe.text.sequence
    total = sum(_flop(recipe, name, sizes) for name in names)
    if not set(names) - {"target"}:
        return total
    # The text that is not in shards yet, and its states: once for all with the same texts; of a draft with heads its own
    # besides.
    written = max(0, recipe.text.sequences - shared_shards.count(recipe.text.shards))
    texts = written * relative_tokens(recipe.sources) + sum(_stored(recipe, names))
    total += sizes.forward(sequence) * texts * sequence
    for head in (_head(recipe, name) for name in names if name.startswith("draft_")):
        total += _forward(recipe.draft, sizes.vocabulary, sequence) * _texts(recipe, head) * sequence
    return total


def training_memory(recipe: Recipe, model: str, target: Target) -> float:
    """Bytes that training one of the models takes at its peak: the teacher, what learns, and a batch's logits."""
    sizes, logits = _sizes(target), 0.0
    if model in ("target", "draft"):
        own = recipe.target_training if model == "target" else recipe.draft_training
        drafted = recipe.distillation.draft_vocabulary or sizes.vocabulary
        logits = own.batch * own.sequence / own.accumulate * min(drafted, sizes.vocabulary)
    elif isinstance(head := _head(recipe, model), NeuralHead):
        logits = head.batch * recipe.text.sequence * head.drafted(sizes) * head.copies
    learns = float(target.parameters) if model in ("target", "joint") else 0.0
    frozen = 0 if model == "target" else target.parameters
    learns += _weights(recipe, model, sizes)
    return learns * LEARNT_BYTES + frozen * FROZEN_BYTES + logits * LOGIT_BYTES


def training_disk(recipe: Recipe, models: Iterable[str], target: Target) -> float:
    """Bytes on disk: the trained models with their checkpoints, and the hidden states that they learn from."""
    names, sizes = list(models), _sizes(target)
    kept = sum(
        (target.parameters if name in ("target", "joint") else 0) + _weights(recipe, name, sizes) for name in names
    )
    states = sum(texts * (1 + aux) for texts, aux in _stored(recipe, names).items())
    return kept * (FROZEN_BYTES + LEARNT_BYTES) + states * recipe.text.sequence * sizes.hidden * STATE_BYTES


def _sizes(target: Target) -> Sizes:
    config = target.config
    D = int(config["hidden_size"])
    inner = int(config.get("intermediate_size") or 4 * D)
    return Sizes(D, int(config["vocab_size"]), target.layers, inner, target.active_parameters)


def _head(recipe: Recipe, model: str) -> HeadRecipe:
    """The recipe of a head; Medusa-2 is Medusa's."""
    found: HeadRecipe = recipe.head(heads.trained()["medusa" if model == "joint" else model].name)
    return found


def _made_for(recipe: Recipe, model: str, sizes: Sizes) -> Sizes:
    """The sizes of the model that gets the head: the target's, or the draft's."""
    own, V = recipe.draft, sizes.vocabulary
    if not heads.of_draft(model):
        return sizes
    return Sizes(own.hidden, V, own.layers, own.intermediate, own.parameters(V))


def _texts(recipe: Recipe, head: HeadRecipe) -> int:
    """Texts whose states a training reads."""
    return recipe.text.sequences + head.corpus_sequences if isinstance(head, NeuralHead) else 0


def _stored(recipe: Recipe, models: Iterable[str]) -> dict[int, int]:
    """Texts -> the most auxiliary hidden states of the target that trainings read of so many texts beside the final
    one; trainings share what they have in common.
    """
    found: dict[int, int] = {}
    for name in models:
        if name == "draft":
            texts, aux = recipe.text.sequences if recipe.distillation.generated_share else 0, 0
        elif name != "target":
            head = _head(recipe, name)
            texts, aux = _texts(recipe, head), head.aux_hidden_states
        else:
            continue
        found[texts] = max(aux, found.get(texts, 0))
    return found


def _weights(recipe: Recipe, model: str, sizes: Sizes) -> float:
    """Weights of a draft or head; 0 for a target."""
    if model == "target":
        return 0.0
    if model == "draft":
        return float(recipe.draft.parameters(sizes.vocabulary))
    return _head(recipe, model).weights(_made_for(recipe, model, sizes))


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


def _flop(recipe: Recipe, model: str, sizes: Sizes) -> float:
    """Operations to train one model, the text and stored states aside."""
    if model == "target":
        own = recipe.target_training
        tokens = own.steps * own.batch * own.sequence
        return LEARNING * _grown(recipe.target, recipe.vocabulary, own) * tokens
    if model == "draft":
        # On the corpus the target runs beside the draft; of its own text its states are stored, and then only its
        # logits are computed.
        own, share = recipe.draft_training, recipe.distillation.generated_share
        drafted = min(recipe.distillation.draft_vocabulary or sizes.vocabulary, sizes.vocabulary)
        distilled = (1 - share) * sizes.forward(own.sequence) + share * 2.0 * sizes.hidden * drafted
        tokens = own.steps * own.batch * own.sequence
        return (LEARNING * _grown(recipe.draft, sizes.vocabulary, own) + distilled) * tokens
    head, sequence = _head(recipe, model), recipe.text.sequence
    if model != "joint":
        return head.flop(_made_for(recipe, model, sizes), sequence)
    medusa = recipe.head("medusa")
    token = LEARNING * (sizes.forward(sequence) + 2.0 * medusa.active_parameters(sizes))
    return float(token * medusa.joint.steps * medusa.batch * sequence)
