"""Wrong samplers, to try the audit on: each is the real code with a line of it changed, planted where the real loop
calls it.

`python tests/unit/flaws.py` tries all of them and prints a line for each (docs/audit.md sums them up); with
2/4 the second quarter, with 1/1 and names of METHODS those alone.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specrig.audit.exact import ExactTest, exact_test
from specrig.cell import Cell
from specrig.decoding.drafters import registry
from specrig.models.pair import ModelError

STEPS = (256, 512, 1_024, 2_048, 4_096, 20_480)
"""Samples that a flaw is looked for with; the last is the default of a study."""
LEVEL = 1e-5
"""Far below the level of any study: what this few samples show at it, the audit's own number shows all the more."""
METHODS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "draft_model": ("draft_model", 4, {}),
    "draft_model, block": ("draft_model", 4, {"acceptance": "block"}),
    "adaptive_k": ("adaptive_k", 8, {}),
    "eagle": ("eagle", 4, {}),
    "mtp": ("mtp", 4, {}),
    "eagle3": ("eagle3", 4, {}),
    "p_eagle": ("p_eagle", 4, {}),
    "dflash": ("dflash", 4, {}),
    "dspark": ("dspark", 4, {"confidence_threshold": 0.4}),
    "medusa_draft": ("medusa_draft", 4, {}),
    "tree": ("tree", 4, {"branching": (2, 2, 1, 1)}),
    "medusa": ("medusa", 4, {"nodes": 12}),
    "medusa_draft, tree": ("medusa_draft", 4, {"tree": (2, 2, 1)}),
    "eagle2": ("eagle2", 5, {"nodes": 12, "top_k": 4}),
    "eagle3, tree": ("eagle3", 4, {"nodes": 12, "top_k": 4}),
    "ngram": ("ngram", 4, {}),
    "ngram, block": ("ngram", 4, {"acceptance": "block"}),
    "suffix": ("suffix", 8, {}),
    "suffix, tree": ("suffix", 8, {"tree": True, "max_spec_factor": 4.0}),
    "lookahead": ("lookahead", 3, {"window": 5, "guesses": 5}),
    "token_recycling": ("token_recycling", 5, {"nodes": 12}),
    "layer_skip": ("layer_skip", 4, {}),
    "pard": ("pard", 4, {}),
    "tree, traversal": ("tree", 4, {"branching": (2, 2, 1, 1), "acceptance": "traversal"}),
    "medusa, traversal": ("medusa", 4, {"nodes": 12, "acceptance": "traversal"}),
    "hydra, traversal": ("hydra", 4, {"nodes": 12, "acceptance": "traversal"}),
    "hydra": ("hydra", 4, {"nodes": 12}),
    "rest": ("rest", 2, {"nodes": 12, "longest": 2, "shortest": 1}),
    "suffix_blend": ("suffix_blend", 4, {"nodes": 12}),
    "draft_model, intersection": ("draft_model", 4, {"vocabularies": "intersection"}),
    "draft_model, strings": ("draft_model", 4, {"vocabularies": "strings"}),
    "suffix_hybrid, intersection": ("suffix_hybrid", 4, {"vocabularies": "intersection", "draft_k": 4}),
    "tree, intersection": ("tree", 4, {"branching": (2, 2, 1, 1), "vocabularies": "intersection"}),
    "tree, strings": ("tree", 4, {"branching": (2, 2, 1, 1), "vocabularies": "strings"}),
}
"""Label -> method, k and options: those of the default study, and the variants that it leaves out."""


def cell(label: str, temperature: float = 1.0) -> Cell:
    """The toy pair's cell of a labelled method."""
    method, k, kwargs = METHODS.get(label, (label, 0, {}))
    options = registry()[method].Options.model_validate(kwargs).model_dump(mode="json")
    return Cell(
        engine="native", pair="toy_pair", method=method, k=k, task="exact", temperature=temperature, options=options
    )


DRAWN_CHAINS = (
    "draft_model",
    "adaptive_k",
    "eagle",
    "mtp",
    "eagle3",
    "p_eagle",
    "dflash",
    "medusa_draft",
    "layer_skip",
    "pard",
    "draft_model, intersection",
)
DRAWN_TREES = ("tree", "medusa", "medusa_draft, tree", "eagle2", "eagle3, tree", "hydra", "tree, intersection")
COPIED_CHAINS = ("ngram", "suffix", "draft_model, strings")
COPIED_TREES = ("suffix, tree", "lookahead", "token_recycling", "rest", "suffix_blend", "tree, strings")
BOTH_HAVE = ("draft_model, intersection", "suffix_hybrid, intersection", "tree, intersection")
TRAVERSALS = ("tree, traversal", "medusa, traversal", "hydra, traversal")
BLOCKS = ("draft_model, block", "ngram, block")
CHAINS, TREES = DRAWN_CHAINS + COPIED_CHAINS, DRAWN_TREES + COPIED_TREES
DRAWN = (*DRAWN_CHAINS, "draft_model, block", *DRAWN_TREES, *TRAVERSALS)

