"""Other projects' clients of the Open Inference Protocol, and curl, on both engines."""

from __future__ import annotations

import io
import json
import math
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
from conftest import HERE, PERF_ANALYZER, Run
from programs import require

DOUBLED = [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]


def test_tritonclient(url: str, python: Path, run: Run) -> None:
    # The server has BF16 where its arrays have it.
    more = ["BF16"] if find_spec("ml_dtypes") else []
    found = json.loads(run(python, HERE / "clients/triton.py", url, *more))
    embedded = found["called"].pop("embed")
    assert len(embedded) == 8 and all(math.isclose(it, 1, abs_tol=1e-6) for it in embedded)
    assert "binary_tensor_data" in found.pop("extensions")
    for name, (status, problem) in {
        "unknown": ("404", "none"),
        "missing": ("400", "b"),
        "wrong": ("400", "a"),
        "failed": ("500", "it fails"),
    }.items():
        came = found.pop(name)
        assert came[0] == status and problem in came[1], (name, came)
    assert found == {
        "live": True,
        "ready": True,
        "models ready": [True, True, False],
        "inputs": [
            {"name": "values", "datatype": "FP32", "shape": [-1]},
            {"name": "by", "datatype": "FP64", "shape": [1]},
        ],
        "binary": True,
        "bfloat16": True,
        "json": True,
        "called": {
            "scale": [0, 3, 6, 9],
            "add": [0, 2, 4],
            "total": [6.0],
            "upper": ["A", "É"],
        },
        "asyncio": DOUBLED,
    }


def test_the_sdk_of_kserve(url: str, python: Path, run: Run) -> None:
    found = json.loads(run(python, HERE / "clients/kserve_sdk.py", url))
    assert found == {
        "live": True,
        "ready": True,
        "model ready": True,
        "binary True": DOUBLED,
        "binary False": DOUBLED,
        "requested": DOUBLED,
        "id": "7",
    }


@pytest.mark.parametrize("tensors", ["binary", "json"])
def test_perf_analyzer(url: str, tensors: str, run: Run) -> None:
    if not (PERF_ANALYZER / "perf_analyzer").exists():
        pytest.skip("perf_analyzer is not installed")
    # In JSON it sends one item, whatever the shape.
    items = 64 if tensors == "binary" else 1
    shown = run(
        *(PERF_ANALYZER / "perf_analyzer", "-m", "scale", "-u", url, "--shape", f"values:{items}"),
        # Not `--request-count`: at its end it waits for ever now and then, when all are answered.
        *("--measurement-interval", 200, "--stability-percentage", 999),
        *("--concurrency-range", 4, "--async", "--shape", "by:1"),
        *("--input-tensor-format", tensors, "--output-tensor-format", tensors),
        *("--input-data", "zero"),
        LD_LIBRARY_PATH=str(PERF_ANALYZER),
    )
    assert "Throughput" in shown and "Failed" not in shown, shown


def test_curl(url: str, run: Run, tmp_path: Path) -> None:
    """JSON by the protocol, and whole bodies for those who know none."""
    require("curl")
    tensor = {"name": "values", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}
    body = json.dumps({"id": "7", "inputs": [tensor]})
    reply = json.loads(run("curl", "-s", "-d", body, f"http://{url}/v2/models/scale/infer"))
    assert (reply["id"], reply["model_name"]) == ("7", "scale")
    assert [it["data"] for it in reply["outputs"]] == [[2, 4, 6]]

    array = numpy.arange(6, dtype="f4").reshape(2, 3)
    file, back = tmp_path / "values.npy", tmp_path / "back.npy"
    numpy.save(file, array)
    whole = ["curl", "-s", "--data-binary", f"@{file}", "-H", "Content-Type: application/x-npy"]
    assert json.loads(run(*whole, f"http://{url}/scale")) == DOUBLED
    run(*whole, "-H", "Accept: application/x-npy", "-o", back, f"http://{url}/scale?by=2")
    assert numpy.load(io.BytesIO(back.read_bytes())).tolist() == DOUBLED
