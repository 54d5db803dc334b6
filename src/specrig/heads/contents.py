"""What a head's folder holds, from its config.json and the headers of its weights alone.

So a plan knows what loading will say. No torch here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specrig.heads import shapes as of
from specrig.heads.base import MASKS
from specrig.heads.layouts import LAYOUTS, PREFIX, Config, Layout, carried, renamed
from specrig.heads.pickled import tensor_shapes as pickled_shapes
from specrig.heads.shapes import Fits, Shapes
from specrig.runtime.types import DecodingError

SCALE = "_scale"
"""Behind the name of a matrix of 8 bits: its rows' scales (`runtime.eight_bits`)."""
AGAIN = "copy, fetch or train it again"

TITLES = {
    "eagle": "EAGLE head", "eagle3": "EAGLE-3 head", "p_eagle": "P-EAGLE head", "dflash": "DFlash head",
    "dspark": "DSpark head", "medusa": "Medusa heads", "hydra": "Hydra heads", "pard": "PARD draft", "rest": "REST datastore",
    "layer_skip": "list of skipped layers", "mtp": "head for multi-token prediction",
}  # fmt: skip
"""Kind of head -> what messages call its folder's content."""
SHAPES: dict[str, Callable[[Any], Shapes]] = {
    "eagle": of.eagle, "eagle3": of.eagle3, "p_eagle": of.p_eagle, "dflash": of.dflash, "dspark": of.dspark,
    "medusa": of.medusa, "hydra": of.hydra, "mtp": of.mtp,
}  # fmt: skip
"""Kind -> the tensors that a checkpoint must have."""
EXTRAS: dict[str, Callable[[Any], Shapes]] = {
    "eagle": of.eagle_extras, "eagle3": of.eagle3_extras, "p_eagle": of.eagle3_extras, "dflash": of.dflash_extras,
    "dspark": of.dflash_extras,
}  # fmt: skip
"""Kind -> the tensors that it may have besides."""
FOREIGN = (
    ("mtp", "layers for multi-token prediction (MTP)"), ("nextn", "layers for multi-token prediction (MTP)"),
    ("gemma4dspark", "a DSpark head with Gemma 4's layer"), ("k3dspark", "a DSpark head with Kimi's layer"),
    ("dflash2", "a DFlash 2 head"), ("domino", "a Domino head"), ("xpress", "an XPress head"),
    ("mlp_speculator", "an MLP speculator"), ("mlpspeculator", "an MLP speculator"), ("redrafter", "a ReDrafter head"),
    ("deepseek", "a head with DeepSeek's latent attention (MLA)"), ("cohereeagle", "a head with Cohere's layer"),
    ("eaglecohere", "a head with Cohere's layer"), ("llama4", "a head with Llama 4's layer"),
    ("minicpm", "a head with MiniCPM's layer"),
)  # fmt: skip
"""What stands in the names of a config.json -> the kind of head that it is, which no method here drafts with."""
OURS = (
    ("dspark", "dspark"), ("dflash", "dflash"), ("medusa", "medusa"), ("hydra", "hydra"), ("layer_skip", "layer_skip"),
    ("peagle", "p_eagle"), ("eagle3", "eagle3"), ("eagle", "eagle"), ("multitokenprediction", "mtp"),
)  # fmt: skip
"""Likewise -> the kind of head that a method here drafts with."""
SERVES = {"p_eagle": ("eagle3",)}
"""A kind of head that serves as another one too."""

WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "medusa_lm_head.safetensors", "pytorch_model.bin",
    "pytorch_model.bin.index.json", "medusa_lm_head.pt",
)  # fmt: skip
"""Files that a head's tensors lie in, or that name those; the first that is there."""
MASK_EMBEDDING = "mask_embedding.pt"
"""Beside some DFlash heads: what the block's masks are embedded as."""
POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Description:
    """What a head's folder holds."""

    layout: Layout
    config: dict[str, Any]
    """Ours."""
    shapes: Shapes | None
    """Of the tensors that are read, under our names; None: only torch opens their files."""

    @property
    def keys(self) -> SimpleNamespace:
        """The configuration with what a Llama or Qwen3 has where it is silent."""
        found: dict[str, Any] = {"head_dim": 128} if self.config.get("model_type") == "qwen3" else {}
        found |= {"num_hidden_layers": 1} | self.config
        if not found.get("num_key_value_heads"):
            found["num_key_value_heads"] = found.get("num_attention_heads")
        return SimpleNamespace(**found)

    def name(self, theirs: str) -> str | None:
        """Our name of a tensor; None: it is left out."""
        return renamed(self.layout, theirs)


