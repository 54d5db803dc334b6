"""What a recipe's trainings cost: floating-point operations of their matrix products, memory and disk. For planning; no
torch here.

A forward pass takes 2 operations a weight and token, and 2·T·D a layer and token for causal attention over T tokens;
learning takes three times as many (Kaplan et al., arXiv:2001.08361, section 2.1). A target is given by its shape,
whatever its origin. What a head costs, its `HeadRecipe` says.
"""

from __future__ import annotations

from collections.abc import Iterable

from specrig import heads
from specrig.heads.base import LEARNING, HeadRecipe, NeuralHead, Sizes
from specrig.models.facts import Shape as Target
from specrig.training.prompt_sources import relative_tokens
from specrig.training.recipe import Recipe, Shape

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
    # Writing the text, and its states once for all; of a draft with heads its own besides.
    texts = recipe.text.sequences * (relative_tokens(recipe.prompts) + (_aux_states(recipe, names) is not None))
    total += sizes.forward(sequence) * texts * sequence
    of_draft = sum(name.startswith("draft_") for name in names)
    return total + of_draft * _forward(recipe.draft, sizes.vocabulary, sequence) * recipe.text.sequences * sequence


def training_memory(recipe: Recipe, model: str, target: Target) -> float:
    """Bytes that training one of the models takes at its peak: the teacher, what learns, and a batch's logits."""
    sizes, logits, sequence = _sizes(target), 0.0, recipe.text.sequence
    if model == "draft":
        drafted = recipe.distillation.draft_vocabulary or sizes.vocabulary
        logits = recipe.draft_training.batch * sequence * min(drafted, sizes.vocabulary)
    elif isinstance(head := _head(recipe, model), NeuralHead):
        logits = head.batch * sequence * head.drafted(sizes) * head.copies
    learns = float(target.parameters) if model == "joint" else 0.0
    learns += _weights(recipe, model, sizes)
    return learns * LEARNT_BYTES + target.parameters * FROZEN_BYTES + logits * LOGIT_BYTES


def training_disk(recipe: Recipe, models: Iterable[str], target: Target) -> float:
    """Bytes on disk: the trained models with their checkpoints, and the hidden states that they learn from."""
    names, sizes = list(models), _sizes(target)
    kept = sum((target.parameters if name == "joint" else 0) + _weights(recipe, name, sizes) for name in names)
    aux = _aux_states(recipe, names)
    states = 0 if aux is None else recipe.text.sequences * (1 + aux) * recipe.text.sequence * sizes.hidden
    return kept * (FROZEN_BYTES + LEARNT_BYTES) + states * STATE_BYTES


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


def _aux_states(recipe: Recipe, models: Iterable[str]) -> int | None:
    """The most auxiliary hidden states of the target that a training reads beside the final one, which all that read any
    share; None where none reads states.
    """
    readers = [_head(recipe, name) for name in models if name != "draft"]
    aux = [reader.aux_hidden_states for reader in readers if isinstance(reader, NeuralHead)]
    return max([*aux, *(0 for name in models if name == "draft")], default=None)


def _weights(recipe: Recipe, model: str, sizes: Sizes) -> float:
    """Weights of a draft or head."""
    if model == "draft":
        return float(recipe.draft.parameters(sizes.vocabulary))
    return _head(recipe, model).weights(_made_for(recipe, model, sizes))


def _forward(shape: Shape, vocabulary: int, sequence: int) -> float:
    """Of one token."""
    return 2.0 * shape.parameters(vocabulary) + 2.0 * shape.layers * sequence * shape.hidden


def _flop(recipe: Recipe, model: str, sizes: Sizes) -> float:
    """Operations to train one model, the text and stored states aside."""
    if model == "draft":
        # The target's states are stored, so only its logits are computed.
        own, sequence = recipe.draft_training, recipe.text.sequence
        drafted = min(recipe.distillation.draft_vocabulary or sizes.vocabulary, sizes.vocabulary)
        token = LEARNING * _forward(recipe.draft, sizes.vocabulary, sequence) + 2.0 * sizes.hidden * drafted
        return token * own.steps * own.batch * sequence
    head, sequence = _head(recipe, model), recipe.text.sequence
    if model != "joint":
        return head.flop(_made_for(recipe, model, sizes), sequence)
    medusa = recipe.head("medusa")
    token = LEARNING * (sizes.forward(sequence) + 2.0 * medusa.active_parameters(sizes))
    return float(token * medusa.joint.steps * medusa.batch * sequence)
