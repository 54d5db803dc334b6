"""The embedded corpus: text and prompts from what is installed. No torch here."""
