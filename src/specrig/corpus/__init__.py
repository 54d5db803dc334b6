"""The embedded corpus: training text and prompts made from installed packages. No torch here."""
