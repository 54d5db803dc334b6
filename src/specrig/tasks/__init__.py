"""Tasks: where prompts come from. No torch here."""

from specrig.tasks.prompts import Prompt, PromptError, read_prompts

__all__ = ["Prompt", "PromptError", "read_prompts"]
