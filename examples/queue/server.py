"""Doubles the arrays that clients put into a queue, until Ctrl-C.

python examples/queue/server.py 51966
"""

import sys

from ucall import queue as nq

where = nq.NetworkLocation("127.0.0.1", int(sys.argv[1]))
with nq.new(purpose=nq.Purpose.SERVER, options=nq.CommunicatorOptions(netloc=where)) as queue:
    print(*queue.address, flush=True)
    try:
        while True:
            message = queue.get()
            queue.put(message.data * 2, message.peer)
    except KeyboardInterrupt:
        pass
