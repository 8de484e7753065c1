"""FedAKD on handwritten digits."""
