"""Server and workers of a run."""
