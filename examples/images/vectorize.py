"""Turns a product's description and image into a vector; similar products have near vectors.

    python examples/images/vectorize.py
    ucall vectorize description='Product description' -i image=./local/path.png

The vector has 192 numbers and the length 1. The first 64 tell the words: each word of the
description counts in a place picked by its hash. The others tell the colours: a histogram of the
image in 16 shades for each of hue, saturation and value, and in 80 colours of 4 x 5 x 4 levels.
"""

import zlib

import numpy
import PIL.Image

from ucall import Server

WORD_PLACES = 64
SHADES = 16
LEVELS = (4, 5, 4)
THUMBNAIL_SIZE = (128, 128)

server = Server()


@server
def vectorize(description: str, image: PIL.Image.Image) -> numpy.ndarray:
    vector = numpy.concatenate([words(description), colours(image)])
    return vector / numpy.linalg.norm(vector)


def words(text: str) -> numpy.ndarray:
    """The number of words in each bucket of a hash; words in one bucket count together."""
    places = [zlib.crc32(word.encode()) % WORD_PLACES for word in text.casefold().split()]
    return share(numpy.bincount(places, minlength=WORD_PLACES))


def colours(image: PIL.Image.Image) -> numpy.ndarray:
    """The shares of brightnesses and colours among the image's pixels."""
    small = image.convert("RGB").resize(THUMBNAIL_SIZE)
    shades = numpy.asarray(small.convert("HSV")).reshape(-1, 3) // (256 // SHADES)
    levels = numpy.asarray(small).reshape(-1, 3) * numpy.array(LEVELS) // 256
    mixed = numpy.ravel_multi_index(tuple(levels.T), LEVELS)
    histograms = [numpy.bincount(band, minlength=SHADES) for band in shades.T]
    histograms.append(numpy.bincount(mixed, minlength=numpy.prod(LEVELS)))
    return numpy.concatenate([share(histogram) for histogram in histograms])


def share(counts: numpy.ndarray) -> numpy.ndarray:
    return (counts / max(counts.sum(), 1)).astype(numpy.float32)


if __name__ == "__main__":
    server.run()
