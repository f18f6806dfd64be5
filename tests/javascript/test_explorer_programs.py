"""The programs that the explorer page writes, as they are pasted."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from explorer_page import OpenPage, Serve, enter, expect, field, open_page, serve

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
    assert expected in run_shell(texts["ucall"], tmp_path)
    assert expected in run_python(texts["Python"], monkeypatch, tmp_path)
    body = texts["JavaScript"].partition("\n")[2].replace("console.log", "log")
    lines = page.context.new_page()
    origin = page.url.partition("#")[0]
    lines.route(f"{origin}empty", lambda it: it.fulfill(body="", content_type="text/html"))
    lines.route(f"{origin}{name.replace(' ', '%20')}", lambda it: it.fulfill(body="abc"))
    lines.goto(f"{origin}empty")
    program = f"""async () => {{
        const {{ Client }} = await import("/ucall.js");
        const UCALL_KEY = "s3cret", output = [], log = (it) => output.push(JSON.stringify(it));
        {body}
        return output.join();
    }}"""
    assert expected in lines.evaluate(program)
