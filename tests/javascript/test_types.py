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
    # Those of the browser, which are not ours, take half of the time.
    "skipDefaultLibCheck": True,
}


def _compile(folder: Path, options: dict[str, object], *files: Path) -> None:
    settings = {"compilerOptions": {**OPTIONS, **options}, "files": [str(file) for file in files]}
    (folder / "tsconfig.json").write_text(json.dumps(settings))
    compiler = package("typescript") / "bin" / "tsc"
    command = [system_node(), compiler, "--project", folder / "tsconfig.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout


def _copy_sources(folder: Path) -> None:
    for name in ("ucall.js", "ucall.d.ts", "package.json"):
        (folder / name).write_text(MODULE.with_name(name).read_text())


def test_the_comments_and_the_declarations_agree(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    _copy_sources(sources)
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


def test_the_types_of_servers(tmp_path: Path) -> None:
    """Of a real one with every kind of type, and of a described one, which a program calls."""
    _copy_sources(tmp_path)
    served = Document(schema.describe(typed_server.server).openrpc())
    (tmp_path / "served.d.ts").write_text(typescript_declarations(served))
    described = typescript_declarations(Document(KINDS_DOCUMENT))
    (tmp_path / "stubs.d.ts").write_text(described)
    program = tmp_path / "program.ts"
    program.write_text(Path(__file__).with_name("stubs.ts").read_text())
    files = (program, tmp_path / "stubs.d.ts", tmp_path / "served.d.ts")
    _compile(tmp_path, {"noEmit": True}, *files)


def test_pyright_accepts_typed_clients(tmp_path: Path) -> None:
    (tmp_path / "kinds.py").write_text(python_client(Document(KINDS_DOCUMENT)))
    document = Document(schema.describe(typed_server.server).openrpc())
    (tmp_path / "served.py").write_text(python_client(document))
    settings = {"typeCheckingMode": "strict", "include": ["*.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [system_node(), package("pyright") / "index.js", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout
