"""The types of `ucall.js`: its comments, `ucall.d.ts`, and those of `ucall stub`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import typed_server
from described_types import KINDS_DOCUMENT
from node import MODULE, package, system_node

from ucall import schema
from ucall._openrpc import Document
from ucall._stub.python import python_client
from ucall._stub.typescript import typescript_declarations

OPTIONS = {
    "strict": True,
    "target": "es2023",
    "lib": ["es2023", "dom", "dom.asynciterable"],
    "module": "nodenext",
    "types": [],
}


def _compile(folder: Path, options: dict[str, object], *files: Path) -> None:
    settings = {"compilerOptions": {**OPTIONS, **options}, "files": [str(file) for file in files]}
    (folder / "tsconfig.json").write_text(json.dumps(settings))
    compiler = package("typescript") / "bin" / "tsc"
    command = [system_node(), compiler, "--project", folder / "tsconfig.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout


def test_the_comments_and_the_declarations_agree(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("ucall.js", "ucall.d.ts", "package.json"):
        (sources / name).write_text(MODULE.with_name(name).read_text())
    made = tmp_path / "made"
    options = {"allowJs": True, "checkJs": True, "declaration": True, "emitDeclarationOnly": True}
    _compile(tmp_path, {**options, "outDir": str(made)}, sources / "ucall.js")
    # Its comments import the types of options and such from `ucall.d.ts`.
    made_text = (made / "ucall.d.ts").read_text().replace('"./ucall.js"', '"../sources/ucall.js"')
    (made / "implemented.d.ts").write_text(made_text)
    program = tmp_path / "types.mts"
    program.write_text(Path(__file__).with_name("types.ts").read_text())
    paths = {"ucall": ["./sources/ucall.d.ts"], "implemented": ["./made/implemented.d.ts"]}
    _compile(tmp_path, {"noEmit": True, "paths": paths}, program)


def test_the_types_of_every_kind_of_server(tmp_path: Path) -> None:
    for name in ("ucall.js", "ucall.d.ts", "package.json"):
        (tmp_path / name).write_text(MODULE.with_name(name).read_text())
    document = Document(schema.describe(typed_server.server).openrpc())
    (tmp_path / "stubs.d.ts").write_text(typescript_declarations(document))
    _compile(tmp_path, {"noEmit": True}, tmp_path / "stubs.d.ts")


def test_the_types_of_a_described_server(tmp_path: Path) -> None:
    for name in ("ucall.js", "ucall.d.ts", "package.json"):
        (tmp_path / name).write_text(MODULE.with_name(name).read_text())
    declarations = typescript_declarations(Document(KINDS_DOCUMENT))
    (tmp_path / "stubs.d.ts").write_text(declarations)
    program = tmp_path / "program.ts"
    program.write_text(Path(__file__).with_name("stubs.ts").read_text())
    _compile(tmp_path, {"noEmit": True}, program, tmp_path / "stubs.d.ts")


def test_pyright_accepts_typed_clients(tmp_path: Path) -> None:
    (tmp_path / "kinds.py").write_text(python_client(Document(KINDS_DOCUMENT)))
    document = Document(schema.describe(typed_server.server).openrpc())
    (tmp_path / "served.py").write_text(python_client(document))
    settings = {"typeCheckingMode": "strict", "include": ["*.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [system_node(), package("pyright") / "index.js", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout
