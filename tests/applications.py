"""Sources of servers that several tests run in processes of their own."""

#: Which worker answers.
PID = """
import os, sys, ucall
server = ucall.Server(port=0)
@server
def pid() -> int:
    return os.getpid()
"""

#: Serves the store of its first argument until a line arrives.
STORE = """
import sys, ucall
server = ucall.Server(port=0)
durability = (sys.argv[2:] or ["commit"])[0]
server.store("kv", ucall.store.open(sys.argv[1], durability=durability))
server.start()
print(server.port)
sys.stdin.readline()
server.stop()
"""

#: What a program does at its end to hold the interpreter's lock from one line to the next.
HOLDS_THE_LOCK = """
import ctypes, sys
sys.stdin.readline()
# A function of a PyDLL keeps the lock: nothing runs Python until a line arrives.
ctypes.PyDLL(None).write(1, b"held\\n", 5)
ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
"""
