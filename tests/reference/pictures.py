"""Small pictures in every format and form that Pensieve decodes, with the pixels that Pillow gives them.

Run from the root of the repository with Pillow 13: `python tests/reference/pictures.py`.

Each file `NAME.EXT` has its upright RGB pixels in `NAME.EXT.rgb`: width and height as little-endian 32-bit numbers, then
three bytes a pixel. Pictures with transparent pixels are put on white, as the image processors of Idefics, Pixtral and
Qwen do; the others are converted by Pillow's `convert("RGB")`.
"""

import pathlib
import struct

import numpy
from PIL import Image, ImageOps

WIDTH, HEIGHT = 23, 14
FOLDER = pathlib.Path("tests/fixtures/pictures")


def scene() -> numpy.ndarray:
    """Smooth enough for JPEG, and different in every corner."""
    y, x = numpy.mgrid[0:HEIGHT, 0:WIDTH]
    red, green = 255 * x / (WIDTH - 1), 255 * y / (HEIGHT - 1)
    blue = 255 - (red + green) / 2
    return numpy.stack([red, green, blue], axis=-1).round().astype(numpy.uint8)


def expected(path: pathlib.Path) -> Image.Image:
    picture = ImageOps.exif_transpose(Image.open(path))
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        white.alpha_composite(picture)
        picture = white
    if picture.mode.startswith("I;16"):
        # Pillow cuts such values off at 255 instead of scaling them; the high byte is what its 16-bit RGB files become.
        picture = Image.fromarray((numpy.asarray(picture) >> 8).astype(numpy.uint8))
    return picture.convert("RGB")


def save(name: str, picture: Image.Image, **options) -> None:
    path = FOLDER / name
    picture.save(path, **options)
    pixels = expected(path)
    head = struct.pack("<II", *pixels.size)
    path.with_name(path.name + ".rgb").write_bytes(head + pixels.tobytes())


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    rgb = scene()
    picture = Image.fromarray(rgb)
    grey = picture.convert("L")
    alpha = (rgb[..., 0].astype(int) + rgb[..., 1]) // 2
    rgba = Image.fromarray(numpy.dstack([rgb, alpha.astype(numpy.uint8)]))
    palette = picture.quantize(16)

    save("rgb.png", picture)
    save("rgba.png", rgba)
    save("grey.png", grey)
    save("grey-alpha.png", Image.merge("LA", [grey, Image.fromarray(alpha.astype(numpy.uint8))]))
    save("palette.png", palette)
    save("palette-transparent.png", palette, transparency=3)
    save("bilevel.png", picture.convert("1"))
    save("grey-16.png", Image.fromarray(grey_16(rgb)))

    save("rgb.jpg", picture, quality=95, subsampling=0)
    save("subsampled.jpg", picture, quality=95, subsampling=2)
    save("progressive.jpg", picture, quality=95, subsampling=0, progressive=True)
    save("grey.jpg", grey, quality=95)
    save("cmyk.jpg", picture.convert("CMYK"), quality=95, subsampling=0)
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        save(f"turned-{orientation}.jpg", picture, quality=95, subsampling=0, exif=exif)
    plain_cmyk("cmyk-plain.jpg")

    exif = Image.Exif()
    exif[0x0112] = 6
    save("turned.png", picture, exif=exif)
    save("turned.webp", picture, lossless=True, exact=True, exif=exif)
    save("lossless.webp", picture, lossless=True, exact=True)
    save("rgba.webp", rgba, lossless=True, exact=True)
    save("lossy.webp", picture, quality=95)
    save("lossy-alpha.webp", rgba, quality=95)
    save("animated.webp", picture, save_all=True, append_images=[grey.convert("RGB")], lossless=True, duration=40)

    save("palette.gif", palette)
    save("transparent.gif", palette, transparency=3)
    save("interlaced.gif", palette, interlace=1)
    save("animated.gif", palette, save_all=True, append_images=[picture.transpose(1).quantize(16)], duration=40)


def grey_16(rgb: numpy.ndarray) -> numpy.ndarray:
    return rgb[..., 0].astype(numpy.uint16) * 257


def plain_cmyk(name: str) -> None:
    """A CMYK file without Adobe's marker, whose inks Pillow takes for inverted all the same."""
    written = (FOLDER / "cmyk.jpg").read_bytes()
    start = written.index(b"\xff\xee")
    length = int.from_bytes(written[start + 2 : start + 4], "big")
    path = FOLDER / name
    path.write_bytes(written[:start] + written[start + 2 + length :])
    pixels = expected(path)
    path.with_name(path.name + ".rgb").write_bytes(struct.pack("<II", *pixels.size) + pixels.tobytes())


main()
