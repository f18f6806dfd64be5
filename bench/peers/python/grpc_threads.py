"""gRPC in Python, in threads. The argument is the port."""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import sum_pb2
import sum_pb2_grpc


class Calls(sum_pb2_grpc.CallsServicer):
    def Sum(self, request, context):
        return sum_pb2.SumReply(result=request.a + request.b)


server = grpc.server(ThreadPoolExecutor(max_workers=10))
sum_pb2_grpc.add_CallsServicer_to_server(Calls(), server)
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
server.wait_for_termination()
