"""Functions as models of the Open Inference Protocol: what they are, and calls of them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
import typing
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from serving import Serve

import ucall
from harness import Wire

LENGTH = "Inference-Header-Content-Length"
DATATYPES = {
    "BOOL": np.bool_,
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
}


class Models:
    """A client of the protocol."""

    def __init__(self, server: ucall.Server) -> None:
        self.url = f"http://127.0.0.1:{server.port}/v2"

    def get(self, path: str = "") -> Any:
        return httpx.get(self.url + path).raise_for_status().json()

    def post(self, name: str, body: bytes, json_bytes: int | None = None) -> httpx.Response:
        headers = {} if json_bytes is None else {LENGTH: str(json_bytes)}
        return httpx.post(
            f"{self.url}/models/{name}/infer", content=body, headers=headers, timeout=60
        )

    def infer(self, name: str, **inputs: Any) -> dict[str, Any]:
        """The outputs of a call whose inputs are arrays, with all in binary."""
        described, tail = [], b""
        for named, array in inputs.items():
            data = array.tobytes()
            size = {"binary_data_size": len(data)}
            datatype = next(it for it, dtype in DATATYPES.items() if dtype == array.dtype)
            given = {"name": named, "datatype": datatype, "shape": array.shape, "parameters": size}
            described.append(given)
            tail += data
        request = {"inputs": described, "parameters": {"binary_data_output": True}}
        text = json.dumps(request).encode()
        return self.outputs(self.post(name, text + tail, len(text)).raise_for_status())

    def infer_json(self, name: str, *inputs: tuple[str, str, list[int], Any]) -> Any:
        """The response to inputs in JSON: name, datatype, shape and data of each."""
        keys = ("name", "datatype", "shape", "data")
        request = {"inputs": [dict(zip(keys, it, strict=True)) for it in inputs]}
        return self.post(name, json.dumps(request).encode()).json()

    @staticmethod
    def outputs(response: httpx.Response) -> dict[str, Any]:
        at = int(response.headers[LENGTH])
        found = {}
        for output in json.loads(response.content[:at])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            data, at = response.content[at : at + size], at + size
            if output["datatype"] == "BYTES":
                found[output["name"]] = data
                continue
            dtype = DATATYPES[output["datatype"]]
            found[output["name"]] = np.frombuffer(data, dtype).reshape(output["shape"])
        assert at == len(response.content)
        return found


@dataclasses.dataclass
class Scores:
    """Two outputs."""

    scores: NDArray[np.float32]
    label: str


class Named(typing.TypedDict):
    """An output."""

    values: NDArray[np.int16]


def double(x: np.ndarray) -> np.ndarray:
    """Keeps the dtype."""
    return np.asarray(x + x) if x.dtype != np.bool_ else x


async def scale(x: NDArray[np.float32], by: float = 2.0) -> NDArray[np.float32]:
    await asyncio.sleep(0)
    return x * np.float32(by)


def classify(image: np.ndarray[tuple[int, int], np.dtype[np.uint8]], top: int) -> Scores:
    return Scores(image.astype(np.float32).ravel()[:top], f"{image.shape}")


def pair(x: NDArray[np.int16]) -> tuple[NDArray[np.int16], int]:
    return x, len(x)


def join(words: list[str], end: str, raw: bytes = b"") -> str:
    return " ".join(words) + end + raw.hex()


def describe(data: Image.Image, kind: Literal["a", "b"] = "a") -> dict[str, Any]:
    return {"size": list(data.size), "kind": kind, "raw": b"\xff"}


def process(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return x + np.float32(2)


@pytest.fixture
def models(serve: Serve) -> Models:
    server = serve(double, scale, classify, pair, join, describe)
    server.inference()
    return Models(server)


def test_the_server_and_its_models_describe_themselves(models: Models) -> None:
    assert models.get()["extensions"] == ["binary_tensor_data", "model_configuration"]
    assert models.get("/health/live") == {"live": True}
    assert models.get("/health/ready") == {"ready": True}
    assert models.get("/models/scale/versions/1/ready") == {"name": "scale", "ready": True}

    config = models.get("/models/scale/config")
    assert config["input"][0] == {"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}

    def tensors(name: str, kind: str) -> list[tuple[str, str, list[int]]]:
        found = models.get(f"/models/{name}")
        assert (found["name"], found["versions"]) == (name, ["1"])
        return [tuple(it.values()) for it in found[kind]]

    assert tensors("scale", "inputs") == [("x", "FP32", [-1]), ("by", "FP64", [1])]
    assert tensors("scale", "outputs") == [("output0", "FP32", [-1])]
    assert tensors("classify", "inputs") == [("image", "UINT8", [-1, -1]), ("top", "INT64", [1])]
    assert tensors("classify", "outputs") == [("scores", "FP32", [-1]), ("label", "BYTES", [1])]
    assert tensors("pair", "outputs") == [("output0", "INT16", [-1]), ("output1", "INT64", [1])]
    assert tensors("join", "inputs") == [
        ("words", "BYTES", [-1]),
        ("end", "BYTES", [1]),
        ("raw", "BYTES", [1]),
    ]
    assert tensors("describe", "inputs") == [("data", "BYTES", [1]), ("kind", "BYTES", [1])]
    assert tensors("describe", "outputs") == []


@pytest.mark.parametrize("name", DATATYPES)
def test_tensors_of_every_datatype_go_both_ways(models: Models, name: str) -> None:
    dtype = DATATYPES[name]
    for shape in [(), (1,), (2, 3), (0, 4), (20_000,)]:
        array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
        (answer,) = models.infer("double", x=array).values()
        assert (answer.dtype, answer.shape) == (array.dtype, array.shape)
        assert np.array_equal(answer, double(array))
    if name == "FP16":
        return
    reply = models.infer_json("double", ("x", name, [2, 1], np.ones((2, 1), dtype).tolist()))
    answer = np.ones(2, dtype) if name == "BOOL" else np.full(2, 2, dtype)
    expected = {"name": "output0", "datatype": name, "shape": [2, 1], "data": answer.tolist()}
    assert reply["outputs"] == [expected]


def test_outputs_have_the_names_of_the_result(models: Models) -> None:
    image = np.array([[1, 2], [3, 4]], np.uint8)
    found = models.infer("classify", image=image, top=np.array([3]))
    assert found["scores"].tolist() == [1, 2, 3] and found["label"] == b"\x06\0\0\0(2, 2)"
    found = models.infer("pair", x=np.array([1, 2], np.int16))
    assert {name: it.tolist() for name, it in found.items()} == {"output0": [1, 2], "output1": [2]}
    reply = models.infer_json(
        "join", ("words", "BYTES", [2], ["a", "é"]), ("end", "BYTES", [1], ["!"])
    )
    assert reply["outputs"] == [
        {"name": "output0", "datatype": "BYTES", "shape": [1], "data": ["a é!"]}
    ]


def test_a_request_chooses_outputs_and_keeps_its_id(models: Models) -> None:
    given = {"name": "x", "datatype": "INT16", "shape": [2], "data": [1, 2]}
    chosen = [{"name": "output1"}, {"name": "output0", "parameters": {"binary_data": True}}]
    request = {"id": "a\n", "inputs": [given], "outputs": chosen}
    response = models.post("pair", json.dumps(request).encode())
    at = int(response.headers[LENGTH])
    reply = json.loads(response.content[:at])
    assert (reply["id"], reply["model_name"], reply["model_version"]) == ("a\n", "pair", "1")
    assert [it["name"] for it in reply["outputs"]] == ["output1", "output0"]
    assert reply["outputs"][0]["data"] == [2] and response.content[at:] == b"\1\0\2\0"


def test_functions_of_every_kind_are_models(serve: Serve) -> None:
    server = serve()
    server.inference()

    @server(threads=True)
    def thread(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x + np.float32(1)

    server.add(process, processes=1)

    @server.batch(max_size=8, max_wait_ms=1)
    def batch(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x.sum(axis=1)

    @server
    def stream(x: NDArray[np.float32]) -> Iterator[float]:
        yield from x.tolist()

    models = Models(server)
    x = np.arange(30_000, dtype=np.float32)
    assert np.array_equal(models.infer("thread", x=x)["output0"], x + 1)
    assert np.array_equal(models.infer("process", x=x)["output0"], x + 2)
    assert models.infer("batch", x=x[:4])["output0"] == 6
    assert models.infer("stream", x=x[:3])["output0"].tolist() == [0, 1, 2]


def test_large_tensors_come_in_pieces_and_replies_in_order(models: Models) -> None:
    x = np.arange(400_000, dtype=np.float32)
    given = {"name": "x", "datatype": "FP32", "shape": x.shape}
    given["parameters"] = {"binary_data_size": x.nbytes}
    request = {"inputs": [given], "parameters": {"binary_data_output": True}}
    text = json.dumps(request).encode()
    body = text + x.tobytes()
    pieces = [body[at : at + 99_999] for at in range(0, len(body), 99_999)]
    head = f"POST /v2/models/scale/infer HTTP/1.1\r\nHost: localhost\r\n{LENGTH}: {len(text)}\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b"")]
    chunked = head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)
    plain = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    small = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    with Wire(int(models.url.split(":")[2].split("/")[0])) as wire:
        sender = threading.Thread(target=wire.send, args=(plain + chunked + small + plain,))
        sender.start()
        for kind in ("tensor", "tensor", "call", "tensor"):
            status, head_of_reply, received = wire.reply()
            assert status == 200
            if kind == "call":
                assert json.loads(received)["error"]["code"] == -32600
                continue
            at = int(head_of_reply.split(LENGTH.encode() + b": ")[1].split(b"\r\n")[0])
            assert np.array_equal(np.frombuffer(received[at:], np.float32), x * 2)
        sender.join()


def test_errors_have_a_status_and_a_reason(serve: Serve) -> None:
    def fail(x: int) -> int:
        raise ucall.RPCError(404, "there is none")

    def nothing(x: int) -> Any:
        return {"a": None}

    server = serve(scale, fail, nothing)
    server.inference()
    models = Models(server)

    def refused(name: str, body: Any, json_bytes: int | None = None) -> tuple[int, str]:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = models.post(name, body, json_bytes)
        assert response.headers["Content-Type"] == "application/json"
        return response.status_code, response.json()["error"]

    one = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [1]}]}
    assert refused("unknown", {}) == (404, 'there is no model "unknown"')
    assert refused("scale", {"inputs": []}) == (400, "Invalid params: params.x: missing, expected "
        "array of float32 (.npy in base64, or nested lists)")  # fmt: skip
    assert refused("scale", b"{") == (400, "the request is no JSON object in UTF-8")
    assert refused("scale", b"{}", 3)[0] == 400
    assert refused("fail", one) == (404, "there is none")
    status, reason = refused("nothing", one)
    assert status == 500 and reason == 'output "a": has null in it'
    given = {"name": "x", "datatype": "FP64", "shape": [1], "data": [1.0]}
    status, reason = refused("scale", {"inputs": [given]})
    assert status == 400 and "float32" in reason
    assert httpx.get(f"{models.url}/models/fail/infer").status_code == 405
    assert httpx.get(f"{models.url}/repository/index").status_code == 404


def test_only_chosen_functions_are_models(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    def search(options: dict[str, int]) -> int:
        return len(options)

    def tree() -> dict[str, dict[str, int]]:
        return {}

    def spread(*values: int) -> int:
        return len(values)

    server = serve(add, double)
    server.inference("add")
    models = Models(server)
    assert models.get("/models/add")["name"] == "add"
    assert httpx.get(f"{models.url}/models/double").status_code == 404
    with pytest.raises(ValueError, match="no function 'later'"):
        server.inference(["later"])
    for function, reason in [(search, "param 'options' is no array"), (tree, "result is no arr")]:
        chosen = serve(function)
        with pytest.raises(
            TypeError, match=f"{function.__name__}: cannot be a model: its {reason}"
        ):
            chosen.inference(function.__name__)
        everything = serve(function, add)
        with caplog.at_level(logging.DEBUG, "ucall"):
            everything.inference()
        assert f"inference: {function.__name__} is no model: its {reason}" in caplog.text
        assert Models(everything).get("/models/add")["name"] == "add"


def test_models_are_chosen_before_their_functions_are_defined(serve: Serve) -> None:
    server = ucall.Server(port=0)
    server.inference(["add"])
    with pytest.raises(ValueError, match="no function 'add'"):
        server.start()

    @server
    def add(a: int, b: int) -> int:
        return a + b

    server.start()
    try:
        (answer,) = Models(server).infer("add", a=np.array([1]), b=np.array([2])).values()
        assert answer == [3]
    finally:
        server.stop()


def test_a_client_that_leaves_ends_its_call(serve: Serve) -> None:
    began, ended = threading.Event(), threading.Event()

    async def wait(x: NDArray[np.float32]) -> NDArray[np.float32]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return x

    server = serve(wait)
    server.inference()
    given = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    body = json.dumps({"inputs": [given]}).encode()
    with Wire(server.port) as wire:
        head = (
            f"POST /v2/models/wait/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        )
        wire.send(head.encode() + b"\r\n\r\n" + body)
        assert began.wait(30)
    assert ended.wait(30)


def test_limits_and_keys_hold_for_models(serve: Serve) -> None:
    async def wait(x: int) -> int:
        await asyncio.sleep(60)
        return x

    def check(ctx: ucall.Context) -> str | None:
        return "user" if ctx.headers.get("authorization") == "Bearer key" else None

    server = serve(wait, auth=check, timeout_ms=20, max_body_bytes=300)
    server.inference()
    url = Models(server).url
    assert httpx.get(f"{url}/health/ready").status_code == 200
    assert httpx.get(f"{url}/models/wait").status_code == 401
    key = {"Authorization": "Bearer key"}
    assert httpx.get(f"{url}/models/wait", headers=key).status_code == 200
    given = {"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}
    body = json.dumps({"inputs": [given]}).encode()
    infer = f"{url}/models/wait/infer"
    assert httpx.post(infer, content=body).status_code == 401
    response = httpx.post(infer, content=body, headers=key)
    assert response.status_code == 504 and "error" in response.json()
    assert httpx.post(infer, content=body.ljust(301), headers=key).status_code == 413
    foreign = key | {"Origin": "http://evil.example"}
    assert httpx.post(infer, content=body, headers=foreign).status_code == 403


def test_errors_of_http_itself_have_the_form_of_the_protocol(serve: Serve) -> None:
    server = serve(double, max_body_bytes=300, auth=lambda ctx: ctx.headers.get("authorization"))
    server.inference()
    host = "Host: localhost\r\nAuthorization: key\r\n"
    for line, headers, status in [
        ("GET /v2/models/double", "Host: localhost\r\n", 401),
        ("GET /v2/models/double", "Host: evil.example\r\n", 403),
        ("GET /v2/repository", host, 404),
        ("PUT /v2/models/double", host, 405),
        ("POST /v2/models/double/infer", host + "Content-Length: 301\r\n", 413),
        ("POST /v2/models/double/infer", host + "Content-Length: -1\r\n", 400),
        (
            "POST /v2/models/double/infer",
            host + "Content-Encoding: br\r\nContent-Length: 3\r\n",
            415,
        ),
        ("POST  /v2/models/double/infer", host, 400),
    ]:
        request = f"{line} HTTP/1.1\r\n{headers}\r\n".encode()
        with Wire(server.port) as wire:
            wire.send(request)
            found, head, body = wire.reply()
        assert (found, b"\r\nContent-Type: application/json\r\n" in head) == (status, True), line
        assert list(json.loads(body)) == ["error"]
        with Wire(server.port) as wire:
            wire.send(request.replace(b"/v2", b"/v3"))
            assert b"\r\nContent-Type: text/plain; charset=utf-8\r\n" in wire.reply()[1]


def test_a_program_that_is_not_ready_says_so(serve: Serve) -> None:
    server = serve(double)
    server.inference()
    server.ready(lambda: False)
    response = httpx.get(f"{Models(server).url}/health/ready")
    assert (response.status_code, response.json()) == (503, {"error": "not ready: <lambda> failed"})


def test_a_server_without_models_has_no_paths_for_them(serve_once: Serve) -> None:
    url = f"http://127.0.0.1:{serve_once(double).port}/v2"
    response = httpx.get(url)
    assert response.status_code == 404 and response.headers["Content-Type"].startswith("text/plain")
    assert httpx.post(f"{url}/models/double/infer", content=b"{}").status_code == 404
