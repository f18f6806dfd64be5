"""gRPC in Python, on asyncio. The argument is the port.

Not on uvloop: gRPC has a loop of its own below, and with uvloop above it is slower.
"""

import asyncio
import sys

import grpc.aio
import sum_pb2
import sum_pb2_grpc


class Calls(sum_pb2_grpc.CallsServicer):
    async def Sum(self, request, context):
        return sum_pb2.SumReply(result=request.a + request.b)


async def main() -> None:
    server = grpc.aio.server()
    sum_pb2_grpc.add_CallsServicer_to_server(Calls(), server)
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    await server.wait_for_termination()


asyncio.run(main())
