"""What Flower does not do yet: each with its version, and when it can go."""
