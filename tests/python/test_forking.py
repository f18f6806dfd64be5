"""Programs that are forked end, read and print as those of a new interpreter do."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forking
import pytest

PROGRAMS = {
    "arguments": "import sys; print(sys.argv, sys.orig_argv, sys.path[0], __name__)",
    "folder": "import os; print(os.getcwd())",
    "variables": "import os; print(os.environ['VARIABLE'], len(os.environ))",
    "input": "import sys; print(sys.stdin.read().upper())",
    "errors": "import sys; print('out'); print('error', file=sys.stderr)",
    "status": "import sys; sys.exit(7)",
    "message": "import sys; sys.exit('why')",
    "exception": "raise KeyboardInterrupt",
    "end": "import atexit; atexit.register(print, 'at the end')",
    "buffer": "import sys; sys.stdout = open(1, 'w', closefd=False); print('in the buffer')",
    "thread": "import threading; threading.Timer(0.1, print, ['at the end']).start()",
    "closed": "import os, sys; sys.stdout = open(1, 'w'); print(1); os.close(1)",
    "descriptors": "import os; print(sorted(os.listdir('/proc/self/fd'))[:3])",
    "signals": "import signal; print(signal.getsignal(signal.SIGINT), signal.getsignal(17))",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "session": "import os; print(os.getsid(0) == os.getpid())",
    "main": "import pickle, sys\nclass C: ...\nassert type(pickle.loads(pickle.dumps(C()))) is C",
}


def _ended(start: Any, folder: Path, *command: str, **options: Any) -> tuple[Any, ...]:
    pipe = subprocess.PIPE
    how = {"cwd": folder, "env": {"VARIABLE": "x", "LC_ALL": "C.UTF-8"}, "text": True} | options
    with start([sys.executable, *command], stdin=pipe, stdout=pipe, stderr=pipe, **how) as process:
        output, errors = process.communicate("text", timeout=60)
    # The frames of the process that forks come first.
    return process.returncode, output, errors.splitlines()[-1:]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_in_a_new_interpreter(name: str, tmp_path: Path) -> None:
    command = ["-u", "-c", PROGRAMS[name], "a", "-b"]
    options = {"start_new_session": name == "session"}
    expected = _ended(subprocess.Popen, tmp_path, *command, **options)
    assert _ended(forking.Python, tmp_path, *command, **options) == expected


def test_a_module_runs_as_in_a_new_interpreter(tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text("import sys; print(__name__, __file__, sys.argv)")
    for command in (["-m", "named", "a"], ["-m", "ucall.cli", "--version"], ["-m", "ucall", "-x"]):
        expected = _ended(subprocess.Popen, tmp_path, *command)
        assert _ended(forking.Python, tmp_path, *command) == expected


def test_a_command_of_a_shell_runs_as_in_a_new_interpreter(tmp_path: Path) -> None:
    program = "import os, sys\nprint(sys.argv[1:], os.getcwd(), os.environ['VARIABLE'], input())\n"
    forking.write_command(tmp_path / "forked", program + "sys.exit(7)")
    (tmp_path / "new").write_text(f"#!{sys.executable}\n{program}sys.exit(7)")
    (tmp_path / "new").chmod(0o755)
    (tmp_path / "folder").mkdir()
    for name in ("new", "forked"):
        words = f"cd folder; echo text | VARIABLE=é ../{name} 'a b' '' é; echo $?"
        output = subprocess.check_output(["bash", "-c", words], cwd=tmp_path, text=True)
        assert output == f"['a b', '', 'é'] {tmp_path}/folder é text\n7\n", name
    forking.write_command(tmp_path / "killed", "import os; os.kill(os.getpid(), 9)")
    assert subprocess.run([tmp_path / "killed"]).returncode == 128 + 9


def test_a_script_runs_as_in_a_new_interpreter(tmp_path: Path) -> None:
    source = "import sys, other; print(__name__, __file__, sys.argv, sys.path[0], other.__file__)"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "named.py").write_text(source)
    (folder / "other.py").touch()
    for script in ("folder/named.py", str(folder / "named.py")):
        for command in ([script], ["-u", script, "-c", "a"]):
            expected = _ended(subprocess.Popen, tmp_path, *command)
            assert expected[0] == 0
            assert _ended(forking.Python, tmp_path, *command) == expected


def test_waits_end_in_time_and_signals_arrive(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    with forking.Python(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
        assert process.poll() == -signal.SIGTERM


def test_run_kills_a_program_that_takes_too_long() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forking.run([sys.executable, "-c", "import time; time.sleep(600)"], timeout=0.01)
