"""A draft model that drafts in one pass: it reads the context and k - 1 mask tokens (PARD, 2504.18583, section 3).

Its outputs at the last token of the context and at each mask are those of the k drafted tokens, each drawn without
knowing the others.

Checkpoint (what vLLM loads as `draft_model` with `parallel_drafting`): a model folder of transformers whose config.json
has `pard_token`, the id of the mask token in the draft's embedding. Ours also note under `specrig` the
`target_vocabulary`, and with a reduced vocabulary the `drafted` token ids.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specrig.heads.checkpoint import reading, write
from specrig.heads.contents import pard_fault
from specrig.heads.layer import mask_token
from specrig.heads.measured import measured
from specrig.runtime.model import CachedModel
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError


def save(folder: Path, model: Any, mask: int, **noted: Any) -> None:
    """Write config.json and model.safetensors (fp32) of the `…ForCausalLM` `model`. noted: what `specrig` says there."""
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype, config.pard_token = [type(model).__name__], "float32", mask
    config.specrig = noted
    # Tied weights once, under their first name.
    tensors = {tensor.data_ptr(): (name, tensor) for name, tensor in reversed(model.state_dict().items())}
    named = dict(reversed(tensors.values()))
    write(folder, config, named, {name: tuple(tensor.shape) for name, tensor in named.items()})


def initialise(folder: Path, model: Any, seed: int) -> None:
    """Write an untrained draft model with this configuration."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(model.get_text_config(decoder=True))
    save(folder, made, mask_token(made.config))


def load(folder: Path, target: CachedModel) -> CachedModel:
    """The draft model in the target's precision, on its device; `config.pard_token` is its mask token.

    Raises DecodingError where the folder holds none, or one that was trained for another vocabulary.
    """
    if (fault := pard_fault(folder)) is not None:
        raise DecodingError(fault)
    with reading(folder, "PARD draft"):
        config = AutoConfig.from_pretrained(folder)
        mask = config.pard_token
        trained = measured(config).get("target_vocabulary", target.config.vocab_size)
        made, loading = AutoModelForCausalLM.from_pretrained(
            folder, dtype=target.dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    wrong = [f"{name} is missing" for name in sorted(loading["missing_keys"])]
    wrong += [f"{name} is {list(there)} instead of {list(own)}" for name, there, own in loading["mismatched_keys"]]
    if wrong:
        raise DecodingError(f"{folder}: not the draft model of its config.json: {'; '.join(wrong)}")
    if trained != target.config.vocab_size:
        raise DecodingError(
            f"{folder}: trained for a target of {trained} tokens, this one has {target.config.vocab_size}"
        )
    model = cached_model(made.to(target.device), device=target.device, drafts=True)
    model.config.pard_token = mask
    model.vocab_size = target.vocab_size  # the tokenizers agree, the embeddings may have more or fewer rows
    return model
