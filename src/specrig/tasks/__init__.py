"""Tasks: where prompts come from and how outputs are scored. No torch here."""

from specrig.tasks.prompts import Prompt, read_prompts
from specrig.tasks.sources import PromptError

__all__ = ["Prompt", "PromptError", "read_prompts"]
