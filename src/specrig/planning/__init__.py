"""Planning before anything runs: a study's plan and its cost, advice for a pair, and revisions of models. No torch
here.
"""
