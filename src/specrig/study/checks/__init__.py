"""The checks that a study must pass before anything runs, one concern a file.

`study.load` runs all of them and reports every problem at once.
"""
