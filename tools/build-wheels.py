"""Builds and checks the wheels of a release. Run by `make wheels`.

    python tools/build-wheels.py [--targets TARGET …] [--pythons 3.11 …] [--out dist]

maturin builds for every version of Python that pyproject.toml names, without its interpreter; for
Linux zig compiles C and links against the oldest C library that the wheel's tag allows. Wheels for
macOS are built on macOS, with Apple's compiler. Targets that cannot be built here are named and
left out. Each wheel must be small enough, keep its promise to the C library (auditwheel), have
valid metadata (twine), list what is compiled in (PEP 770) and name no folder of this machine.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = Path(sys.executable).parent
BYTES_MAX = 5_500_000
# The platform of each target's wheels: on Linux the policy of auditwheel that they must meet, on
# macOS the oldest version of it.
PLATFORMS = {
    "x86_64-unknown-linux-gnu": "manylinux_2_17",
    "aarch64-unknown-linux-gnu": "manylinux_2_17",
    "x86_64-unknown-linux-musl": "musllinux_1_2",
    "aarch64-unknown-linux-musl": "musllinux_1_2",
    "x86_64-apple-darwin": "macosx_11_0",
    "aarch64-apple-darwin": "macosx_11_0",
}


def supported_pythons() -> list[str]:
    """The versions in the classifiers of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = (re.fullmatch(r".* Python :: (3\.\d+)", it) for it in project["classifiers"])
    return [match[1] for match in versions if match]


def platform_tag(target: str) -> str:
    """The end of the names of a target's wheels, such as manylinux_2_17_x86_64."""
    machine = target.partition("-")[0]
    if is_macos(target) and machine == "aarch64":
        machine = "arm64"
    return f"{PLATFORMS[target]}_{machine}"


def is_macos(target: str) -> bool:
    return target.endswith("apple-darwin")


def obstacle(target: str) -> str:
    """Why a target cannot be built here; empty if it can."""
    if is_macos(target) and sys.platform != "darwin":
        return "needs macOS"
    return "" if is_installed(target) else f"rustup target add {target}"


def is_installed(target: str) -> bool:
    rustc = os.environ.get("RUSTC", "rustc")
    command = [rustc, "--print", "target-libdir", "--target", target]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return any(Path(done.stdout.strip()).glob("libstd-*.rlib"))


def environment() -> dict[str, str]:
    """This one, with the tools of .venv first, and without the interpreter of .venv for PyO3."""
    path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
    # Base64 without AVX2 is by the portable kernel of simdutf.
    flags = f"{os.environ.get('CXXFLAGS', '')} -DSIMDUTF_IMPLEMENTATION_WESTMERE=0"
    kept = {name: it for name, it in os.environ.items() if name != "PYO3_PYTHON"}
    # Of Apple's compiler, of rustc and of the wheel's name.
    oldest_macos = PLATFORMS["aarch64-apple-darwin"].removeprefix("macosx_").replace("_", ".")
    return kept | {"PATH": path, "CXXFLAGS": flags, "MACOSX_DEPLOYMENT_TARGET": oldest_macos}


def unwinder(target: str) -> Path:
    """A stand-in for the system's unwinder, libgcc_s, for zig to link against."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "unwinder" / target
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libgcc_s.so.1"
    machine = target.partition("-")[0]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.2.17"]
    command += ["-shared", f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run([*command, ROOT / "tools" / "libgcc_s.c"], check=True)
    return library


def build(target: str, pythons: list[str], out: Path) -> None:
    interpreters = [f"python{version}" for version in pythons]
    command = ["maturin", "build", "--quiet", "--release", "--locked", "--strip"]
    command += ["--compression-level", "9", "--target", target, "--out", str(out)]
    if not is_macos(target):
        command += ["--zig", "--compatibility", PLATFORMS[target]]
    command += ["--interpreter", *interpreters]
    # musl ends threads without unwinding.
    if target.endswith("gnu"):
        command += ["--", "-C", f"link-arg={unwinder(target)}"]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True)


def wheels_of(target: str, pythons: list[str], out: Path) -> list[Path]:
    """The built wheels of a target, one for each Python."""
    tag = platform_tag(target)
    versions = (version.replace(".", "") for version in pythons)
    found = [sorted(out.glob(f"*-cp{version}-cp{version}-*{tag}.whl")) for version in versions]
    if not all(len(wheels) == 1 for wheels in found):
        sys.exit(f"{target}: not one wheel for each of {pythons} in {out}")
    return [wheels[0] for wheels in found]


def audited_policy(wheel: Path) -> str:
    """The strictest policy that a wheel meets, such as manylinux_2_17_x86_64."""
    command = [TOOLS / "auditwheel", "show", wheel]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(r'platform\s+tag:\s+"([^"]+)"', shown)
    return match[1] if match else shown


def complaints_about(wheel: Path, target: str) -> list[str]:
    found = []
    policy = platform_tag(target)
    if (size := wheel.stat().st_size) > BYTES_MAX:
        found.append(f"{size:,} bytes, more than {BYTES_MAX:,}")
    if not is_macos(target) and (audited := audited_policy(wheel)) != policy:
        found.append(f"auditwheel: {audited}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if not any(".dist-info/sboms/" in name for name in names):
            found.append("no SBOM")
        [library] = [name for name in names if name.endswith(".so")]
        contents = archive.read(library)
    if policy.startswith("manylinux") and b"libgcc_s.so.1" not in contents:
        found.append("links an unwinder of its own: see tools/libgcc_s.c")
    folders = (ROOT, Path.home() / ".cargo")
    found += [f"{library} names {it}" for it in folders if str(it).encode() in contents]
    return found


def check(target: str, wheels: list[Path]) -> bool:
    """Prints a line for each wheel; returns whether all are good."""
    is_good = True
    for wheel in wheels:
        complaints = complaints_about(wheel, target)
        is_good = is_good and not complaints
        verdict = "; ".join(complaints) or "good"
        print(f"{wheel.stat().st_size / 1e6:.2f} MB  {wheel.name}: {verdict}", flush=True)
    command = [TOOLS / "twine", "--no-color", "check", "--strict", *wheels]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout)
    return is_good and done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", nargs="+", default=list(PLATFORMS), choices=list(PLATFORMS))
    parser.add_argument("--pythons", nargs="+", default=supported_pythons())
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    failed = []
    for target in options.targets:
        if reason := obstacle(target):
            print(f"{target}: not built; {reason}", flush=True)
            continue
        build(target, options.pythons, options.out)
        if not check(target, wheels_of(target, options.pythons, options.out)):
            failed.append(target)
    if failed:
        sys.exit(f"wheels: see above: {', '.join(failed)}")


main()
