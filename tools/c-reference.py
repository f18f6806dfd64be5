"""Writes docs/c-reference.md from include/ucall/ucall.h."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "include/ucall/ucall.h"
PAGE = ROOT / "docs/c-reference.md"
INTRODUCTION = """# Reference of the C library

Here you can look up all types and functions of `include/ucall/ucall.h`, in its order and with its
comments. [c.md](c.md) is the guide. `make docs` writes this page.
"""
DECLARATION = re.compile(r"^(typedef|#define UCALL_|\w[\w *]*\bucall_)")


def blocks(header: str) -> list[str]:
    """The parts of the header between empty lines outside of comments and braces."""
    found: list[str] = []
    lines: list[str] = []
    depth, in_comment = 0, False
    for line in header.splitlines():
        in_comment = (in_comment or "/*" in line) and "*/" not in line.rpartition("/*")[2]
        if not in_comment and not line.lstrip().startswith(("/*", "*")):
            depth += line.count("{") - line.count("}")
        if line or depth or in_comment:
            lines.append(line)
        elif lines:
            found.append("\n".join(lines))
            lines = []
    return [*found, "\n".join(lines)]


def names(block: str) -> list[str]:
    """The types, constants and functions that a block declares."""
    found = []
    code = re.sub(r"/\*.*?\*/", "", block, flags=re.S)
    code = re.sub(r"{.*?}", "{}", code, flags=re.S)
    for statement in re.split(r";\n|\n(?=#)", code + "\n"):
        function = re.search(r"\(\*(ucall_\w+)\)\(|\b(ucall_\w+)\(", statement)
        other = re.search(r"#define (UCALL_\w+)|\b\**(ucall_\w+);?\s*$", statement.strip())
        if name := function or other:
            found.append(name[1] or name[2])
    return found


def page() -> str:
    parts = [INTRODUCTION]
    header = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", HEADER.read_text(), flags=re.S | re.M)
    for block in blocks(header):
        declared = names(block)
        if declared and DECLARATION.search(re.sub(r"/\*.*?\*/\n?", "", block, flags=re.S)):
            title = ", ".join(f"`{name}`" for name in declared)
            parts.append(f"## {title}\n\n```text\n{block}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
