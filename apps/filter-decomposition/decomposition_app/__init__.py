"""Filter decomposition around FedAvg on handwritten digits."""
