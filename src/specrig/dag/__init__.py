"""The workflow's typed half: what the rules in `workflow/` need of a study. Nothing here imports Snakemake or torch."""
