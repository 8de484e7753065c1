"""FedAL on handwritten digits."""
