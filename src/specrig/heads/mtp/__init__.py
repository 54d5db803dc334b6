"""Multi-token prediction (DeepSeek-V3, 2412.19437, section 2.2): one layer more of the target, on its last hidden state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from specrig.heads.base import Sizes
from specrig.heads.eagle import UnrolledHead

CARRIED = "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"
"""Keys of a model's config.json that count the MTP layers which its checkpoint carries."""
_NEXTN = (
    (r"^model\.layers\.{n}\.enorm\.", "embedding_norm."),
    (r"^model\.layers\.{n}\.hnorm\.", "feature_norm."),
    (r"^model\.layers\.{n}\.eh_proj\.", "fc."),
    (r"^model\.layers\.{n}\.shared_head\.norm\.", "model.norm."),
    (r"^model\.layers\.{n}\.(?=self_attn|mlp|input_layernorm|post_attention_layernorm)", "model.layers.0."),
)
NAMES = {"deepseek_v3": _NEXTN, "glm4_moe": _NEXTN, "glm4_moe_lite": _NEXTN}
"""Architecture -> its first MTP layer's tensors: pattern of a name, where n is the number of the model's layers -> what
stands in its place in a model of one layer.
"""


def carried(config: Mapping[str, Any]) -> int:
    """How many MTP layers the checkpoint of a model with this config.json carries."""
    text = config.get("text_config") or config
    return next((count for key in CARRIED if (count := text.get(key))), 0)


class Mtp(UnrolledHead):
    """How long the head trains, and on what text."""

    name: ClassVar[str] = "mtp"
    title: ClassVar[str] = "MTP"
    about: ClassVar[str] = "How the head of `mtp` is trained, for a target whose checkpoint carries none."

    def weights(self, sizes: Sizes) -> float:
        """Of the layer; the LM head is the target's."""
        return self.layer_weights(sizes, enters=2, reads=1)

    def _shared_output(self, sizes: Sizes) -> float:
        return float(self.drafted(sizes) * sizes.hidden)
