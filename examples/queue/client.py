"""Puts an array into the queue of a server, and prints the array that returns.

python examples/queue/client.py 51966
"""

import sys

import numpy

from ucall import queue as nq

where = nq.NetworkLocation("127.0.0.1", int(sys.argv[1]))
with nq.new(purpose=nq.Purpose.CLIENT, options=nq.CommunicatorOptions(netloc=where)) as queue:
    queue.put(numpy.arange(5))
    print(queue.get(timeout=10).data)
