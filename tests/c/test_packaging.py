"""Finding and linking the library, and its agreement with its header."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import require

import harness
from harness import Client, serving

HEADER = harness.INCLUDE / "ucall/ucall.h"
SUM = harness.example("sum.c")
LOGIN = harness.example("login.cpp")
VERSION = re.search(r'^version = "(.*)"', (harness.ROOT / "Cargo.toml").read_text(), re.M)[1]
MAJOR = VERSION.partition(".")[0]
# CMake is asked for numbers alone.
NUMBERS = VERSION.partition("-")[0]
NEWER_STANDARDS = ["c++17", "c++20", "c++2b"]


# A tarball of `make dist-c`, to test instead of what `make install-c` installs.
TARBALL = os.environ.get("UCALL_C_TARBALL")
needs_build = pytest.mark.skipif(bool(TARBALL), reason="tests what make install-c installs")
needs_tarball = pytest.mark.skipif(not TARBALL, reason="tests what make dist-c packs")


# It builds nothing, and fails unless it is asked for the release of the library.
CARGO = """#!/bin/sh
for part in "build " --locked "--package ucall-capi --features full" "release --" \\
    "--target-dir $(dirname "$0")"
do
    case "$*" in
    *"$part"*) ;;
    *) echo "cargo: expected $part in $*" >&2; exit 1 ;;
    esac
