"""Writes docs/c-reference.md from include/ucall/ucall.h."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "include/ucall/ucall.h"
PAGE = ROOT / "docs/c-reference.md"
INTRODUCTION = """# Reference of the C library

All types and functions of `include/ucall/ucall.h`, by subject, with the header's comments.
[C and C++](c.md) is the guide.
"""
#: The subjects, in the page's order, with what their names have in common. The first one that fits
#: counts, from the last one on; the first has all others.
SUBJECTS = {
    "The server": "",
    "Params": r"_param_|_value_|_type_t|_call_params",
    "Arrays and bytes": r"_dtype_|_buffer",
    "Replies": r"_reply_(?!buffer)|_writer_|_call_warn",
    "The caller": r"_request_|_peer|_transport|_method|_is_not|_call_(user|header|meta)|auth_cal",
    "Deferred calls": r"_defer|_release|_is_cancelled|_deadline",
    "Streams and messages": r"_notify|_overflow|subscribe|_publish|_item|_room_|_stream",
    "The store": r"_store",
}
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


def narrow(block: str) -> str:
    """The block, whose paragraphs of comments fit in a page without scrolling."""

    def fill(found: re.Match[str]) -> str:
        margin = found["margin"]
        text = " ".join(line.strip(" *") for line in found[0].splitlines())
        return textwrap.fill(text, 84, initial_indent=margin, subsequent_indent=margin) + "\n"

    return re.sub(r"^(?P<margin> *\* )\w.*\n(?:(?P=margin)[\w`(].*\n)+", fill, block, flags=re.M)


def subject_of(name: str) -> str:
    return next(it for it, pattern in reversed(SUBJECTS.items()) if re.search(pattern, name))


def page() -> str:
    parts: dict[str, list[str]] = {subject: [] for subject in SUBJECTS}
    header = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", HEADER.read_text(), flags=re.S | re.M)
    for block in blocks(header):
        declared = names(block)
        if declared and DECLARATION.search(re.sub(r"/\*.*?\*/\n?", "", block, flags=re.S)):
            title = ", ".join(f"`{name}`" for name in declared)
            text = f"### {title}\n\n```c\n{narrow(block)}\n```\n"
            parts[subject_of(declared[0])].append(text)
    sections = [f"## {subject}\n\n" + "\n".join(texts) for subject, texts in parts.items()]
    return "\n".join([INTRODUCTION, *sections])


if __name__ == "__main__":
    PAGE.write_text(page())
