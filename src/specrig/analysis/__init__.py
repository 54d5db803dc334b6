"""Pure functions of records: acceptance, speedup, cost model, repetition, and the table of cells. No torch, no files."""
