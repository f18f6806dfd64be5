"""Calls a gRPC server by gRPC's own client, and prints the result. The argument is the port.

h2load counts replies, and looks into none.
"""

import sys

import grpc
import sum_pb2
import sum_pb2_grpc

with grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}") as channel:
    stub = sum_pb2_grpc.CallsStub(channel)
    request = sum_pb2.SumRequest(a=55, b=21)
    print(stub.Sum(request, timeout=10, wait_for_ready=True).result)
