"""What Flower, Ray and torch do not do yet, and the one place of their private names.

Each file says in which version it was seen, and the condition for its removal.
"""