Edit = tuple[str, str, str]
"""Module and function below `specrig`, its line as it is, and as it would be wrong."""


@dataclass(frozen=True)
class Flaw:
    """edits: what makes the sampler wrong; methods: those whose samples it can touch."""

    name: str
    edits: tuple[Edit, ...]
    methods: tuple[str, ...]
    temperature: float = 1.0


CHAIN, WALK, RESIDUAL = (
    "decoding.verify:_chain_sampled",
    "decoding.verify_tree:_walked",
    "decoding.verify_tree:residual",
)
WEIGHTS = "decoding.verify_traversal:traversal_weights"
TRANSLATED = "decoding.vocabularies:Translated.propose"
SPACELESS = "self.tokens.target.ids.get(self.tokens.target.bytes.get(token, b'').strip(), token)"
TYPICAL = "__import__('specrig.decoding.verify_tree', fromlist=['_']).typical_acceptance(0.09, 0.3)"
FIRST = "drafter.__dict__.setdefault('first', draft.probs)"
LEFT = "left = torch.where((counts < offered) & (left.sum(-1, keepdim=True) > 0), left, rest)"
FLAWS = [
    Flaw(
        "a rejected sibling stays in q",
        ((WALK, "left = None if left is None else residual(left, None, token)", "pass"),),
        DRAWN_TREES,
    ),
    Flaw("correction drawn from p, not from the residual", ((CHAIN, LEFT, "left = rest"),), (*CHAINS, *BLOCKS)),
    Flaw("after a rejected sibling p stays as it is", ((WALK, "rest = residual(rest, left, token)", "pass"),), TREES),
    Flaw("residual |p - q|", ((CHAIN, ".clamp_(min=0.0)", ".abs_()"),), (*DRAWN_CHAINS, "draft_model, block")),
    Flaw("residual |p - q|, trees", ((RESIDUAL, ".clamp_(min=0.0)", ".abs_()"),), DRAWN_TREES),
    Flaw("residual not renormalised", ((RESIDUAL, "rest / total", "rest"),), DRAWN_TREES),
    Flaw(
        "bonus token from q",
        ((CHAIN, LEFT, f"{LEFT}\n    left = torch.where(counts < offered, left, draft.probs[:, -1])"),),
        (*DRAWN_CHAINS, "draft_model, block"),
    ),
    Flaw(
        "bonus token from the position before",
        (
            (
                CHAIN,
                "p.gather(1, counts.unsqueeze",
                "p.gather(1, (counts - (counts == offered).long()).clamp(min=0).unsqueeze",
            ),
        ),
        (*CHAINS, *BLOCKS),
    ),
    Flaw(
        "bonus token from q, trees",
        (
            (
                WALK,
                "int(draw(rest,",
                "int(draw(rest if siblings or not path else draft.probs[index, path[-2] + 1 if len(path) > 1 else 0],",
            ),
        ),
        DRAWN_TREES,
    ),
    Flaw(
        "bonus token from the node before",
        ((WALK, "p[index, node + 1]", "p[index, node + 1 if node in row.children or node < 0 else node]"),),
        TREES,
    ),
    Flaw("accepted with min(1, q/p)", ((CHAIN, "* q_token < p_token", "* p_token < q_token"),), CHAINS),
    Flaw("accepted with min(1, q/p), trees", ((WALK, "* q < float(rest[token])", "* float(rest[token]) < q"),), TREES),
    Flaw(
        "block: each token judged by itself",
        ((CHAIN, "uniforms[:, :n] < acceptance", "uniforms[:, :n] * q_token < p_token"),),
        BLOCKS,
    ),
    Flaw("block: no running product", (("decoding.verify:_block", "(weights[-1] * ratio)", "ratio"),), BLOCKS),
    Flaw(
        "correction with the uniform of the rejection",
        (
            (
                CHAIN,
                "uniforms.gather(1, offered)",
                "uniforms.gather(1, torch.where(counts < offered, rejected, offered))",
            ),
        ),
        (*CHAINS, *BLOCKS),
    ),
    Flaw(
        "correction with the uniform of the rejection, trees",
        ((WALK, "uniforms[index, counts[index]]", "uniforms[index, siblings[-1] if siblings else counts[index]]"),),
        TREES,
    ),
    Flaw(
        "siblings judged with one uniform",
        ((WALK, "host_uniforms[index][child] * q", "host_uniforms[index][siblings[0]] * q"),),
        TREES,
    ),
    Flaw(
        "siblings judged in reverse order",
        ((WALK, "for child in siblings:", "for child in reversed(siblings):"),),
        DRAWN_TREES,
    ),
    Flaw(
        "temperature in the draws, not in q",
        (
            ("decoding.sampling:Sampler.next", "[:, 0]), probs", "[:, 0]), torch.softmax(logits.float(), -1)"),
            (
                "decoding.sampling:Sampler.candidates",
                "torch.stack(tokens, -1), probs",
                "torch.stack(tokens, -1), torch.softmax(logits.float(), -1)",
            ),
        ),
        DRAWN,
        temperature=0.7,
    ),
    Flaw(
        "accepted tokens missing from the target's cache",
        (("decoding.loop:generate", "[0, *(node + 1 for node in path)] if on", "[0] if on"),),
        tuple(METHODS),
    ),
    Flaw(
        "a tree's first nodes kept in the cache, not its path",
        (("runtime.cache:KeyValueCache.keep", "for node in kept]", "for node in range(len(kept))]"),),
        TREES,
    ),
    Flaw(
        "later rounds judged with the first round's q",
        (
            (
                "decoding.loop:generate",
                "drafter.begin(context,",
                "drafter.__dict__.pop('first', None); drafter.begin(context,",
            ),
            (
                "decoding.loop:generate",
                "_limit(draft, depths)",
                f"_limit(draft, depths); draft.probs = {FIRST} if {FIRST}.shape == draft.probs.shape else draft.probs",
            ),
        ),
        tuple(method for method in DRAWN if method != "adaptive_k"),  # there the next round's draft has another length
    ),
    Flaw(
        "typical acceptance passed off as exact",
        (("decoding.loop:generate", "drafter.criterion()", TYPICAL),),
        tuple(METHODS),
    ),
    Flaw(
        "a row whose draft is shorter than its neighbours' ends with a correction",
        ((CHAIN, "(counts < offered) &", "(counts < n) &"),),
        ("adaptive_k", "ngram", "suffix"),
    ),
    Flaw(
        "a row ends with the uniform of its neighbour's length",
        ((WALK, "uniforms[index, counts[index]]", "uniforms[index, counts[index - 1]]"),),
        COPIED_TREES,
    ),
    Flaw(
        "a chain is cut by the tokens that were drawn",
        (
            (
                "decoding.drafters.dspark:DSpark.shorten",
                "self.head.confidences(context.tokens, draft.tokens)",
                "draft.probs.gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)",
            ),
        ),
        ("dspark",),
    ),
    Flaw("traversal: no product along the path", ((WEIGHTS, "here = own * at", "here = at"),), TRAVERSALS),
    Flaw(
        "traversal: a rejected child takes nothing of its parent's weight",
        ((WEIGHTS, "torch.where(kept, after, own)[:, 0]", "own[:, 0]"),),
        TRAVERSALS,
    ),
    Flaw(
        "traversal: after a rejected child p stays as it is",
        ((WEIGHTS, "torch.where(kept & (total > 0), short / total, at)", "at"),),
        TRAVERSALS,
    ),
    Flaw(
        "traversal: a rejected sibling stays in q",
        ((WEIGHTS, "torch.where(drawn.unsqueeze(1), residual(q, None, token[:, 0]), q)", "q"),),
        TRAVERSALS,
    ),
    Flaw(
        "another vocabulary: a wrong map of the tokens",
        ((TRANSLATED, "tokens=common[draft.tokens]", "tokens=common.roll(1)[draft.tokens]"),),
        BOTH_HAVE,
    ),
    Flaw(
        "another vocabulary: the space in front of a token is lost",
        (
            (
                TRANSLATED,
                "tokens=common[draft.tokens]",
                f"tokens=common[draft.tokens].apply_(lambda token: {SPACELESS})",
            ),
        ),
        BOTH_HAVE,
    ),
    Flaw(
        "another vocabulary: probabilities not scaled to sum 1 over what both have",
        ((TRANSLATED, "vocabulary=common", "vocabulary=common, probs=0.8 * draft.probs"),),
        BOTH_HAVE,
    ),
]
FAINT = {
    (
        "a row ends with the uniform of its neighbour's length",
        "token_recycling",
    ),  # the trees of two rows seldom differ in size
    ("siblings judged with one uniform", "medusa"),
    # A text that is accepted to its end is rare on this pair.
    ("bonus token from the position before", "draft_model, strings"),
    ("bonus token from the node before", "tree, strings"),
}
"""What the audit does not see at its own number of samples (docs/audit.md)."""
PAIRS = [(flaw, method) for flaw in FLAWS for method in flaw.methods]
"""All of them: what this file tries when it is run."""


