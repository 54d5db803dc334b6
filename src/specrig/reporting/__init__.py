"""Tables, figures and the report, drawn from records and the files around them. No torch."""
