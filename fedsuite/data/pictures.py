"""Encoded pictures as arrays of 8 bits, whatever mode they were saved in.

Pictures come from elsewhere. So the formats that may be opened are named (Pillow would hand
others to programs of the machine), the size is known before a pixel is decoded, and what
has no range of its own is refused by the name of its mode.

16 bits are divided by 257, which takes the largest value to 255. Colour becomes grey by
its luminance (ITU-R 601), grey becomes colour in three equal channels, and a picture that
a camera marked as turned is turned, at every site alike.
"""

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import DataError, one_line

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Formats that a picture may have, by Pillow's names."""

MOST_PIXELS = 1 << 26
"""Pixels of the largest picture that is made smaller: 8192 by 8192."""

_BITS, _MEANING, _WHITE_IS_LARGEST = 258, 262, 1
"""Tags of TIFF with bits of a sample and meaning of its values, and the usual meaning."""


def decode(
    encoded: Any, channels: int, height: int, width: int, *, resize: bool
) -> npt.NDArray[np.uint8]:
    """Return a picture as ``[channels, height, width]``, with 1 or 3 channels.

    Parameters
    ----------
    encoded
        Bytes of the file.
    channels, height, width
        Shape of the result.
    resize
        Whether a picture of another size is made to fit, or refused.

    Raises
    ------
    DataError
        If the bytes are no picture of :data:`FORMATS`, or hold values without a range.
    """
    from PIL import Image, ImageOps

    most = MOST_PIXELS if resize else height * width
    wanted = f"at most {MOST_PIXELS} pixels" if resize else f"{width}x{height}"
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as opened:
            if opened.width * opened.height > most:
                raise _wrong_size(opened, wanted)
            ImageOps.exif_transpose(opened, in_place=True)
            image = _of_8_bits(opened).convert("L" if channels == 1 else "RGB")
    except DataError:
        raise
    except Exception as error:
        # What decoders raise of broken files is not to be foreseen.
        raise DataError(
            f"not a readable image ({one_line(error)}): give {', '.join(FORMATS)}"
        ) from error
    if image.size != (width, height):
        if not resize:
            raise _wrong_size(image, wanted)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _wrong_size(image: Any, wanted: str) -> DataError:
    return DataError(f"image of {image.width}x{image.height}, not {wanted}: resize it")


def _of_8_bits(image: Any) -> Any:
    """Return a picture with values of 0 to 255 and without an alpha channel."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        if "transparency" in image.info or not _is_full_range(image):
            raise DataError(
                f"mode {image.mode}: the range of its values is not known: save it with 8 "
                "bits a channel"
            )
        wide = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if "transparency" in image.info or image.mode in ("LA", "PA", "La", "RGBA", "RGBa"):
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema()[0] < 255:
            raise DataError(
                f"mode {image.mode}, with transparent pixels, which have no colour: lay it "
                "on a background"
            )
    return image


def _is_full_range(image: Any) -> bool:
    """Return whether values are of 16 bits, from black to white; in a PNG they are."""
    tags = getattr(image, "tag_v2", None)
    if tags is None:
        return True
    return bool(tags.get(_BITS) == (16,) and tags.get(_MEANING) == _WHITE_IS_LARGEST)
