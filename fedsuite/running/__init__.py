"""What a run's server and workers do."""
