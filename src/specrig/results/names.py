"""The names of the tables and figures that are files of their own. No pandas here: the workflow reads them too."""

TABLES = (
    "cells",
    "speedup",
    "acceptance",
    "engines",
    "reproduction",
    "optimal_k",
    "simulated",
    "order",
    "order_changes",
)
"""The tables that are files of their own, as CSV, Markdown and LaTeX."""
FIGURES = {
    "k_sweep": "Acceptance rate and decoding speed against k, the number of tokens drafted a round.",
    "heatmap": "Speedup over autoregressive decoding by method and task, at each method's best k (chosen on the same prompts).",
    "speedup_bars": "Speedup over autoregressive decoding with 95 % intervals, at each method's best k (chosen on the same prompts).",
    "predicted": "Measured speedup against the speedup predicted from acceptance and the cost of bare passes.",
    "emitted_lengths": "How many tokens a target pass emits, at each method's best k.",
    "engines": "The same cells in each engine, each method at the k that suits the first engine best, with 95 % intervals.",
    "batching": "Throughput against batch size: where speculation stops paying.",
    "latency": "Speedup against the latency that is added to each round trip between draft and target.",
    "reported": "Reported speedups against measured ones, or those that acceptance and a roofline predict; shaded: consistent with theory.",
    "order": "The order of methods by speed, as reported (left) and as measured (right), with Kendall's τ. Methods that changed places are drawn in full colour.",
    "training": "Training and held-out loss against wall time, of every model the study trained; a head's is the loss of its own method, so panels do not compare.",
}
"""Name of a figure -> its caption."""

RENAMED_COLUMNS = {f"crossfit{end}": f"cross_fitted{end}" for end in ("", "_low", "_high", "_ks")}
"""Columns of tables that older versions wrote -> their present names."""
