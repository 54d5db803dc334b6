"""How a model runs here: forward passes, key/value caches, kernels and compiled code. It knows nothing of drafts."""
