"""A datagram echo of asyncio, for `make bench-udp`: `python bench/servers/udp_echo.py [uvloop]`."""

import asyncio
import importlib
import sys


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        print("listening on", transport.get_extra_info("sockname")[1], flush=True)

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.transport.sendto(data, addr)


async def main() -> None:
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    await asyncio.Event().wait()


run = importlib.import_module(sys.argv[1]).run if len(sys.argv) > 1 else asyncio.run
run(main())
