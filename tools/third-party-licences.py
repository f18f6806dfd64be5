"""Writes LICENSE-THIRD-PARTY: the licences of all code in the package and the C library.

    python tools/third-party-licences.py [--check]

These licences require their notices in every copy. Reads the sources of the locked dependencies,
for the systems that the package is built for; macros and build dependencies are not in a copy.
`--check` writes nothing, and fails if the file is out of date.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

NOTICES = Path("LICENSE-THIRD-PARTY")
OURS = ("ucall-python", "ucall-capi")
SYSTEMS = (
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-apple-darwin",
)
HEAD = """\
ucall is under the Apache License 2.0: see LICENSE. It contains the following, each under the
licence behind its name; the standard library of Rust, by the Rust project's developers, and the C++
of simdutf, by the simdutf authors, both under the Apache License 2.0. Written by `make licences`.
"""
LINE = "=" * 80
#: Notices of C code within a package, beside its own.
BUNDLED = {
    "lmdb-master-sys": [
        "lmdb/libraries/liblmdb/COPYRIGHT",
        "lmdb/libraries/liblmdb/LICENSE",
    ]
}


def metadata(system: str) -> dict:
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features=full"]
    command += ["--filter-platform", system]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def contained(found: dict) -> list[dict]:
    """The dependencies whose code is in our package."""
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    waiting = [id for id, package in packages.items() if package["name"] in OURS]
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            id, kinds = dependency["pkg"], dependency["dep_kinds"]
            is_linked = any(kind["kind"] is None for kind in kinds) and not is_macro(packages[id])
            if is_linked and id not in seen:
                seen.add(id)
                waiting.append(id)
    return [packages[id] for id in seen if packages[id]["source"]]


def is_macro(package: dict) -> bool:
    return any("proc-macro" in target["kind"] for target in package["targets"])


def texts(package: dict) -> list[str]:
    """The notices in a package; of alternative licences, the one that names the authors."""
    folder = Path(package["manifest_path"]).parent
    named = re.compile(r"(?i)(licen[cs]e|copying|copyright|notice|unlicense)")
    files = sorted(path for path in folder.iterdir() if named.match(path.name) and path.is_file())
    chosen = [path for path in files if re.search(r"(?i)[-_.]mit", path.name)]
    is_choice = (
        re.search(r"\bMIT\b", package["license"] or "") and " AND " not in package["license"]
    )
    if is_choice and chosen:
        files = chosen
    files += [folder / path for path in BUNDLED.get(package["name"], [])]
    return [path.read_text(errors="replace").replace("\r\n", "\n").strip() for path in files]


def notices() -> str:
    found = {
        (it["name"], it["version"]): it for system in SYSTEMS for it in contained(metadata(system))
    }
    names: dict[str, set[str]] = {}
    for (name, _), package in sorted(found.items()):
        stated = f"{package['license']} (as its manifest says; by {', '.join(package['authors'])})"
        for text in texts(package) or [stated]:
            names.setdefault(text, set()).add(name)
    parts = [f"{LINE}\n{', '.join(sorted(who))}\n{LINE}\n\n{text}\n" for text, who in names.items()]
    return "\n".join([HEAD, *parts])


def main() -> None:
    written = notices()
    if "--check" not in sys.argv[1:]:
        NOTICES.write_text(written)
    elif not NOTICES.exists() or NOTICES.read_text() != written:
        sys.exit(f"{NOTICES} is older than Cargo.lock: make licences")


main()
