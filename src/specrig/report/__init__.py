"""What a finished study holds: its records, every table and every sentence, computed once."""
