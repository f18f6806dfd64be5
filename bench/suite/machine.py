"""The machine, and the versions of all measured software, for the results."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench import OUTPUT, ROOT
from bench.harness import processes
from bench.suite.servers import PEERS, PYTHON

PYTHON_PACKAGES = (
    *("fastapi", "uvicorn", "uvloop", "httptools", "pydantic", "grpcio", "litestar", "litserve"),
    *("blacksheep", "aiohttp", "granian", "robyn", "socketify", "msgspec"),
)
RUST_PACKAGES = ("actix-web", "jsonrpsee", "ntex", "serde_json")
DEBIAN_PACKAGES = ("libcapnp-dev", "libgrpc++-dev", "libh2o-evloop-dev", "libsimdjson-dev")
UWEBSOCKETS = OUTPUT / "uWebSockets"
#: Commands that print a version, and a pattern that finds the version in their output.
TOOLS = {"wrk": ["wrk", "-v"], "h2load": ["h2load", "--version"], "gcc": ["gcc", "-dumpversion"]}


def output_of(command: list[str]) -> str:
    """The command's output, or "" if the command is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def describe() -> dict:
    server_core, load_core = processes.cores()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "kernel": platform.release().partition("-")[0],
        "architecture": platform.machine(),
        "is_virtual": " hypervisor" in Path("/proc/cpuinfo").read_text(),
        "server_core": server_core,
        "load_core": load_core,
        "versions": versions(),
    }


def commit() -> str:
    return output_of(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]).strip()


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    found = {"ucall": metadata.version("ucall-rpc"), "CPython": platform.python_version()}
    found["Rust"] = first_version(output_of(["rustc", "--version"]))
    for name, command in TOOLS.items():
        found[name] = first_version(output_of(command))
    found |= pip_versions(PYTHON, PYTHON_PACKAGES)
    found |= cargo_versions(PEERS / "rust/Cargo.lock")
    found["uWebSockets"] = output_of(["git", "-C", str(UWEBSOCKETS), "describe", "--tags"]).strip()
    for package in DEBIAN_PACKAGES:
        found[package] = output_of(["dpkg-query", "-W", "-f", "${Version}", package]).strip()
    return {name: version for name, version in found.items() if version and " " not in version}


def first_version(text: str) -> str:
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else ""


def pip_versions(python: Path, packages: Iterable[str]) -> dict[str, str]:
    listed = output_of([str(python), "-m", "pip", "list", "--format", "json"])
    try:
        installed = {each["name"].lower(): each["version"] for each in json.loads(listed)}
    except ValueError:
        return {}
    return {name: installed[name] for name in packages if name in installed}


def cargo_versions(lock: Path) -> dict[str, str]:
    text = lock.read_text() if lock.exists() else ""
    found = dict(re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"', text))
    return {name: found[name] for name in RUST_PACKAGES if name in found}


def text(machine: dict) -> str:
    """One line about it."""
    virtual = "virtual machine" if machine["is_virtual"] else "machine"
    versions = machine["versions"]
    return (
        f"{machine['date']}, commit {machine['commit']}: {machine['cpus']}-core {virtual} "
        f"({machine['cpu']}, {machine['memory_gb']} GB, Linux {machine['kernel']}, "
        f"{machine['architecture']}), CPython {versions['CPython']}, Rust {versions['Rust']}; "
        f"server on core {machine['server_core']}, load on core {machine['load_core']}"
    )