done
"""


@pytest.fixture(scope="session")
def cargo(library, tmp_path_factory) -> Path:
    """The cargo that `make install-c` and CMake run, in the folder where it builds. It gives them
    the library of the tests as the release, whose build takes minutes."""
    folder = tmp_path_factory.mktemp("cargo")
    (folder / "release").symlink_to(library.parent)
    program = folder / "cargo"
    program.write_text(CARGO)
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def make(cargo) -> list:
    """make, whose `install-c` takes the library of the tests."""
    variables = [f"CARGO={cargo}", f"CARGO_TARGET_DIR={cargo.parent}"]
    return ["make", "--no-print-directory", "-C", harness.ROOT, *variables]


@pytest.fixture(scope="session")
def prefix(request, tmp_path_factory) -> Path:
    """The library, installed with `make install-c` or unpacked from the tarball."""
    if TARBALL:
        folder = tmp_path_factory.mktemp("elsewhere")
        harness.run(["tar", "--extract", "--file", TARBALL, "--directory", folder])
        [unpacked] = folder.iterdir()
        return unpacked
    prefix = tmp_path_factory.mktemp("prefix") / "a b & c"
    harness.run([*request.getfixturevalue("make"), "install-c", f"PREFIX={prefix}"])
    return prefix


def declared() -> set[str]:
    """The functions of the header, without comments and macros."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    return set(re.findall(r"\b(ucall_\w+)\s*\(", text))


def exported(path: Path, *options: str) -> set[str]:
    lines = harness.run(["nm", "--defined-only", *options, path]).splitlines()
    return {line.split()[2] for line in lines if len(line.split()) == 3 and " T " in line}


def test_the_shared_library_exports_the_header_and_nothing_else(prefix):
    symbols = exported(prefix / "lib/libucall.so", "--dynamic")
    assert symbols == {f"{name}@@UCALL_{MAJOR}" for name in declared()}


def test_the_static_library_shows_the_header_and_nothing_else(prefix):
    names = harness.run(["nm", "--defined-only", "--extern-only", prefix / "lib/libucall.a"])
    assert {line.split()[2] for line in names.splitlines() if len(line.split()) == 3} == declared()


def test_the_libraries_have_no_debug_information(prefix):
    for name in ("libucall.a", "libucall.so"):
        assert ".debug_info" not in harness.run(["readelf", "--sections", prefix / "lib" / name])


@needs_build
@pytest.mark.slow
@pytest.mark.parametrize("libdir", ["lib/x86_64-linux-gnu", "lib64"])
def test_the_folder_of_libraries_is_chosen_and_moved(make, cmake, tmp_path, libdir):
    """Installed under DESTDIR, moved, and found there by pkg-config and CMake."""
    require("pkg-config")
    folders = [f"PREFIX={tmp_path}/usr", f"LIBDIR={libdir}", f"DESTDIR={tmp_path}/staging"]
    harness.run([*make, "install-c", *folders])
    moved = tmp_path / "moved"
    shutil.copytree(f"{tmp_path}/staging{tmp_path}/usr", moved, symlinks=True)
    for path in [path for path in moved.rglob("*") if path.is_file()]:
        assert bytes(tmp_path) not in path.read_bytes()
    environment = {**os.environ, "PKG_CONFIG_PATH": str(moved / libdir / "pkgconfig")}
    command = f"cc -O2 {SUM} $(pkg-config --cflags --libs ucall) -o {tmp_path}/sum"
    harness.run(["sh", "-c", command], env=environment)
    serves([tmp_path / "sum"], env={**environment, "LD_LIBRARY_PATH": str(moved / libdir)})
    project(tmp_path, FIND.format(version=NUMBERS))
    build = configure_and_build(cmake, tmp_path, f"-Ducall_DIR={moved / libdir}/cmake/ucall")
    serves([build / "sum"])
    harness.run([*make, "uninstall-c", *folders])
    assert [path for path in (tmp_path / "staging").rglob("*") if not path.is_dir()] == []


def test_the_static_library_defines_every_declared_function(library):
    ours = {name for name in exported(library) if name.startswith("ucall_")}
    assert ours == declared()


def test_the_licences_are_installed(prefix):
    for name in ("LICENSE", "LICENSE-THIRD-PARTY"):
        installed = (prefix / "share/doc/ucall" / name).read_bytes()
        assert installed == (harness.ROOT / name).read_bytes()


def test_uninstalling_removes_every_file(prefix, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(prefix, copy, symlinks=True)
    neighbour = copy / "lib/libother.so"
    neighbour.touch()
    harness.run(["make", "--no-print-directory", "uninstall-c", f"PREFIX={copy}"], cwd=harness.ROOT)
    assert [path for path in copy.rglob("*") if not path.is_dir()] == [neighbour]


def test_uninstalling_by_the_guide_removes_every_file_of_a_tarball(prefix, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(prefix, copy, symlinks=True)
    command = re.search(r"^\$ (rm -r .*)$", (harness.ROOT / "docs/c.md").read_text(), re.M)[1]
    harness.run(["sh", "-c", command], cwd=copy)
    assert [path for path in copy.rglob("*") if not path.is_dir()] == []


def test_the_shared_library_is_named_by_its_major_version(prefix):
    dynamic = harness.run(["readelf", "--dynamic", prefix / "lib/libucall.so"])
    assert f"[libucall.so.{MAJOR}]" in dynamic
    assert (prefix / f"lib/libucall.so.{MAJOR}").resolve().name == f"libucall.so.{VERSION}"
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    assert not any("ucall" in name for name in needed)
    # The unwinder by which glibc ends threads: two on one stack crash.
    assert "libgcc_s.so.1" in needed


@needs_build
def test_the_build_leaves_out_the_folder_of_the_crates(tmp_path):
    """Another build of all crates would take minutes; that of the tarball is examined."""
    cargo = tmp_path / "cargo"
    cargo.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{tmp_path}/words"\nexit 1\n')
    cargo.chmod(0o755)
    command = [harness.ROOT / "crates/ucall-capi/install.sh", tmp_path / "prefix"]
    environment = {**os.environ, "CARGO": str(cargo), "CARGO_HOME": "/a b/crates"}
    assert subprocess.run(command, env=environment).returncode == 1
    words = (tmp_path / "words").read_text().splitlines()
    assert "build.rustflags=['--remap-path-prefix=/a b/crates=/cargo']" in words


@needs_build
def test_cmake_and_the_installer_give_cargo_the_same_flags():
    flags = [
        re.search(r"build\.rustflags=\['--remap-path-prefix=\$\S+?=/cargo'\]", text)
        for text in (
            (harness.ROOT / "CMakeLists.txt").read_text(),
            (harness.ROOT / "crates/ucall-capi/install.sh").read_text(),
        )
    ]
    assert all(flags)


@needs_tarball
def test_the_tarball_names_no_folder_of_the_build(prefix):
    files = [path for path in prefix.rglob("*") if path.is_file()]
    for folder in (harness.ROOT, Path.home()):
        assert [path.name for path in files if bytes(folder) in path.read_bytes()] == []


@needs_tarball
def test_the_tarball_runs_with_glibc_2_17(prefix):
    symbols = harness.run(["objdump", "--dynamic-syms", prefix / "lib/libucall.so"])
    versions = {tuple(map(int, it.split("."))) for it in re.findall(r"GLIBC_([\d.]+)", symbols)}
    assert (2,) < max(versions) <= (2, 17)


@pytest.mark.parametrize("standard", ["c99", "c11", "c17", "gnu2x"])
def test_the_header_is_clean_in_c(standard, tmp_path):
    alone = tmp_path / "alone.c"
    alone.write_text("#include <ucall/ucall.h>\nint main(void) { return 0; }\n")
    flags = [*harness.STRICT, "-Wstrict-prototypes", "-Wshadow", "-Wconversion"]
    harness.run(["cc", f"-std={standard}", *flags, "-I", harness.INCLUDE, "-c", alone, "-o",
                 tmp_path / "alone.o"])  # fmt: skip


@pytest.mark.parametrize(
    "standard",
    ["c++98", "c++11", *(pytest.param(it, marks=pytest.mark.slow) for it in NEWER_STANDARDS)],
)
def test_the_header_is_clean_in_cpp(standard, tmp_path):
    alone = tmp_path / "alone.cpp"
    headers = ["ucall.h"] if standard == "c++98" else ["ucall.h", "ucall.hpp"]
    includes = "".join(f"#include <ucall/{name}>\n" for name in headers)
    alone.write_text(includes + "int main() { return ucall_init(NULL, NULL); }\n")
    flags = [*harness.STRICT, "-Wshadow", "-Wconversion", "-Wold-style-cast"]
    harness.run(["c++", f"-std={standard}", *flags, "-I", harness.INCLUDE, "-c", alone, "-o",
                 tmp_path / "alone.o"])  # fmt: skip


def test_each_function_is_explained_above_its_declaration():
    lines = HEADER.read_text().splitlines()
    for name in declared():
        at = next(n for n, line in enumerate(lines) if re.match(rf"\w[^#]*\b{name}\(", line))
        # Adjacent declarations share one comment.
        block = at
        while lines[block - 1] and not lines[block - 1].endswith("*/"):
            block -= 1
        assert lines[block - 1].endswith("*/"), name


def serves(command: list, **how) -> None:
    with serving([*command, "--port", 0], **how) as server, Client(server.port) as client:
        if "login" in str(command[0]):
            assert client.call("echo", {"content": [1]}) == [1]
        else:
            assert client.call("sum", {"a": 2, "b": 3}) == 5


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("static", SUM),
        ("shared", LOGIN),
        pytest.param("shared", SUM, marks=pytest.mark.slow),
        pytest.param("static", LOGIN, marks=pytest.mark.slow),
    ],
)
def test_pkg_config(prefix, tmp_path, source, kind):
    require("pkg-config")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    program = tmp_path / source.stem
    flags = "$(pkg-config --cflags --libs ucall)"
    if kind == "static":
        flags = "$(pkg-config --cflags --libs-only-L ucall) -l:libucall.a"
        flags += " -lpthread -lm -ldl"
    compiler = "c++" if source.suffix == ".cpp" else "cc"
    # The output is quoted for a shell, because the prefix has spaces.
    command = f"eval {compiler} -O2 {source} {flags} -o {program}"
    harness.run(["sh", "-c", command], env=environment)
    libraries = harness.run(["ldd", program], env=environment)
    assert ("libucall" in libraries) == (kind == "shared")
    serves([program], env={**environment, "LD_LIBRARY_PATH": str(prefix / "lib")})


@pytest.fixture
def thread_sanitizer(tmp_path) -> Callable[..., list]:
    """A function that builds a program with ThreadSanitizer and returns the command to run it."""

    def build(source: Path, *flags: str | Path) -> list:
        program = tmp_path / source.stem
        options = ["-g", "-O1", "-fsanitize=thread", *flags, "-o", program]
        harness.run([*harness.compiler_for(source), source, *options])
        # Older ones do not know all addresses at which Linux may place a program.
        return [*(["setarch", "-R"] if shutil.which("setarch") else []), program]

    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    try:
        harness.run(build(empty))
    except AssertionError as missing:
        pytest.skip(f"no ThreadSanitizer: {missing}")
    return build


def test_thread_sanitizer_reports_the_races_of_the_program_alone(prefix, thread_sanitizer, engine):
    lib = prefix / "lib"
    flags = ["-I", prefix / "include", f"-L{lib}", "-lucall"]
    command = thread_sanitizer(harness.PROGRAMS / "races.c", *flags)
    # The path is quoted, because that of the prefix has spaces.
    options = f"exitcode=0 suppressions='{lib}/libucall.tsan.supp'"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(lib), "TSAN_OPTIONS": options}
    with serving([*command, engine], env=environment) as server, Client(server.port) as client:
        texts = {client.submit("echo", {"text": "é" * n}): "é" * n for n in range(100)}
        for _ in range(100):
            reply = client.message()
            assert reply["result"] == texts[reply["id"]]
        assert client.call("race") == 1
    assert server.errors.count("WARNING: ThreadSanitizer") == 1
    assert "in write_shared" in server.errors or "in race" in server.errors


