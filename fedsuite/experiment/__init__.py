"""An experiment: its keys, their checks, and what it is made of."""