def read_config(folder: Path, title: str) -> dict[str, Any]:
    """A head's config.json. Raises DecodingError where there is none, or nothing that could be one. title: of what the
    folder should hold.
    """
    file = folder / "config.json"
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise DecodingError(f"{folder}: no {title} there (no config.json)") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DecodingError(f"{file}: damaged, it is not JSON ({reason}); {AGAIN}") from error
    if not isinstance(found, dict):
        raise DecodingError(f"{file}: damaged, it is not an object; {AGAIN}")
    return found


def files(folder: Path, title: str) -> list[Path]:
    """The files that a head's tensors lie in. Raises DecodingError where there are none."""
    for file in WEIGHTS:
        if (folder / file).is_file():
            return _shards(folder, file) if file.endswith(".json") else [folder / file]
    named = ", ".join(file for file in WEIGHTS if not file.endswith(".json"))
    raise DecodingError(f"{folder}: no {title} there (none of the files {named}); fetch its weights")


def _shards(folder: Path, index: str) -> list[Path]:
    try:
        named = json.loads((folder / index).read_bytes())["weight_map"].values()
        found = sorted({folder / str(name) for name in named})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DecodingError(f"{folder / index}: damaged, it lists no files of weights; {AGAIN}") from error
    if missing := [path.name for path in found if not path.is_file()]:
        raise DecodingError(f"{folder}: {index} names {', '.join(missing)}, not there; fetch it")
    return found


def check_pointer(file: Path) -> None:
    """Raise DecodingError for a file of Git LFS that stands for the weights."""
    with file.open("rb") as opened:
        if opened.read(len(POINTER)) == POINTER:
            raise DecodingError(f"{file}: a pointer of Git LFS, not the weights; fetch them with `git lfs pull`")


def tensor_shapes(folder: Path, title: str) -> Shapes | None:
    """Shapes of the tensors in a folder's files, by their headers; None: only torch can tell.

    Raises DecodingError where there are none, or damaged ones.
    """
    from safetensors import SafetensorError, safe_open

    found: Shapes = {}
    for file in files(folder, title):
        check_pointer(file)
        if file.suffix != ".safetensors":
            if (pickled := pickled_shapes(file)) is None:
                return None
            found |= pickled
            continue
        try:
            with safe_open(file, framework="numpy") as opened:
                found |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise DecodingError(f"{file}: damaged ({error}); {AGAIN}") from error
    return {name: shape for name, shape in found.items() if not (name.endswith(SCALE) and name[: -len(SCALE)] in found)}


def holds(config: Config, names: Collection[str] | None) -> str | None:
    """What kind of head a folder holds: a key of `TITLES`, else a description with its article; None: nothing tells.

    names: of its tensors, as they are there; None: not known.
    """
    made = config.get("speculators_model_type")
    listed = config.get("architectures") or ()
    said = [str(part).lower() for part in (made, config.get("model_type"), *listed) if part]
    for part, kind in FOREIGN:
        if any(part in name for name in said):
            return kind
    masks = any(config.get(key) is not None for key in ("ptd_token_id", "mask_hidden")) or "mask_hidden" in (
        names or ()
    )
    if config.get("dflash_config"):
        return "dflash"
    for part, kind in OURS:
        if any(part in name for name in said):
            return "p_eagle" if kind == "eagle3" and masks else kind
    if made is not None:
        return f"a head of speculators' kind {made!r}"
    if "medusa_num_heads" in config:
        return "medusa"
    if config.get("pard_token") is not None or config.get("spd_type") == "pard":
        return "pard"
    if names is None:
        return None
    plain = {PREFIX.sub("", name) for name in names}
    if any(re.match(r"(medusa_heads?\.)?\d+\.\d+\.linear\.|blocks\.\d+\.layers\.", name) for name in plain):
        return "medusa"
    if any(name.startswith(("midlayer.", "fc_norm.")) for name in plain) or "layers.0.hidden_norm.weight" in plain:
        return "p_eagle" if masks else "eagle3"
    if plain & {"fc.weight", "fusion_fc.weight"}:
        return "eagle"
    if any(re.search(r"(^|\.)(mtp|eh_proj|enorm|hnorm)(\.|$)", name) for name in plain):
        return "layers for multi-token prediction (MTP)"
    if any(name.endswith(("adapter_model.safetensors", "lora_A.weight")) for name in plain):
        return "a LoRA adapter"
    if any(name.endswith("embed_tokens.weight") for name in plain) and any("layers." in name for name in plain):
        return "a draft model"
    return None


