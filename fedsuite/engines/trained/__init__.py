"""A run's model in its user's hands: clients' models, predictions, and files of others."""
