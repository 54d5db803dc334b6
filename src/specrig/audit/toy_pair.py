"""A pair so small that the exact distribution of its continuations can be written down, in the checkpoint format every
engine loads.

What is tested is the sampler, not the model, so the weights are drawn, and drawn so that every part of a sampler has
work to do:

- The target's next token depends most on the last one, somewhat on those before. No outcome is without probability.
- Draft and heads know the target's favourites and are wrong about the rest. They share about half of their probability
  with the target. So drafts are rejected often (corrections, second and third siblings) and accepted to their end often
  (bonus tokens).
- The prompt follows the target's favourites, so that drafts from the context are accepted to their end as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.models.pair import PairFiles

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY = 8
LETTERS = tuple(chr(ord("a") + index) for index in range(VOCABULARY))
WIDTH = 32
"""Hidden size, and the one attention head's: the smallest that every engine's kernels take."""
PROMPT = (3, 2, 7, 4, 5, 1, 0, 4, 5, 6, 0, 4, 5)
"""Holds each token once at least, and walks along the target's favourites: 5 is followed by 1 or 6, both of them by 0,
4 and 5.
"""

SEED = 15
"""Of the weights: a draw for which draft and target differ most where siblings and corrections decide
(docs/audit.md).
"""
SHARPNESS = 1.5
"""Standard deviation of the target's logits for a given last token."""
OVERCONFIDENCE = 1.4
"""How much surer than the target draft and heads are of their favourites, right or wrong."""
COMMON = 0.4
"""Length of what all embeddings share, for a token's own of 1: it makes tokens likely or unlikely whatever went before.
"""
CONTEXT = 0.2
"""Deviation of the target's layers: how much the tokens before the last one count."""
LAYERS = 0.08
"""The same of draft and heads."""
ERROR = 0.4
"""Deviation of a draft's output weights from the target's, in units of theirs."""


OTHER_TOKENS = (" a", "c", "b", "ab", "a", "d", "x", " b", "dd")
"""Of a draft of another vocabulary: it lacks two of the target's tokens and has three more, in another order. Two letters
stand with and without a space in front."""
TARGET_TOKENS = ("a", "b", "d", "e", " a", " b", "c", " c")
"""Of the target that it drafts for. It seldom says what the draft lacks."""


def build_other(folder: Path, seed: int = SEED) -> PairFiles:
    """Write the pair whose draft has a vocabulary of its own, unless it is there already. The target is `build`'s, with
    other letters.
    """
    target, draft = folder / "target", folder / "draft"
    if not (folder / "done").exists():
        _save(_model(3, CONTEXT, 0.0, seed), target, TARGET_TOKENS, "d")
        _save(_renamed(_model(1, LAYERS, ERROR, seed)), draft, OTHER_TOKENS, "d")
        (folder / "done").touch()
    return PairFiles("toy_pair", str(target), str(draft))


def _renamed(model: Any) -> Any:
    """A draft whose tokens are `OTHER_TOKENS`: those that the target has too mean what they mean to it."""
    import torch

    model.resize_token_embeddings(len(OTHER_TOKENS), mean_resizing=False)
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        was = weight.detach().clone()
        with torch.no_grad():
            for place, token in enumerate(OTHER_TOKENS):
                if token in TARGET_TOKENS:
                    weight[place] = was[TARGET_TOKENS.index(token)]
                else:  # as its first letter
                    weight[place] = was[TARGET_TOKENS.index(token[0] if token[0] in TARGET_TOKENS else "e")]
    return model


def build(folder: Path, needs: Iterable[str] = (), seed: int = SEED) -> PairFiles:
    """Write target, draft and the heads that a method `needs` below `folder`, unless they are there already."""
    target, draft = folder / "target", folder / "draft"
    if not (folder / "done").exists():
        _save(_model(3, CONTEXT, 0.0, seed), target)
        _save(_model(1, LAYERS, ERROR, seed), draft)
        (folder / "done").touch()
    return PairFiles("toy_pair", str(target), str(draft), heads=_heads(folder, needs, target, draft, seed))


def _embedding(seed: int) -> Tensor:
    """`[V, D]`: a direction that all tokens share and one of their own, of root mean square 1 together."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shared, own = torch.randn(1, WIDTH, generator=generator), torch.randn(VOCABULARY, WIDTH, generator=generator)
    return (COMMON * shared + own) / (1 + COMMON**2) ** 0.5


def _output(error: float, seed: int, error_seed: int = 0) -> Tensor:
    """`[V, D]` output weights, the target's for error 0."""
    import torch

    own = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(1000 + seed))
    other = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(2000 + seed + error_seed))
    scale = SHARPNESS * (OVERCONFIDENCE if error else 1.0)
    return scale * (own + error * other) / (WIDTH * (1 + error**2)) ** 0.5


def _model(layers: int, deviation: float, error: float, seed: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed + layers)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=deviation,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(_embedding(seed))
        model.lm_head.weight.copy_(_output(error, seed))
    return model