def wrong_kind(wanted: str, found: str) -> str | None:
    """Why a folder that holds `found` cannot serve as the kind `wanted`, and what can be done; None: it can."""
    if found == wanted or wanted in SERVES.get(found, ()):
        return None
    if found == "a draft model":
        return f"it holds a draft model of its own, no {TITLES[wanted]}: name it in the column `draft` (`draft_model`)"
    if found in TITLES:
        listed = "drafts" if found == "pard" else "heads"
        return (
            f"it holds {_article(TITLES[found])}, no {TITLES[wanted]}: name it as `{found}` in the column `heads`, and use "
            f"a method of these {listed} (`specrig methods`)"
        )
    return f"it holds {found}, no {TITLES[wanted]}: no method here drafts with it"


def _article(title: str) -> str:
    if title.endswith("heads"):
        return title
    return f"{'an' if title[0] in 'AEIOU' else 'a'} {title}"


def describe(folder: Path, wanted: str, shapes: Shapes | None = None) -> Description:
    """What the folder of a head of the kind `wanted` holds, under our names. shapes: of its tensors, where torch has
    read them; None: by their headers. Raises DecodingError where it holds no such head.
    """
    config = read_config(folder, TITLES[wanted])
    there = tensor_shapes(folder, TITLES[wanted]) if shapes is None else shapes
    found = holds(config, None if there is None else there.keys())
    if found is not None and (reason := wrong_kind(wanted, found)) is not None:
        raise DecodingError(f"{folder}: {reason}")
    if not isinstance(config.get("architectures") or [], list):
        raise DecodingError(f"{folder}/config.json: architectures are no list of names")
    try:
        # As the kind that it is: what a P-EAGLE head has besides is left out for EAGLE-3.
        kind = found if found in SERVES else wanted
        layout = next(layout for layout in LAYOUTS if layout.kind == kind and layout.applies(config))
        ours = None if there is None else _named(layout, there)
        if ours is not None and wanted == "eagle3":
            ours = {name: shape for name, shape in ours.items() if name not in MASKS}
        made = layout.keys(config, ours)
    except StopIteration:
        kind = str(config.get("speculators_model_type"))
        raise DecodingError(f"{folder}: it holds a head of speculators' kind {kind!r}, no {TITLES[wanted]}") from None
    except DecodingError as error:
        raise DecodingError(f"{folder}: {error}") from error
    return Description(layout, made, ours)


def _named(layout: Layout, shapes: Shapes) -> Shapes:
    named = {renamed(layout, name): tuple(shape) for name, shape in shapes.items()}
    if (masks := named.get("mask_hidden")) is not None:  # [3D], [1, 3D] or [1, 1, 3D]
        named["mask_hidden"] = (1, prod(masks))
    return {name: shape for name, shape in named.items() if name is not None}


def misfit(wanted: str, config: Any, shapes: Shapes | None, target: Fits) -> str | None:
    """Why a head, under our names, does not draft for the target; None: it does. shapes: None where they are not known."""
    if wrong := of.misfit(wanted, config, target):
        return wrong
    if shapes is None:
        return None
    wrong = of.faults(shapes, SHAPES[wanted](config), EXTRAS.get(wanted, lambda _: {})(config))
    return f"no {TITLES[wanted]} of this target: {wrong}" if wrong else None


def fault(found: Description, kind: str, target: Fits) -> str | None:
    """Why what a folder holds is no head of this kind for the target; None: it is one."""
    keys = found.keys
    if kind == "medusa":  # its authors' configurations leave the sizes to the model
        keys = SimpleNamespace(**{"hidden_size": target.hidden, "vocab_size": target.vocabulary} | vars(keys))
    lacking = [name for name in _NEEDED.get(kind, _LAYER) if not isinstance(getattr(keys, name, None), int)]
    if lacking:
        return None if kind == "medusa" and found.shapes is None else lacks(kind, lacking)
    return misfit(kind, keys, found.shapes, target)


