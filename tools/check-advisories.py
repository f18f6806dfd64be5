"""Checks the dependencies of builds and tests for known vulnerabilities. Standard library only.

    python tools/check-advisories.py

Runs pip-audit on .venv and cargo-audit on Cargo.lock. If a database of advisories cannot be
reached, or cargo-audit is not installed, it prints that and continues without a verdict. A known
vulnerability is an error. `check-licences.py` checks licences.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "Cargo.lock"
TIMEOUT_S = 120
# Messages of the tools for a network failure.
UNREACHABLE = (
    "couldn't fetch advisory database",
    "failed to fetch",
    "Could not resolve host",
    "ConnectionError",
    "Failed to connect",
    "Failed to upgrade `pip`",
    "HTTPError",
    "Max retries exceeded",
    "ServiceError",
)


def run(command: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, "Failed to connect in time"
    return done.returncode, done.stdout + done.stderr


def verdict(what: str, command: list[str]) -> bool:
    """Prints the findings; returns whether the check passes."""
    code, text = run(command)
    if code == 0:
        print(f"{what}: no known vulnerabilities")
        return True
    if any(sign in text for sign in UNREACHABLE):
        print(f"{what}: NOT CHECKED, the advisories cannot be reached from here")
        return True
    print(f"{what}:\n{text}")
    return False


def main() -> None:
    pip_audit = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable"]
    good = [verdict("Python packages", [*pip_audit, "--progress-spinner", "off"])]
    if shutil.which("cargo-audit") is None:
        print("Cargo.lock: NOT CHECKED, needs cargo-audit: cargo install --locked cargo-audit")
    else:
        command = ["cargo", "audit", "--quiet", "--file", str(LOCK)]
        good.append(verdict("Cargo.lock", command))
    if not all(good):
        sys.exit("advisories: see above")


main()
