"""The folder of a run: writing it, reading it back, comparing runs, drawing them."""
