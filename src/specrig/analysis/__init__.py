"""Functions that compute results from records: acceptance, speedup, cost model, repetition, the table of cells.

They neither load models (no torch) nor read or write files.
"""
