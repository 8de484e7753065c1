"""Pictures of every mode become the same 8 bits, or are refused by name."""

import io
import struct
import subprocess

import numpy as np
import pytest
from PIL import Image

from fedsuite.core.errors import DataError
from fedsuite.data import pictures
from fedsuite.data.catalog import DATASETS
from fedsuite.data.parquet import load_images
from tests.data import parquet_files as files

GREY = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
"""Values 0 to 230, of 4 rows and 6 columns."""

ORIENTATION = 274


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(content, channels=1, height=4, width=6, resize=False):
    return pictures.decode(content, channels, height, width, resize=resize)


def with_alpha(mode, alpha):
    image = Image.fromarray(GREY).convert(mode)
    image.putalpha(alpha)
    return image


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_16_bits_keep_their_shades(kind, order):
    if kind == "PNG" and order == ">u2":
        pytest.skip("in a PNG there is one order")
    wide = Image.fromarray(GREY.astype(order) * 257)
    assert np.array_equal(decoded(encoded(wide, kind))[0], GREY)


def test_16_bits_round_to_the_nearest_of_8():
    wide = np.tile(np.array([0, 128, 129, 65535 - 129, 65535 - 128, 65535], "<u2"), (4, 1))
    rounded = decoded(encoded(Image.fromarray(wide)))[0, 0]
    assert rounded.tolist() == [0, 0, 1, 254, 255, 255]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(GREY),
        Image.fromarray(GREY).convert("RGB"),
        Image.fromarray(GREY.astype("<u2") * 257),
        with_alpha("L", 255),
        with_alpha("RGB", 255),
        Image.fromarray(GREY).convert("P"),
    ],
    ids=lambda image: image.mode,
)
def test_a_grey_picture_is_the_same_in_every_mode(image, channels):
    pixels = decoded(encoded(image), channels)
    assert np.array_equal(pixels, np.repeat(GREY[None], channels, axis=0))


def test_black_and_white_is_0_and_255():
    image = Image.fromarray(GREY > 100)
    assert np.array_equal(decoded(encoded(image))[0], np.where(GREY > 100, 255, 0))


def test_colour_becomes_grey_by_its_luminance():
    red = Image.new("RGB", (6, 4), (200, 0, 0))
    for image in (red, red.quantize(), red.convert("RGBA")):
        assert np.unique(decoded(encoded(image))).tolist() == [60]


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (Image.fromarray(GREY.astype(np.int32)), "TIFF"),
        (Image.fromarray(GREY.astype(np.float32)), "TIFF"),
    ],
    ids=lambda value: getattr(value, "mode", value),
)
def test_modes_without_a_range_are_refused_by_name(image, kind):
    with pytest.raises(DataError, match=f"mode {image.mode}: the range of its values"):
        decoded(encoded(image, kind))


@pytest.mark.parametrize("meaning", [(258, 12), (262, 0)])
def test_a_tiff_of_16_bits_whose_white_is_elsewhere_is_refused(meaning, monkeypatch):
    tag, value = meaning
    content = bytearray(encoded(Image.fromarray(GREY.astype("<u2") * 257), "TIFF"))
    # An entry of the directory: tag, type 3 (short), one value.
    place = content.index(struct.pack("<HHI", tag, 3, 1)) + 8
    content[place : place + 2] = struct.pack("<H", value)
    with pytest.raises(DataError, match=r"mode I;16|not a readable image"):
        decoded(bytes(content))


@pytest.mark.parametrize(
    "image",
    [with_alpha("L", 254), with_alpha("RGB", 0), with_alpha("RGB", 254)],
    ids=lambda image: image.mode,
)
def test_transparent_pixels_are_refused(image):
    with pytest.raises(DataError, match="mode RGBA, with transparent pixels"):
        decoded(encoded(image))


def test_a_transparent_colour_of_a_palette_or_of_grey_is_refused():
    for image in (Image.fromarray(GREY).convert("P"), Image.fromarray(GREY)):
        with pytest.raises(DataError, match="transparent pixels"):
            decoded(encoded(image, transparency=100))
    wide = Image.fromarray(GREY.astype("<u2") * 257)
    with pytest.raises(DataError, match="mode I"):
        decoded(encoded(wide, transparency=100 * 257))


