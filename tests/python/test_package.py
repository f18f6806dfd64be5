"""The installed package: types, licences, and two commands."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import ucall
from ucall import _core

DISTRIBUTION = "ucall-rpc"


def test_the_package_is_typed() -> None:
    folder = Path(ucall.__file__).parent
    assert (folder / "py.typed").is_file()
    assert (folder / "_core.pyi").is_file()


def test_the_client_for_javascript_and_the_explorer_page_are_included() -> None:
    folder = Path(ucall.__file__).parent / "static"
    names = ["explorer.html", "package.json", "ucall.d.ts", "ucall.js"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_third_party_licences_are_included() -> None:
    files = metadata.files(DISTRIBUTION) or []
    [ours] = [file for file in files if file.name == "LICENSE"]
    [others] = [file for file in files if file.name == "LICENSE-THIRD-PARTY"]
    assert "Apache License" in ours.read_text()
    for name in ("rustls", "pyo3", "simdutf", "aws-lc-sys"):
        assert name in others.read_text()


def test_the_compiled_crates_are_listed() -> None:
    """As CycloneDX, in the folder of PEP 770."""
    [listed] = [file for file in metadata.files(DISTRIBUTION) or [] if file.parent.name == "sboms"]
    contents = json.loads(listed.read_text())
    assert contents["bomFormat"] == "CycloneDX"
    names = {component["name"] for component in contents["components"]}
    assert {"rustls", "pyo3", "aws-lc-sys", "ucall-proto"} <= names


def test_the_metadata_is_complete() -> None:
    found = metadata.metadata(DISTRIBUTION)
    assert found["Version"] == ucall.__version__
    assert found["License-Expression"] == "Apache-2.0"
    commands = {"ucall": "ucall.cli:main", "ucall-xdp-setup": "ucall._workers.xdp_setup:main"}
    for name, value in commands.items():
        [command] = metadata.entry_points(group="console_scripts", name=name)
        assert command.value == value
    plain = [need for need in metadata.requires(DISTRIBUTION) or [] if "extra ==" not in need]
    assert plain == []


PUBLIC = ("Context", "TLSConnection", "Certificate", "Message", "Receipt", "QueueCore")


def test_stubs_match_the_core() -> None:
    """Editors show the docstrings of the stubs."""
    stubs = ast.parse((Path(ucall.__file__).parent / "_core.pyi").read_text())
    classes = {node.name: node for node in stubs.body if isinstance(node, ast.ClassDef)}
    for name in PUBLIC:
        kind = getattr(_core, name)
        assert _words(ast.get_docstring(classes[name])) == _words(kind.__doc__), name
        # An overload of a method has its docstring.
        docs: dict[str, str | None] = {}
        for member in classes[name].body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                docs[member.name] = docs.get(member.name) or ast.get_docstring(member)
        for method, doc in docs.items():
            assert _words(doc) == _words(getattr(kind, method).__doc__) != [], method


def _words(text: str | None) -> list[str]:
    return (text or "").split()


def test_submodules_are_imported_on_demand() -> None:
    program = """
import sys
import ucall

heavy = {"asyncio", "ssl", "ucall.aio", "ucall.client", "ucall.queue", "ucall.uring"}
print(*heavy & set(sys.modules))
names = ["aio", "auth", "client", "posix", "queue", "rich_posix", "rich_uring", "uring"]
print(set(names) <= set(dir(ucall)), "Server" in dir(ucall))
print([getattr(ucall, name).__name__ for name in names] == [f"ucall.{name}" for name in names])
print(ucall.aio.queue.new is not ucall.queue.new, "queue" in dir(ucall.aio))
for package, name in [(ucall, "urin"), (ucall.aio, "queues"), (ucall, "_nothing")]:
    try:
        getattr(package, name)
    except AttributeError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "",
        "True True",
        "True",
        "True True",
        "module 'ucall' has no attribute 'urin'",
        "module 'ucall.aio' has no attribute 'queues'",
        "module 'ucall' has no attribute '_nothing'",
    ]


def test_lazy_submodules_match_the_type_checkers() -> None:
    """Modules that are imported on demand are listed twice."""
    for package in (ucall, ucall.aio):
        tree = ast.parse(Path(package.__file__ or "").read_text())
        [choice] = [node for node in tree.body if isinstance(node, ast.If) and node.orelse]
        imported = {
            alias.asname
            for node in choice.body
            if isinstance(node, ast.ImportFrom) and node.module == package.__name__
            for alias in node.names
        }
        [call] = [node for node in ast.walk(choice) if isinstance(node, ast.Call)]
        named = {it.value for it in call.args if isinstance(it, ast.Constant)}
        assert imported == named != set()
