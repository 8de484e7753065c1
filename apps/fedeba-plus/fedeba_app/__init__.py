"""FedEBA+ on handwritten digits."""
