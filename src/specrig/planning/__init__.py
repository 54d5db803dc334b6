"""What a study will take and what to do: the plan, its cost, advice, pins. No torch here."""
