"""ucall's client with arrays and images: `arrays.py URI TASK SECONDS [OPTION…]`.

An option of the client, such as `shared_memory`, is turned on.

Prints the number of calls, the seconds that they took, and their number with those to warm up. It
runs with earlier builds as well.
"""

import io
import json
import sys
import time

import numpy
import PIL.Image

from ucall.client import Client

WARM_UP_CALLS = 3


def images(client):
    """32 images, of each of which the brightest value is found."""
    batch = numpy.random.default_rng(1).integers(0, 200, (32, 224, 224, 3), numpy.uint8)
    expected = batch[:, 100, 100, 1] = numpy.arange(200, 232, dtype=numpy.uint8)
    return lambda: client.brightest(batch).numpy, lambda found: (found == expected).all()


def lookup(client):
    """10,000 rows of 768 floats."""
    rows = numpy.random.default_rng(1).integers(0, 20_000, 10_000)
    first = rows.astype(numpy.float32) * 768
    return lambda: client.lookup(rows).numpy, lambda found: (found[:, 0] == first).all()


def resize(client):
    """A picture of 4K in JPEG, at half its size."""
    gradient = PIL.Image.linear_gradient("L").resize((3840, 2160))
    file = io.BytesIO()
    PIL.Image.merge("RGB", [gradient, gradient.rotate(180), gradient]).save(file, "JPEG")
    picture = PIL.Image.open(file)

    def call():
        return client.resize(picture, 1920, 1080).image

    return call, lambda found: found.size == (1920, 1080)


def echo(client):
    """16 MiB of floats."""
    values = numpy.random.default_rng(1).standard_normal(4 << 20, numpy.float32)
    return lambda: client.echo(values).numpy, lambda found: numpy.array_equal(found, values)


def filled(client):
    """The same in memory that both sides share."""
    values = client.empty(4 << 20, numpy.float32)
    values[:] = numpy.random.default_rng(1).standard_normal(4 << 20, numpy.float32)
    return lambda: client.echo(values).numpy, lambda found: numpy.array_equal(found, values)


uri, task, seconds, *more = sys.argv[1:]
with Client(uri, **dict.fromkeys(more, True)) as client:
    call, is_right = globals()[task](client)
    for _ in range(WARM_UP_CALLS):
        assert is_right(call()), "another result"
    calls, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < float(seconds):
        call()
        calls += 1
print(json.dumps([calls, elapsed, calls + WARM_UP_CALLS]))
