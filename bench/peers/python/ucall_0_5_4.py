"""UCall 0.5.4 from PyPI, the project's earlier version.

python ucall_0_5_4.py posix|uring PORT
"""

import importlib
import sys

server = importlib.import_module(f"ucall.{sys.argv[1]}").Server(port=int(sys.argv[2]))


@server
def sum(a: int, b: int):
    return a + b


server.run()
