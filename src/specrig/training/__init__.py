"""Training of the embedded pair: corpus, tokenizer, target, draft. `recipe` and `corpus` import without torch."""
