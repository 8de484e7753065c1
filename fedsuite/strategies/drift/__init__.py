"""Local training that is kept from drifting apart."""