def vocabulary_fault(ids: Collection[int], vocabulary: int, name: str) -> str | None:
    """Why the tokens that a head drafts, which its tensor `name` maps to these ids, are not some of a target's; None: they
    are.
    """
    if len(set(ids)) == len(ids) and min(ids) >= 0 and max(ids) < vocabulary:
        return None
    how = " (token i of the head is the target's i + d2t[i])" if name == "d2t" else ""
    return f"not a head of this target: {name} maps outside the {vocabulary} tokens or twice{how}"


def _mapped(folder: Path, found: Description) -> list[int] | None:
    """The target's ids of the tokens that a head drafts; None where its safetensors files hold no `d2t`."""
    from safetensors import safe_open

    if "d2t" not in (found.shapes or {}):
        return None
    for file in files(folder, TITLES[found.layout.kind]):
        if file.suffix != ".safetensors":
            continue  # torch's, whose tokens are known when they are loaded
        with safe_open(file, framework="numpy") as opened:
            for name in (name for name in opened.keys() if found.name(name) == "d2t"):  # noqa: SIM118
                return [index + int(offset) for index, offset in enumerate(opened.get_tensor(name))]
    return None


def head_fault(wanted: str, folder: Path, target: Config) -> str | None:
    """What loading the head in `folder` will say, as far as its config.json, its headers and its tokens tell; None: nothing.

    wanted: the kind of head. target: the target's config.json.
    """
    kind = wanted.removeprefix("draft_")
    if kind not in SHAPES:
        return CHECKS[kind](folder) if kind in CHECKS else None
    text = target.get("text_config") if isinstance(target.get("text_config"), dict) else target
    try:
        if kind == "mtp" and carried(config := read_config(folder, TITLES[kind])):
            reason = carried_fault(config, target)
            return None if reason is None else f"{folder}: {reason}"
        found = describe(folder, kind)
        reason = fault(found, kind, Fits(*(_size(text or {}, *names) for names in _SIZES)))
        if reason is None and (ids := _mapped(folder, found)) is not None:
            reason = vocabulary_fault(ids, found.keys.vocab_size, "d2t")
    except DecodingError as error:
        return str(error)
    return None if reason is None else f"{folder}: {reason}"


def carried_fault(config: Config, target: Config) -> str | None:
    """Why the MTP layers that the checkpoint of a model with this config.json carries draft for no target with the other;
    None: they do. Keys of the target that are not known count as the same.
    """
    for key in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size"):
        value, targets = config.get(key), target.get(key)
        if targets is not None and value != targets:
            return f"its MTP layers are of a model whose {key} is {value}, the target's is {targets}: name the target itself"
    return None


def pard_fault(folder: Path) -> str | None:
    """Why the config.json of a folder is not one of a PARD draft; None: it is."""
    try:
        config = read_config(folder, TITLES["pard"])
    except DecodingError as error:
        return str(error)
    text, mask = config.get("text_config") or config, config.get("pard_token")
    if type(mask) is int and 0 <= mask < (_size(text, "vocab_size") or 1 << 40):
        return None
    return (
        f"{folder}/config.json: `pard_token` is {mask}, not a token of the draft: an ordinary draft model drafts with "
        "`draft_model`; `pard` needs one that was trained to draft in one pass"
    )


CHECKS: dict[str, Callable[[Path], str | None]] = {"pard": pard_fault}
"""Of a kind whose folder is a model's."""


def lacks(kind: str, keys: Collection[str]) -> str:
    """That a configuration lacks keys of its kind."""
    return f"its config.json is not one of {_article(TITLES[kind])}: it lacks {', '.join(keys)}"


_SIZES = ("hidden_size", "n_embd", "d_model"), ("vocab_size",), ("num_hidden_layers", "n_layer", "n_layers")
_LAYER = "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"
_NEEDED = {
    "medusa": ("hidden_size", "vocab_size", "num_heads"),
    "hydra": ("hidden_size", "vocab_size", "truncated_vocab_size", "num_heads"),
}
"""Whole numbers that a configuration must have."""


def _size(config: Config, *names: str) -> int | None:
    return next((found for name in names if isinstance(found := config.get(name), int)), None)
