"""LitServe, one API server and one worker. A module, which its processes import."""

import litserve


class Calls(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request

    def predict(self, request):
        params = request["params"]
        return {"jsonrpc": "2.0", "id": request["id"], "result": params["a"] + params["b"]}

    def encode_response(self, output):
        return output


def serve(port: int) -> None:
    run(litserve.LitServer(Calls(api_path="/"), accelerator="cpu"), port)


def run(server: litserve.LitServer, port: int) -> None:
    server.run(
        host="127.0.0.1",
        port=port,
        log_level="error",
        access_log=False,
        generate_client_file=False,
    )
