"""Refuses files that import each other in a circle. Standard library only.

    python tools/check-cycles.py

A file imports another if it names it: in Rust by `use crate::…`, `use super::…` or such a path in
code, in Python by `import` and `from`, also within a function and for types alone. A Rust path
refers to the deepest module that has a file. A parent that declares and re-exports its children is
no circle, so a path to an ancestor refers to the file that defines the name, if the ancestor's
`pub use` shows it. Tests do not count.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Graph = dict[Path, set[Path]]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TESTS = re.compile(r"#\[cfg\((?:all\()?test.*", re.DOTALL)
_VISIBILITY = re.compile(r"\bpub\([^)]*\)")
_PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)*(?:::\{|::\*)?")
_USE = re.compile(r"(?:pub )?use ([^;]+);", re.DOTALL)


def rust_modules(source: Path) -> dict[tuple[str, ...], Path]:
    """The files of a crate by their module paths."""
    modules = {}
    for path in source.rglob("*.rs"):
        parts = path.relative_to(source).with_suffix("").parts
        modules[parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts] = path
    return modules


def expanded(use: str) -> Iterator[str]:
    """The single paths of a `use` with braces."""
    use = re.sub(r"\s+", " ", use.strip())
    start = use.find("{")
    if start < 0:
        yield re.sub(r" as \w+$", "", use)
        return
    depth, item, head = 0, "", use[:start]
    for character in use[start + 1 : use.rfind("}")]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield from expanded(head + item.strip())
            item = ""
        else:
            item += character
    if item.strip():
        yield from expanded(head + item.strip())


def absolute(path: str, module: tuple[str, ...]) -> tuple[str, ...] | None:
    """A path from the crate's root; `None` for a path to another crate."""
    parts = [part.strip() for part in path.split("::")]
    if parts[0] == "crate":
        return tuple(parts[1:])
    if parts[0] not in ("super", "self"):
        return None
    base = list(module)
    while parts and parts[0] in ("super", "self"):
        if parts.pop(0) == "super":
            base = base[:-1]
    return (*base, *parts)


def exports(module: tuple[str, ...], code: str) -> dict[str, tuple[str, ...]]:
    """The paths of the names that a module re-exports."""
    found = {}
    for match in _USE.finditer(code):
        for path in expanded(match[1]):
            parts = path.split("::")
            target = absolute(path, module) or (*module, *parts)
            found[parts[-1]] = target
    return found


def resolved(
    target: tuple[str, ...],
    modules: dict[tuple[str, ...], Path],
    exported: dict[tuple[str, ...], dict[str, tuple[str, ...]]],
    depth: int = 0,
) -> Path | None:
    """The file that a path from the crate's root refers to."""
    for length in range(len(target), -1, -1):
        if target[:length] in modules:
            rest = target[length:]
            onward = exported[target[:length]].get(rest[0]) if rest else None
            if onward and depth < 8 and onward != target:
                return resolved((*onward, *rest[1:]), modules, exported, depth + 1)
            return modules[target[:length]]
    return None


def rust_graph(source: Path) -> Graph:
    modules = rust_modules(source)
    codes = {}
    for module, path in modules.items():
        text = _TESTS.sub("", _COMMENT.sub("", path.read_text(encoding="utf-8")))
        # `pub(super)` names a scope and imports nothing.
        codes[module] = _VISIBILITY.sub("pub", text)
    exported = {module: exports(module, code) for module, code in codes.items()}
    graph: Graph = {path: set() for path in modules.values()}
    for module, code in codes.items():
        paths = [path for match in _USE.finditer(code) for path in expanded(match[1])]
        paths += [match[0] for match in _PATH.finditer(_USE.sub("", code))]
        for path in paths:
            target = absolute(path.removesuffix("::*").removesuffix("::{"), module)
            found = resolved(target, modules, exported) if target is not None else None
            own = modules[module]
            if found and found != own and not is_declared(own, found, modules, module):
                graph[own].add(found)
    return graph


def is_declared(
    own: Path, found: Path, modules: dict[tuple[str, ...], Path], module: tuple[str, ...]
) -> bool:
    """Whether a module declares the module that it names."""
    names = {path: name for name, path in modules.items()}
    return names[found][: len(module)] == module and own != found


def python_graph(source: Path) -> Graph:
    package = source.name
    files = {}
    for path in source.rglob("*.py"):
        parts = (package, *path.relative_to(source).with_suffix("").parts)
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: Graph = {path: set() for path in files.values()}
    for name, path in files.items():
        for target in python_imports(path):
            found = files.get(target) or files.get(target.rpartition(".")[0])
            # A package that re-exports what its modules define is no circle.
            if found and found != path and not target.startswith(f"{name}."):
                graph[path].add(found)
    return graph


def python_imports(path: Path) -> Iterator[str]:
    """The modules that a module imports, whenever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def circles(graph: Graph) -> list[list[Path]]:
    """The strongly connected components of more than one file (Tarjan)."""
    found: list[list[Path]] = []
    order: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []

    def visit(path: Path) -> None:
        order[path] = low[path] = len(order)
        stack.append(path)
        for target in sorted(graph.get(path, ())):
            if target not in order:
                visit(target)
                low[path] = min(low[path], low[target])
            elif target in stack:
                low[path] = min(low[path], order[target])
        if low[path] == order[path]:
            at = stack.index(path)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                found.append(sorted(group))

    for path in sorted(graph):
        if path not in order:
            visit(path)
    return found


def main() -> None:
    graphs = [rust_graph(source) for source in sorted((ROOT / "crates").glob("*/src"))]
    graphs.append(python_graph(ROOT / "python" / "ucall"))
    found = [group for graph in graphs for group in circles(graph)]
    for group in found:
        print("circle:", ", ".join(str(path.relative_to(ROOT)) for path in group))
    if found:
        sys.exit(1)
    print(f"no circles among {sum(map(len, graphs))} files")


if __name__ == "__main__":
    main()
