"""tools/check-options.py names each place that differs from python/ucall/options.py."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS, PAGE = "python/ucall/options.py", "docs/limits.md"
BINDING, C_CONFIG = "crates/ucall-python/src/options.rs", "crates/ucall-capi/src/config.rs"
HEADER, SERVER = "include/ucall/ucall.h", "crates/ucall-server/src/config.rs"
DECORATORS, CLIENT = "python/ucall/_server/decorators.py", "python/ucall/client.py"
CHECK = "tools/check-options.py"
#: Further files that the check reads.
OTHERS = [
    "README.md",
    "crates/ucall-proto/src/http1/parser.rs",
    "crates/ucall-proto/src/limits.rs",
    "crates/ucall-store/src/options.rs",
    "python/ucall/_client/base.py",
    "python/ucall/_client/inbox.py",
    "python/ucall/_core.pyi",
    DECORATORS,
    "python/ucall/_server/function_decorators.py",
    "python/ucall/aio/__init__.py",
    CLIENT,
    "python/ucall/queue/core/options.py",
    "python/ucall/static/ucall.js",
    "python/ucall/store/__init__.py",
    CHECK,
]


def check(root: Path) -> str:
    """What the program prints, without a process of its own for each place."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(str(root / CHECK), run_name="__main__")
        except SystemExit as end:
            print(end.code)
    return printed.getvalue()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the check reads."""
    root = tmp_path_factory.mktemp("tree")
    pages = (str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md"))
    for name in (OPTIONS, BINDING, C_CONFIG, HEADER, SERVER, *OTHERS, *pages):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


def test_all_places_agree() -> None:
    assert check(ROOT).startswith("options: ")


@pytest.mark.parametrize(
    ("file", "before", "after", "expected"),
    [
        # The core.
        (OPTIONS, "max_parts: int = 1_024", "max_parts: int = 1_025", "got 1,024"),
        (OPTIONS, "head_timeout_s: float = 10.0", "head_timeout_s: float = 9.5", "default 9.5 of"),
        (
            OPTIONS,
            "    max_pipeline: int =",
            "    max_new: int = 1\n    max_pipeline: int =",
            "max_new: ",
        ),
        (BINDING, '("max_id_bytes"', '("max_ids"', "max_ids: no option of"),
        (BINDING, "&mut limits.id_bytes_max", "&mut limits.meta_bytes_max", "max_id_bytes: "),
        (BINDING, "Time(&mut limits.head_t", "Count(&mut limits.head_t", "expected Delay or Time"),
        (BINDING, "threads_max: 128", "threads_max: 129", "expected the default 128 of"),
        (SERVER, "dedupe_bytes_max: 64 << 20", "dedupe_bytes_max: 64 << 10", "got 65,536"),
        (SERVER, "TOPIC_BYTES_MAX: usize = 256", "TOPIC_BYTES_MAX: usize = 257", "got 257"),
        ("crates/ucall-proto/src/http1/parser.rs", "headers_max: 100", "headers_max: 9", "got 9"),
        ("crates/ucall-proto/src/limits.rs", "from_secs(75)", "from_millis(75)", "got 0.075"),
        # The C API.
        (HEADER, "one connection. Default: 128", "one connection. Default: 129", "got 129"),
        (HEADER, "Pipelined requests of one connection. Default: 128", "Pipelined", "got none in"),
        (
            HEADER,
            "Text of the member _meta of a request. Default: 4 KiB",
            "4 KiB",
            "max_meta_bytes",
        ),
        (HEADER, "size_t max_id_bytes", "size_t max_ids", "max_ids: expected a row"),
        (
            HEADER,
            "are\n     * dropped, and get -32006",
            "are\n     * dropped, and get -32005",
            "-32006",
        ),
        (HEADER, "The most procedures. Default: 1,024", "Default: 1,023", "max_procedures"),
        (
            C_CONFIG,
            "RUNNING_CALLS_MAX: usize = 10_000",
            "RUNNING_CALLS_MAX: usize = 9_000",
            "10,000",
        ),
        (
            C_CONFIG,
            "&mut limits.parts_max",
            "&mut limits.pipeline_max",
            "expected limits.parts_max",
        ),
        (C_CONFIG, "(&mut self.max_parts, &mut limits.parts_max),", "", "max_parts: no default in"),
        # A store.
        ("crates/ucall-store/src/options.rs", "16 << 20", "16 << 10", "got 16,384"),
        (HEADER, "one value; 16 MiB", "one value; 16 KiB", "got 16,384"),
        (
            "docs/store.md",
            "`max_watch_bytes` (64 MiB)",
            "`max_watch_bytes` (1 MiB)",
            "got 1,048,576",
        ),
        # The pages.
        (PAGE, "`max_id_bytes` | 1,024", "`max_id_bytes` | 1,023", "got 1,023"),
        (PAGE, "`max_id_bytes` | 1,024 | -32600", "`max_id_bytes` | 1,024 | -32601", "-32600 past"),
        (PAGE, "`max_threads`, not in C", "`max_threads`", "has no field max_threads"),
        (PAGE, "`max_headers` |", "`max_headers`, not in C |", "has a field max_headers"),
        (PAGE, "| none: nothing is refused |", "| none |", "and why; got none"),
        (PAGE, "| headers of a request |", "| headers | x", "expected a row"),
        (PAGE, "`request.form`, not in C | 1,048,576", "`request.form` | 1", "max_text_bytes: "),
        (PAGE, "`max_connections_per_peer` and, in C", "in C", "among the options that are off"),
        ("docs/relay.md", "| `max_failures` | 5", "| `max_failures` | 6", "got 6"),
        (DECORATORS, "max_failures: int", "failures_max: int", "max_failures: no option of"),
        (CLIENT, "max_reply_bytes: int = REPLY_BYTES_MAX", "max_reply_bytes: int = 1", "client.py"),
        ("docs/queues.md", "`expire_s` (30)", "`expire_s` (31)", "got 31"),
        ("docs/compression.md", "`min_bytes` (1,024)", "`min_bytes` (1,025)", "got 1,025"),
        ("docs/compression.md", "`max_bytes` (4 MiB)", "`max_bytes` (4 KiB)", "got 4,096"),
        ("docs/javascript.md", "Bytes` | 1 MiB", "Bytes` | 2 MiB", "static/ucall.js"),
        (CHECK, r"(?:^\| `(\w+)` \| |", r"(?:^\| ´(\w+)´ \| |", "defaults beside names"),
        ("docs/client.md", "`max_reply_bytes`, 64 MiB", "`max_reply_bytes`, 4 MiB", "aio/__init__"),
        ("docs/udp.md", "`max_source_calls` (64)", "`max_source_calls` (65)", "got 65"),
        ("docs/udp.md", "`max_dedupe_bytes` (64 MiB)", "`max_dedupe_bytes` (64 KiB)", "got 65,536"),
    ],
)
def test_a_place_that_differs_is_named(
    tree: Path, file: str, before: str, after: str, expected: str
) -> None:
    text = (ROOT / file).read_text()
    assert before in text
    (tree / file).write_text(text.replace(before, after, 1))
    problems = check(tree)
    (tree / file).write_text(text)
    assert re.match(r"[\w./-]+:\d+: ", problems) and expected in problems
