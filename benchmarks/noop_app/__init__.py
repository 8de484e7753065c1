"""A Flower app whose clients import torch and send back what they got: the floor."""
