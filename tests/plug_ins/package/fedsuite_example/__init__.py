"""A method, a network and a data set for fedsuite."""
