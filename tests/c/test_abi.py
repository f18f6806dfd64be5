"""Programs that were built against the last release still work: abidiff compares the headers."""

import re
import subprocess
from pathlib import Path

import pytest
from programs import require

import harness

HEADER = (harness.INCLUDE / "ucall/ucall.h").read_text()
#: Fields may be added at the end of these, because the program passes their size.
GROWING = ("ucall_config_t", "ucall_stats_t", "ucall_store_config_t", "ucall_peer_t")
SUPPRESSION = f"[suppress_type]\nname_regexp = ^({'|'.join(GROWING)})$\n"


@pytest.fixture
def abidiff() -> str:
    return require("abidiff")


def library_of(header: str, folder: Path) -> Path:
    """A shared library whose functions have the types of the header, and do nothing."""
    (folder / "ucall").mkdir(parents=True)
    (folder / "ucall/ucall.h").write_text(header)
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    found = re.findall(r"^((?!typedef)\w[\w *]*\bucall_\w+\([^;{}]*\));", code, re.M)
    bodies = "".join(f"{function} {{ __builtin_trap(); }}\n" for function in found)
    (folder / "stub.c").write_text(f"#include <ucall/ucall.h>\n{bodies}")
    flags = ["-g", "-Og", "-w", "-fPIC", "-shared", "-I", folder]
    harness.run(["cc", *flags, folder / "stub.c", "-o", folder / "libucall.so"])
    return folder / "libucall.so"


def fields_of(header: str, folder: Path) -> set[str]:
    """The offset and size of each field of the types that may grow."""
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    lines = []
    for name in GROWING:
        body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", code, re.S)[1]
        for field in re.findall(r"(\w+);", body):
            place = f"offsetof({name}, {field}), sizeof((({name} *)0)->{field})"
            lines.append(f'printf("{name}.{field} at %zu has %zu\\n", {place});')
    program = "#include <stdio.h>\n#include <ucall/ucall.h>\nint main(void) {\n"
    (folder / "fields.c").write_text(program + "\n".join(lines) + "}\n")
    harness.run(["cc", "-I", folder, folder / "fields.c", "-o", folder / "fields"])
    return set(harness.run([folder / "fields"]).splitlines())


def breaks(abidiff: str, folder: Path, before: str, after: str) -> str:
    """What breaks programs that were built against the header before; empty if nothing does."""
    libraries = [library_of(before, folder / "before"), library_of(after, folder / "after")]
    (folder / "growing").write_text(SUPPRESSION)
    options = ["--no-added-syms", "--suppressions", folder / "growing"]
    done = subprocess.run([abidiff, *options, *libraries], capture_output=True, text=True)
    moved = fields_of(before, folder / "before") - fields_of(after, folder / "after")
    return "\n".join(moved) + (done.stdout if done.returncode else "")


def test_the_last_release_is_compatible(abidiff, tmp_path):
    tag = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*"]
    last = subprocess.run(tag, cwd=harness.ROOT, capture_output=True, text=True)
    if last.returncode:
        pytest.skip("no version has been released yet")
    show = ["git", "show", f"{last.stdout.strip()}:include/ucall/ucall.h"]
    assert not breaks(abidiff, tmp_path, harness.run(show, cwd=harness.ROOT), HEADER)


def test_the_same_header_is_compatible(abidiff, tmp_path):
    assert not breaks(abidiff, tmp_path, HEADER, HEADER)


def test_a_new_field_at_the_end_is_compatible(abidiff, tmp_path):
    for name in GROWING:
        after = HEADER.replace(f"}} {name};", f"    size_t one_more;\n}} {name};")
        assert after != HEADER and not breaks(abidiff, tmp_path / name, HEADER, after)


@pytest.mark.parametrize(
    "before, after",
    [
        ("void ucall_stop(ucall_server_t server);", ""),
        ("reply_i64(ucall_call_t call, int64_t", "reply_i64(ucall_call_t call, int"),
        ("    uint16_t port;\n    /* The length", "    uint32_t port;\n    /* The length"),
    ],
)  # fmt: skip
def test_an_incompatible_header_is_detected(abidiff, tmp_path, before, after):
    assert HEADER.count(before) == 1
    assert breaks(abidiff, tmp_path, HEADER, HEADER.replace(before, after))
