"""What must hold of a study before anything runs; one concern a file. `study.load` asks them all and names every problem at once."""
