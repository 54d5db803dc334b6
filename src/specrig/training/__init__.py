"""Training of the embedded pair: tokenizer, target, draft. `recipe` imports without torch."""
