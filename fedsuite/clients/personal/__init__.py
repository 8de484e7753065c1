"""Models, or parts of them, that are each client's own."""