QUICKLY_SEEN = {
    "a rejected sibling stays in q": "hydra",
    "correction drawn from p, not from the residual": "p_eagle",
    "residual |p - q|": "eagle3",
    "bonus token from q": "adaptive_k",
    "bonus token from the position before": "adaptive_k",
    "bonus token from q, trees": "tree",
    "bonus token from the node before": "tree",
    "accepted with min(1, q/p)": "dflash",
    "accepted with min(1, q/p), trees": "rest",
    "correction with the uniform of the rejection": "draft_model",
    "correction with the uniform of the rejection, trees": "lookahead",
    "siblings judged with one uniform": "token_recycling",
    "siblings judged in reverse order": "hydra",
    "temperature in the draws, not in q": "layer_skip",
    "accepted tokens missing from the target's cache": "eagle",
    "later rounds judged with the first round's q": "medusa_draft",
    "a row whose draft is shorter than its neighbours' ends with a correction": "suffix",
    "a row ends with the uniform of its neighbour's length": "lookahead",
    "another vocabulary: probabilities not scaled to sum 1 over what both have": "draft_model, intersection",
}
"""Flaw -> a method with which it shows in few samples, where others take many more; of such, one of each kind."""


SLOWLY_SEEN = {
    "bonus token from q, trees": 1_024,
    "bonus token from the node before": 2_048,
    "accepted tokens missing from the target's cache": 2_048,
    "a row whose draft is shorter than its neighbours' ends with a correction": 1_024,
    "a row ends with the uniform of its neighbour's length": 4_096,
}
"""Flaw -> samples below which it does not show with that method."""


