"""The programs that the explorer page writes, as they are pasted."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import PIL.Image
import pytest
from explorer_page import OpenPage, Serve, call, enter, expect, field, open_page, outcome, serve
from node import system_node

import ucall.auth

__all__ = ["open_page", "serve"]


def snippets(page: Any) -> dict[str, str]:
    page.locator("summary", has_text="The call as a program").click()
    return {
        name: page.get_by_role("region", name=name, exact=True).locator("pre").inner_text()
        for name in ("curl", "Python", "ucall", "JavaScript")
    }


def run_shell(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "UCALL_KEY": "s3cret"}
    shell = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(
        shell, capture_output=True, text=True, check=True, cwd=folder, env=environment, timeout=120
    )
    return done.stdout


def run_node(program: str, folder: Path) -> str:
    """Runs a program as it was pasted."""
    (folder / "program.mjs").write_text(program)
    environment = {**os.environ, "UCALL_KEY": "s3cret"}
    command = [system_node(), "program.mjs"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=environment,
        timeout=120,
    )
    return done.stdout


def run_python(program: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("UCALL_KEY", "s3cret")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(program, "snippet", "exec"), {})
    return output.getvalue()


@pytest.mark.parametrize("method", ["describe", "reverse", "generate", "label", "health"])
def test_the_programs_make_the_same_call(
    serve: Serve,
    open_page: OpenPage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    name = "it's a file"
    (tmp_path / name).write_bytes(b"abc")
    server = serve(auth=ucall.auth.bearer(["s3cret"]))
    page = open_page(server, f"#{method}", expected="401")
    enter(page, "s3cret")
    if method == "reverse":
        field(page, "data").set_input_files(tmp_path / name)
        expect(page.get_by_text(f"{name} is sent.")).to_be_visible()
        expected = "Y2Jh"
    elif method == "label":
        expect(page.get_by_label("Send constructor")).not_to_be_checked()
        field(page, "text").fill("007")
        field(page, "data").set_input_files(tmp_path / name)
        field(page, "color").fill("5")
        expected = "007 3 5 none"
    elif method == "health":
        expected = "deep False"
    elif method == "generate":
        field(page, "prompt").fill("it's me")
        expected = "me "
    else:
        field(page, "name").fill("true")
        field(page, "age").fill("36")
        page.get_by_label("Send points").check()
        page.get_by_label("Send points").uncheck()
        page.get_by_label("Send id").check()
        field(page, "id").fill("@it \"is\" $HOME\n'quoted'")
        expected = "$HOME"
    texts = snippets(page)
    assert all("s3cret" not in text for text in texts.values())
    assert expected in run_shell(texts["curl"], tmp_path)
    # The page shows these bytes as text, and so do the other programs.
    expected = "cba" if method == "reverse" else expected
    assert expected in run_shell(texts["ucall"], tmp_path)
    assert expected in run_python(texts["Python"], monkeypatch, tmp_path)
    expected = "Uint8Array(3) [ 99, 98, 97 ]" if method == "reverse" else expected
    assert expected in run_node(texts["JavaScript"], tmp_path)


@pytest.mark.parametrize(("method", "printed"), [("scale", "[0. 2. 4.]"), ("thumbnail", "")])
def test_the_programs_print_what_the_page_shows(
    serve: Serve,
    open_page: OpenPage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    printed: str,
) -> None:
    numpy.save(tmp_path / "array.npy", numpy.arange(3.0))
    PIL.Image.new("RGB", (40, 30), "orange").save(tmp_path / "photo.jpg")
    page = open_page(serve(), f"#{method}")
    if method == "scale":
        page.get_by_label("or a .npy file").set_input_files(tmp_path / "array.npy")
    else:
        field(page, "photo").set_input_files(tmp_path / "photo.jpg")
    expect(page.get_by_text("is sent")).to_be_visible()
    texts = snippets(page)

    def check(output: str, expected: str) -> None:
        assert expected in output
        if method == "thumbnail":
            assert PIL.Image.open(tmp_path / "thumbnail.png").size == (64, 64)
            (tmp_path / "thumbnail.png").unlink()

    check(run_python(texts["Python"], monkeypatch, tmp_path), printed)
    check(run_node(texts["JavaScript"], tmp_path), printed and "Float64Array(3) [ 0, 2, 4 ]")
    shell = texts["ucall"] if method == "thumbnail" else f"{texts['ucall']} -o printed.npy"
    check(run_shell(shell, tmp_path), "")
    if method == "scale":
        assert numpy.load(tmp_path / "printed.npy").tolist() == [0, 2, 4]


def test_the_programs_follow_a_result_of_any_type(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#same")
    array = io.BytesIO()
    numpy.save(array, numpy.arange(3))
    field(page, "value").fill(base64.b64encode(array.getvalue()).decode())
    call(page)
    expect(outcome(page)).to_contain_text("array of int64")
    texts = snippets(page)
    assert texts["Python"].endswith(".numpy)") and ".array())" in texts["JavaScript"]
    assert texts["ucall"].endswith("--format numpy")
