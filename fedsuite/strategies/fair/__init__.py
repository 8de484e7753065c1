"""Results that are alike over clients."""