def chosen() -> list[tuple[Flaw, str]]:
    """Every flaw once and every method at least once, no faint pair: what the tests try each time."""
    found = []
    for number, flaw in enumerate(FLAWS):
        seen = [method for method in flaw.methods if (flaw.name, method) not in FAINT]
        found.append((flaw, QUICKLY_SEEN.get(flaw.name, seen[number % len(seen)])))
    missing = set(METHODS) - {method for _, method in found}
    # The second and the third flaw show in the fewest samples with any chain and any tree.
    return found + [next((flaw, method) for flaw in FLAWS[1:] if method in flaw.methods) for method in sorted(missing)]


@contextmanager
def planted(flaw: Flaw) -> Iterator[None]:
    """The flaw is in the loop while this lasts. Fails where the line that it changes is not there, or not once."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for place, right, wrong in flaw.edits:
            name, path = place.split(":")
            module = importlib.import_module(f"specrig.{name}")
            *owners, attribute = path.split(".")
            owner = getattr(module, owners[0]) if owners else module
            was = getattr(owner, attribute)
            source = getattr(was, "planted", None) or textwrap.dedent(inspect.getsource(was))
            assert source.count(right) == 1, f"{place} holds {right!r} {source.count(right)} times"
            source = source.replace(right, wrong)
            made: dict[str, Any] = {}
            exec(compile(source, f"<{flaw.name}>", "exec"), vars(module), made)
            made[attribute].planted = source
            replaced.append((owner, attribute, was))
            setattr(owner, attribute, made[attribute])
        yield
    finally:
        for owner, attribute, was in reversed(replaced):
            setattr(owner, attribute, was)


def tried(
    flaw: Flaw, label: str, folder: Path, samples: Sequence[int] = STEPS, level: float = LEVEL
) -> ExactTest | None:
    """The audit of a method with a flaw planted: of few samples first, of more where those do not show it.

    None: the check of a model when it is loaded (`runtime.agreement`) refuses to decode with the flaw at all.
    """
    requested = cell(label, flaw.temperature)
    with planted(flaw):
        for count in samples:
            try:
                test = exact_test("native", requested, folder, count)
            except ModelError as refused:
                assert "its logits are not its own" in str(refused)
                return None
            if test.p_value < level:
                break
    return test


if __name__ == "__main__":
    part, parts = map(int, sys.argv[1].split("/")) if len(sys.argv) > 1 else (1, 1)
    chosen = [(flaw, label) for flaw, label in PAIRS if label in (sys.argv[2:] or METHODS)]
    with TemporaryDirectory() as made:
        for flaw, label in chosen[part - 1 :: parts]:
            test = tried(flaw, label, Path(made))
            found = (
                f"{test.samples} | {test.p_value:.1e} | {test.worst.about}"
                if test
                else "refused when the model is loaded"
            )
            print(f"{flaw.name} | {label} | {found}", flush=True)
