"""Refuses dependencies under licences that are not allowed.

    python tools/check-licences.py

Reads `cargo metadata` of the locked dependencies for all platforms. An SPDX expression is accepted
if it can be satisfied by licences in ALLOWED.
"""

import json
import re
import subprocess
import sys

ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}


def packages() -> list[dict]:
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features=full"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output)["packages"]


def tokens_of(expression: str) -> list[str]:
    """Old crates write a slash for OR."""
    joined = expression.replace("/", " OR ")
    joined = re.sub(r"\s+WITH\s+", "\x00", joined)
    return [token.replace("\x00", " WITH ") for token in re.findall(r"[()]|[^\s()]+", joined)]


def is_allowed(expression: str) -> bool:
    tokens = tokens_of(expression)
    allowed = any_of(tokens)
    if tokens:
        raise ValueError(f"not an SPDX expression: {expression}")
    return allowed


def any_of(tokens: list[str]) -> bool:
    """Parses `a OR b`, and removes its tokens from the list."""
    allowed = all_of(tokens)
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        allowed = all_of(tokens) or allowed
    return allowed


def all_of(tokens: list[str]) -> bool:
    """Parses `a AND b`, which binds more tightly than OR."""
    allowed = operand(tokens)
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        allowed = operand(tokens) and allowed
    return allowed


def operand(tokens: list[str]) -> bool:
    if not tokens:
        raise ValueError("an SPDX expression ends early")
    token = tokens.pop(0)
    if token != "(":
        return token in ALLOWED
    allowed = any_of(tokens)
    if not tokens or tokens.pop(0) != ")":
        raise ValueError("a bracket is not closed in an SPDX expression")
    return allowed


def refused(package: dict) -> str | None:
    """The complaint about a package, or None."""
    licence = package["license"]
    name = f"{package['name']} {package['version']}"
    if not licence:
        return f"{name}: no licence is stated"
    return None if is_allowed(licence) else f"{name}: {licence}"


def main() -> None:
    found = packages()
    complaints = [complaint for package in found if (complaint := refused(package))]
    if complaints:
        sys.exit("\n".join(["Licences that are not in ALLOWED:", *complaints]))
    print(f"licences: {len(found)} packages, all allowed")


main()