def _save(model: Any, folder: Path, names: Sequence[str] = LETTERS, unknown: str = "a") -> None:
    """Weights, config and a tokenizer of a few letters (prompts are token ids; engines want the files all the same)."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    letters = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=unknown).save_pretrained(folder)


def _heads(folder: Path, needs: Iterable[str], target: Path, draft: Path, seed: int) -> dict[str, Path]:
    from transformers import AutoConfig

    from specrig.heads import of_draft, part

    made = {}
    for name in needs:
        if name == "draft":
            continue
        made[name] = folder / name
        if not (made[name] / "config.json").exists():
            config = AutoConfig.from_pretrained(draft if of_draft(name) else target)
            MAKERS.get(name.removeprefix("draft_"), part(name, "module").initialise)(made[name], config, seed)
    return made


def _medusa(folder: Path, model: Any, seed: int) -> None:
    """Four heads that read the hidden state much as the LM head does."""
    from specrig.heads.medusa import module as medusa

    config = medusa.heads_config(hidden=WIDTH, vocabulary=VOCABULARY, heads=4)
    tensors = medusa.random_tensors(config, seed, deviation=0.05)
    for head in range(4):
        tensors[f"lm_heads.{head}.weight"] = _output(ERROR, seed, 10 + head)
    medusa.save(folder, config, tensors)


def _feature(name: str, folder: Path, target: Any, seed: int) -> None:
    """A head that passes the token's embedding on to the target's LM head, and adds something of the feature."""
    import torch

    from specrig.heads import part

    module = part(name, "module")
    config = module.head_config(target)
    tensors = module.random_tensors(config, seed, deviation=LAYERS)
    tensors["fc.weight"] *= ERROR
    tensors["fc.weight"][:, :WIDTH] += OVERCONFIDENCE * torch.eye(WIDTH)
    module.save(folder, config, tensors)


def _streams(name: str, folder: Path, target: Any, seed: int) -> None:
    """A head whose attention looks at its own position and passes the token's embedding on; of P-EAGLE's masks it is
    one token's.
    """
    import torch

    from specrig.heads import part

    module = part(name, "module")
    config = module.head_config(target)
    tensors = module.random_tensors(config, seed, deviation=LAYERS)
    for read in "qkv":
        tensors[f"midlayer.self_attn.{read}_proj.weight"][:, :WIDTH] += torch.eye(WIDTH)
    tensors["midlayer.self_attn.o_proj.weight"] += torch.eye(WIDTH)
    tensors["fc.weight"] *= 0.25
    tensors["lm_head.weight"] = _output(ERROR, seed, 3)
    module.save(folder, config, tensors)


def _blocks(name: str, folder: Path, target: Any, seed: int) -> None:
    """Layers whose masks look at the features, which pass on what the target's streams say."""
    import torch

    from specrig.heads import part

    module = part(name, "module")
    config = module.head_config(target)
    tensors = module.random_tensors(config, seed, deviation=LAYERS)
    tensors["fc.weight"][:, -WIDTH:] += torch.eye(WIDTH)
    for layer in range(config.num_hidden_layers):
        for read in "vo":
            tensors[f"layers.{layer}.self_attn.{read}_proj.weight"] += torch.eye(WIDTH)
    for bias in (name for name in tensors if "markov" in name):
        tensors[bias] *= ERROR / LAYERS
    module.save(folder, config, tensors)


def _hydra(folder: Path, target: Any, seed: int) -> None:
    """Heads that pass the last token's embedding on to the target's LM head, and add something of all they read."""
    import torch

    from specrig.heads.hydra import module as hydra

    config = hydra.heads_config(hidden=target.hidden_size, vocabulary=target.vocab_size, heads=4)
    tensors = hydra.random_tensors(config, seed, deviation=LAYERS * ERROR)
    for head in range(config.num_heads):
        tensors[f"heads.{head}.res_connection.weight"][:, -WIDTH:] += OVERCONFIDENCE * torch.eye(WIDTH)
    hydra.save(folder, config, tensors)


def _rest(folder: Path, target: Any, seed: int) -> None:
    """Text in which each token mostly is one that the target likes to say after the one before."""
    import torch

    from specrig.heads.rest import module as rest

    follows = torch.softmax(2 * _embedding(seed) @ _output(ERROR, seed).T, -1)
    generator = torch.Generator().manual_seed(seed)
    texts = [[row] for row in range(target.vocab_size)]
    for text in texts:
        for _ in range(500):
            text.append(int(torch.multinomial(follows[text[-1]], 1, generator=generator)))
    rest.save(folder, rest.datastore(texts, target.vocab_size))


def _layer_skip(folder: Path, target: Any, seed: int) -> None:
    """All layers but the first are left out."""
    from specrig.heads.layer_skip import module as layer_skip

    layer_skip.save(folder, target.num_hidden_layers, range(1, target.num_hidden_layers))


def _pard(folder: Path, draft: Any, seed: int) -> None:
    """The draft, with one token more, the mask: it has the direction that all tokens share, so it draws what is common."""
    import torch

    from specrig.heads.pard import module as pard

    own = _model(1, LAYERS, ERROR, seed)
    own.resize_token_embeddings(VOCABULARY + 1, mean_resizing=False)
    with torch.no_grad():
        own.model.embed_tokens.weight[-1] = OVERCONFIDENCE * _embedding(seed).mean(0)
        own.lm_head.weight[-1] = 0
    pard.save(folder, own, VOCABULARY)


MAKERS: dict[str, Callable[[Path, Any, int], None]] = {
    "medusa": _medusa,
    "eagle": partial(_feature, "eagle"),
    "mtp": partial(_feature, "mtp"),
    "eagle3": partial(_streams, "eagle3"),
    "dflash": partial(_blocks, "dflash"),
    "dspark": partial(_blocks, "dspark"),
    "p_eagle": partial(_streams, "p_eagle"),
    "hydra": _hydra,
    "rest": _rest,
    "layer_skip": _layer_skip,
    "pard": _pard,
}
"""Heads that are made for this pair; others are drawn, untrained: then drafts are seldom accepted, and a test sees
less.
"""
