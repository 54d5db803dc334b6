"""The MTP head: EAGLE's, with norms of what it reads and of what it predicts (DeepSeek-V3, 2412.19437, section 2.2).

`fc` joins the normed embedding of token t + 1 and the normed hidden state of t. A whole decoder layer of the target's
sizes and the head's final norm follow, and the target's LM head reads the distribution of token t + 2 off that state,
which also stands for the target's in the next step. Cache and rounds are EAGLE's (`heads.eagle`).

Checkpoint of a head that was trained here: EAGLE's, with `embedding_norm.weight`, `feature_norm.weight`,
`layers.0.input_layernorm.weight` and `norm.weight` `[D]`. Or the folder of the target itself, whose checkpoint carries
such layers in the architecture's own form (`heads.layouts.MTP_LAYERS`): then transformers computes the first of them, as a model
of one layer. transformers leaves these tensors out when it loads the target.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, ClassVar

from safetensors import safe_open
from torch import Tensor

from specrig.heads import contents
from specrig.heads.checkpoint import reading
from specrig.heads.eagle import module as eagle
from specrig.heads.eagle.module import EagleHead, EagleLayers
from specrig.heads.layouts import MTP_LAYERS, carried
from specrig.runtime.device import Positions
from specrig.runtime.linear import Linear
from specrig.runtime.model import CachedModel, Step
from specrig.runtime.transformers_model import TransformersModel
from specrig.runtime.types import DecodingError


class MtpHead(EagleHead):
    """A head that was trained here."""

    kind: ClassVar[str] = "mtp"
    title: ClassVar[str] = "MTP head"


class CarriedHead(MtpHead):
    """The first MTP layer of the target's own checkpoint."""

    replays = False

    def __init__(self, body: TransformersModel, weights: dict[str, Tensor], target: CachedModel) -> None:
        """body: a model of that layer and of the norm behind it, with the target's embedding and LM head. weights: of `fc`
        and of the norms before it.
        """
        CachedModel.__init__(self, body.config, device=target.device, dtype=target.dtype, layout=body.layout)
        self.body, self.target = body, target
        self.embedding = body.model.get_input_embeddings().weight
        self.module = EagleLayers(Linear(weights["fc.weight"]), (), self.config.rms_norm_eps)
        self.module.embedding_norm = weights["embedding_norm.weight"]
        self.module.feature_norm = weights["feature_norm.weight"]

    def _grown(self, slots: int) -> None:
        """The layer has its own tables of positions."""

    def _run(
        self, tokens: Tensor, step: Step, features: Tensor | None, last: Positions | None
    ) -> tuple[Tensor, Tensor]:
        self.body.cache = self.cache
        return self.body._run(tokens, step, self.entry(tokens, features)[0], last)


def load(folder: Path, target: CachedModel) -> MtpHead:
    """The head in a folder, or the one that the target's own folder carries. Raises DecodingError where it holds none of
    this target.
    """
    folder = Path(folder)
    config = contents.read_config(folder, contents.TITLES["mtp"])
    if not carried(config):
        return MtpHead.load(folder, target)
    with reading(folder, MtpHead.title):
        if wrong := contents.carried_fault(config, target.config.to_dict()):
            raise DecodingError(f"{folder}: {wrong}")
        kind = str(target.config.model_type)
        if kind not in MTP_LAYERS or not isinstance(target, TransformersModel):
            raise DecodingError(
                f"{folder}: MTP layers of {kind} are not read here, those of {', '.join(MTP_LAYERS)} are; train a head instead "
                "(`mtp=trained`)"
            )
        return CarriedHead(*_carried(folder, target), target)


def _carried(folder: Path, target: TransformersModel) -> tuple[TransformersModel, dict[str, Tensor]]:
    """The first MTP layer as a model of its own, and what makes that model's input, for `CarriedHead`."""
    patterns = [
        (re.compile(pattern.replace("{n}", str(target.layers))), ours)
        for pattern, ours in MTP_LAYERS[target.config.model_type]
    ]
    tensors: dict[str, Tensor] = {}
    for file in contents.files(folder, MtpHead.title):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                for pattern, ours in patterns:
                    if pattern.match(name):
                        tensors[pattern.sub(ours, name)] = opened.get_tensor(name)
    inputs = ("fc.weight", "embedding_norm.weight", "feature_norm.weight")
    weights = {name: tensors.pop(name).to(target.device, target.dtype) for name in inputs if name in tensors}
    ends = target.model.get_input_embeddings(), target.model.get_output_embeddings()
    tensors |= {"model.embed_tokens.weight": ends[0].weight.detach(), "lm_head.weight": ends[1].weight.detach()}
    model, found = type(target.model).from_pretrained(
        None, config=_of_one_layer(target.config), state_dict=tensors, dtype=target.dtype, output_loading_info=True
    )
    missing = {*inputs, *found["missing_keys"]} - weights.keys()
    if wrong := sorted(missing) or sorted(found["unexpected_keys"]):
        what = "lacks" if missing else "has, and nothing reads,"
        raise DecodingError(f"{folder}: its MTP layer {what} {wrong[0]}; take all of its weights from one place")
    model.set_input_embeddings(ends[0])
    model.set_output_embeddings(ends[1])
    layout = [target.layout[-1]._replace(device=None)]
    model = model.to(target.device).eval()
    return TransformersModel(model, device=target.device, dtype=target.dtype, layout=layout), weights


def _of_one_layer(config: Any) -> Any:
    """The configuration of a model of one layer of the kind that the last one is."""
    made = copy.deepcopy(config)
    for key in ("layer_types", "mlp_layer_types"):
        if getattr(made, key, None):
            setattr(made, key, getattr(made, key)[-1:])
    made.num_hidden_layers = 1
    if hasattr(made, "first_k_dense_replace"):
        made.first_k_dense_replace = 0
    return made


def head_config(target: Any, drafted: Tensor | None = None) -> Any:
    """The configuration of a head for a target with this configuration; see `heads.eagle.module.head_config`."""
    config = eagle.head_config(target, drafted)
    config.architectures = ["MultiTokenPredictionLlama"]
    return config


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write an untrained head for a target with this configuration."""
    config = head_config(target)
    save(folder, config, random_tensors(config, seed, deviation=0.15))


save, random_tensors = MtpHead.save, MtpHead.random_tensors
