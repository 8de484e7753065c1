"""Better models for clients that give more."""