FETCH = """
include(FetchContent)
FetchContent_Declare(ucall SOURCE_DIR "{root}")
FetchContent_MakeAvailable(ucall)
"""
FIND = "find_package(ucall {version} REQUIRED)\n"


def project(folder: Path, how: str) -> None:
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.19)\n"
        "project(programs C CXX)\n"
        "set(CMAKE_CXX_STANDARD 11)\n"
        f"{how}"
        f'add_executable(sum "{SUM}")\n'
        "target_link_libraries(sum PRIVATE ucall::ucall)\n"
        f'add_executable(login "{LOGIN}")\n'
        "target_link_libraries(login PRIVATE ucall::ucall)\n"
    )


@pytest.fixture
def cmake() -> str:
    return require("cmake")


@pytest.fixture
def from_source(cargo) -> list[str]:
    """Options with which CMake takes the library of the tests."""
    return [f"-DUCALL_CARGO={cargo}", f"-DUCALL_TARGET_DIR={cargo.parent}"]


def configure_and_build(cmake: str, folder: Path, *options: str) -> Path:
    build = folder / "build"
    harness.run([cmake, "-S", folder, "-B", build, *options])
    harness.run([cmake, "--build", build])
    return build


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["OFF", "ON"])
def test_cmake_fetch_content(cmake, from_source, tmp_path, shared):
    project(tmp_path, FETCH.format(root=harness.ROOT))
    build = configure_and_build(cmake, tmp_path, *from_source, f"-DBUILD_SHARED_LIBS={shared}")
    for name in ("sum", "login"):
        assert ("libucall.so" in harness.run(["ldd", build / name])) == (shared == "ON")
        serves([build / name])


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["OFF", "ON"])
def test_cmake_find_package(cmake, prefix, tmp_path, shared):
    project(tmp_path, FIND.format(version=NUMBERS))
    build = configure_and_build(
        cmake, tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DBUILD_SHARED_LIBS={shared}"
    )
    for name in ("sum", "login"):
        serves([build / name])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["installed", "from source"])
