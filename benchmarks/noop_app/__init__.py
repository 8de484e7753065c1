"""A Flower app whose clients import torch and add 1 to what they got: the floor."""
