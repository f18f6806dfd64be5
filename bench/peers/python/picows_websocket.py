"""picows on uvloop. `echo` returns each message, `sum` calls a function.

python picows_websocket.py echo|sum PORT
"""

import sys

import uvloop
from jsonrpc import answer
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server


class Echo(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        transport.send(frame.msg_type, frame.get_payload_as_memoryview())


class Sum(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        transport.send(WSMsgType.TEXT, answer(frame.get_payload_as_bytes()))


async def main() -> None:
    listener = {"echo": Echo, "sum": Sum}[sys.argv[1]]
    server = await ws_create_server(lambda _: listener(), "127.0.0.1", int(sys.argv[2]))
    await server.serve_forever()


uvloop.run(main())