def test_the_cmake_project_of_the_examples(cmake, prefix, from_source, tmp_path, how):
    options = [*from_source, *([f"-DCMAKE_PREFIX_PATH={prefix}"] if how == "installed" else [])]
    build = tmp_path / "build"
    harness.run([cmake, "-S", harness.ROOT / "examples/cmake", "-B", build, *options])
    harness.run([cmake, "--build", build])
    used = (build / "CMakeCache.txt").read_text()
    assert ("ucall_DIR:PATH=ucall_DIR-NOTFOUND" in used) == (how == "from source")
    with serving([build / "greeter", 0]) as server, Client(server.port) as client:
        assert client.call("greet", {"name": "Ada"}) == {"hello": "Ada"}


def test_cmake_refuses_another_version(cmake, prefix, tmp_path):
    project(tmp_path, FIND.format(version=f"{int(MAJOR) + 1}.0"))
    done = subprocess.run(
        [cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and f"version: {VERSION}" in done.stderr


def test_cmake_installs(cmake, from_source, tmp_path):
    build, prefix = tmp_path / "build", tmp_path / "prefix"
    harness.run([cmake, "-S", harness.ROOT, "-B", build, *from_source])
    harness.run([cmake, "--build", build])
    harness.run([cmake, "--install", build, "--prefix", prefix])
    assert (prefix / "lib/cmake/ucall/ucallConfig.cmake").is_file()
    assert (prefix / "include/ucall/ucall.h").read_bytes() == HEADER.read_bytes()
