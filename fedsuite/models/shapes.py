"""Checks of input shapes."""

from fedsuite.core.errors import ConfigError


def image_shape(name: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (channels, height, width), or raise ConfigError if inputs are no images."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"model {name} needs images (channels, height, width), got inputs of shape "
            f"{input_shape}: choose another model, such as mlp"
        )
    channels, height, width = input_shape
    return channels, height, width
