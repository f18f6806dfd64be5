"""Servers of other projects that return the array they get: `python -m array_servers NAME PORT`.

Each is one process, in the fastest form that its guide shows. All make a NumPy array of what they
receive and bytes of the array, as a function that uses NumPy must.
"""

import asyncio
import logging
import sys

import numpy

HOST = "127.0.0.1"
#: Of a message.
BYTES_MAX = 64 << 20


def echo(body: bytes | memoryview) -> bytes:
    return numpy.frombuffer(body, numpy.float32).tobytes()


def fastapi(port: int) -> None:
    """The raw body, as its users do with arrays."""
    from fastapi import FastAPI, Request, Response
    from servers import run_uvicorn

    app = FastAPI()

    @app.post("/")
    async def call(request: Request) -> Response:
        return Response(echo(await request.body()), media_type="application/octet-stream")

    # Connections wait for their turn.
    run_uvicorn(app, port, timeout_keep_alive=3600)


def grpc_bytes(port: int) -> None:
    """Messages of bytes without Protocol Buffers, which would copy them once more."""
    import grpc.aio

    async def call(request: bytes, context) -> bytes:
        return echo(request)

    async def main() -> None:
        lengths = ("grpc.max_receive_message_length", "grpc.max_send_message_length")
        server = grpc.aio.server(options=[(name, BYTES_MAX) for name in lengths])
        handler = grpc.method_handlers_generic_handler(
            "bench.Arrays", {"Echo": grpc.unary_unary_rpc_method_handler(call)}
        )
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"{HOST}:{port}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(main())


def zeromq(port: int) -> None:
    import zmq

    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(f"tcp://{HOST}:{port}")
    while True:
        *route, body = socket.recv_multipart(copy=False)
        # ZeroMQ copies shorter messages faster than it shares them.
        reply = echo(body.buffer)
        socket.send_multipart([*route, reply], copy=len(reply) < 65536)


def kserve(port: int) -> None:
    """The Open Inference Protocol with binary tensors."""
    import kserve
    from kserve import InferOutput, InferRequest, InferResponse

    class Echo(kserve.Model):
        def __init__(self) -> None:
            super().__init__("echo")
            self.ready = True

        async def predict(self, payload: InferRequest, headers=None, response_headers=None):
            values = payload.inputs[0].as_numpy()
            output = InferOutput("values", list(values.shape), "FP32")
            output.set_data_from_numpy(values, binary_data=True)
            how = {
                "use_binary_outputs": payload.use_binary_outputs,
                "requested_outputs": payload.request_outputs,
            }
            return InferResponse(payload.id, "echo", [output], **how)

    # Otherwise three lines are logged for each call.
    logging.disable(logging.INFO)
    server = kserve.ModelServer(
        http_port=port, enable_grpc=False, workers=1, enable_latency_logging=False
    )
    server.start([Echo()])


def mlserver(port: int) -> None:
    """The same protocol over gRPC, whose raw tensors it has; over HTTP it has lists alone."""
    from mlserver_grpc import serve

    serve(port, BYTES_MAX)


if __name__ == "__main__":
    name, port = sys.argv[1:]
    globals()[name](int(port))
