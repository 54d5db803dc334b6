"""Compare two finished studies: which cells changed, by how much, and what else differs that could explain it."""