def test_a_picture_that_begins_like_postscript_starts_no_program(monkeypatch):
    programs = []

    def started(*words, **options):
        programs.append(words)
        raise OSError("no program is started here")

    for name in ("Popen", "run", "call", "check_call", "check_output"):
        monkeypatch.setattr(subprocess, name, started)
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n%%EndComments\nshowpage\n"
    for content in (page, encoded(Image.fromarray(GREY).convert("RGB"), "EPS")):
        with pytest.raises(DataError, match=r"not a readable image .*: give PNG, JPEG"):
            decoded(content)
    assert not programs


@pytest.mark.parametrize("kind", ["PPM", "TGA", "ICO", "PCX", "JPEG2000"])
def test_other_formats_are_refused(kind):
    with pytest.raises(DataError, match="not a readable image"):
        decoded(encoded(Image.fromarray(GREY), kind))


@pytest.mark.parametrize("kind", pictures.FORMATS)
def test_the_formats_that_are_named_can_be_read(kind):
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100}}.get(kind, {})
    pixels = decoded(encoded(Image.fromarray(GREY).convert("RGB"), kind, **options))
    assert np.abs(pixels[0].astype(int) - GREY).max() <= 3


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_a_turned_picture_is_turned(kind):
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    options = {"quality": 100} if kind == "JPEG" else {}
    lying = Image.fromarray(np.ascontiguousarray(np.rot90(GREY)))
    pixels = decoded(encoded(lying, kind, exif=exif, **options))
    assert np.abs(pixels[0].astype(int) - GREY).max() <= 3


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", pictures.FORMATS)
def test_every_truncated_picture_is_one_line_or_whole(kind):
    colours = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    content = encoded(Image.fromarray(colours), kind)
    whole = decoded(content, 3, 32, 48)
    refused = 0
    for length in range(0, len(content), 37):
        try:
            # The last bytes may hold no pixel.
            assert np.array_equal(decoded(content[:length], 3, 32, 48), whole)
        except DataError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > len(content) // 37 * 0.9


def test_a_size_is_known_before_a_pixel_is_decoded(monkeypatch):
    large = encoded(Image.new("L", (900, 900)))
    monkeypatch.setattr(Image.Image, "convert", None)
    with pytest.raises(DataError, match="image of 900x900, not 6x4"):
        decoded(large)


@pytest.mark.parametrize(("pixels", "fits"), [(99, True), (100, True), (101, False)])
def test_pictures_to_be_made_smaller_have_a_largest_size(pixels, fits, monkeypatch):
    monkeypatch.setattr(pictures, "MOST_PIXELS", 100)
    content = encoded(Image.new("L", (pixels, 1)))
    if fits:
        assert decoded(content, resize=True).shape == (1, 4, 6)
        return
    with pytest.raises(DataError, match="not at most 100 pixels"):
        decoded(content, resize=True)


def test_pillows_own_bound_on_pixels_is_one_line(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match="not a readable image"):
        decoded(encoded(Image.fromarray(GREY)))


def test_files_name_the_row_of_a_picture_that_is_refused(tmp_path):
    spec = DATASETS["mnist"]
    pixels = files.random_pixels(spec, 8)
    whole = files.table(spec, pixels, files.labels_for(spec, 8)).to_pylist()
    wide = pixels[5, 0].astype(np.float32)
    whole[5][spec.image_column]["bytes"] = encoded(Image.fromarray(wide), "TIFF")
    table = files.pa.Table.from_pylist(whole)
    files.write_split(tmp_path, "train", table)
    with pytest.raises(DataError, match=r"parquet: row 5: mode F"):
        load_images(spec, tmp_path)
    whole[5][spec.image_column]["bytes"] = encoded(
        Image.fromarray(pixels[5, 0].astype("<u2") * 257)
    )
    files.write_split(tmp_path, "train", files.pa.Table.from_pylist(whole))
    assert np.array_equal(load_images(spec, tmp_path), pixels)
