"""Planning before anything runs: a study's plan and cost, advice for a pair, revisions of models. No torch here."""
