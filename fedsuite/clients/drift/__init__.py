"""Local training kept from drifting apart."""
