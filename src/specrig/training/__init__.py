"""Training of drafts and heads for any target. `recipe` imports without torch."""
