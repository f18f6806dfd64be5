"""The examples of docs/deploy.md beside Python: nginx, the systemd unit and the container."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from programs import require
from proxies import nginx
from serving import Serve

from harness import HOST, eventually, free_port, request
from ucall import Broker, _core
from ucall._command.settings import Settings
from ucall._nats.subjects import parse_brokers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
MODEL_PAGE = (ROOT / "docs" / "serve-a-model.md").read_text(encoding="utf-8")


def block(kind: str, page: str = PAGE) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found, f"no ```{kind} on the page"
    return found[1]


def test_nginx_forwards_calls(serve: Serve, tmp_path: Path) -> None:
    def sum(a: int, b: int) -> int:
        return a + b

    server, port = serve(sum), free_port()
    example = block("nginx").replace("8545", str(server.port)).replace("8080", f"{HOST}:{port}")
    with nginx(tmp_path, example, port):
        for number in range(5):
            call = urllib.request.Request(
                f"http://{HOST}:{port}/rpc", data=request("sum", [number, 1])
            )
            with urllib.request.urlopen(call, timeout=60) as reply:
                assert json.load(reply)["result"] == number + 1
        # nginx keeps one connection for all requests.
        assert server.stats()["accepted"] == 1


def test_nginx_sends_calls_to_each_model_that_is_there(serve: Serve, tmp_path: Path) -> None:
    def classify(text: str) -> str:
        return text

    first, second, port = serve(classify), serve(classify), free_port()
    example = block("nginx", MODEL_PAGE).replace("8545", str(first.port))
    example = example.replace("8546", str(second.port)).replace("8080", f"{HOST}:{port}")

    def call(text: str) -> None:
        sent = urllib.request.Request(f"http://{HOST}:{port}/rpc", request("classify", [text]))
        with urllib.request.urlopen(sent, timeout=60) as reply:
            assert json.load(reply)["result"] == text

    with nginx(tmp_path, example, port):
        for number in range(6):
            call(str(number))
        assert first.stats()["accepted"] == second.stats()["accepted"] == 1
        second.stop()
        for number in range(6):
            call(str(number))


def test_the_systemd_unit_is_valid(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(block("ini"))
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "python" and arguments[:2] == ["-m", "ucall"]
    settings = Settings.read(arguments[2:])
    assert (settings.app, settings.workers) == ("app:server", 4)
    path = tmp_path / "app.service"
    # The files that it names do not exist on this machine.
    text = block("ini").replace("/srv/app/.venv/bin/python", "/bin/true")
    path.write_text(text)
    done = subprocess.run(
        [require("systemd-analyze"), "verify", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [line for line in done.stderr.splitlines() if "app.service" in line]
    assert not complaints, done.stderr


def instruction(name: str, file: str = "Dockerfile") -> list[str]:
    """The last `CMD […]` of a file in deploy/, or that of its health check."""
    text = (ROOT / "deploy" / file).read_text(encoding="utf-8")
    pattern = rf"^{name}(?: --\S+| \\\n| +CMD)* (\[.*\])$"
    words: list[str] = json.loads(re.findall(pattern, text, re.MULTILINE)[-1])
    return words


@pytest.mark.parametrize("file", ["Dockerfile", "model.Dockerfile"])
def test_the_container_serves_and_its_health_check_calls(file: str, tmp_path: Path) -> None:
    port, app = str(free_port()), (ROOT / "deploy" / "app.py").read_text(encoding="utf-8")
    program, *arguments = instruction("CMD", file)
    command, *method = instruction("HEALTHCHECK", file)
    assert (program, command) == ("python", "ucall")
    # The health check calls the port that the Dockerfile names, which is the default.
    check = [sys.executable, "-m", "ucall.cli", *method, "--port", port]

    def status() -> int:
        return subprocess.run(check, capture_output=True, timeout=60).returncode

    assert status() != 0
    serve = [sys.executable, *arguments, "--host", "0.0.0.0", "--port", port]
    for module in ("app.py", "model.py"):
        (tmp_path / module).write_text(app, encoding="utf-8")
    with subprocess.Popen(serve, cwd=tmp_path, stderr=subprocess.PIPE) as server:
        try:
            assert eventually(lambda: status() == 0)
        finally:
            server.terminate()
            server.communicate(timeout=60)
    assert server.returncode == 0


KUBERNETES = ROOT / "deploy" / "kubernetes"


@pytest.mark.parametrize("source", ["the page", "the manifest"])
def test_the_probes_of_kubernetes_are_answered(serve: Serve, source: str) -> None:
    manifest = (KUBERNETES / "deployment.yml").read_text(encoding="utf-8")
    text, server = block("yaml") if source == "the page" else manifest, serve()
    probes = re.findall(r"(\w+)Probe:\n +httpGet: \{path: (\S+), port: rpc\}", text)
    assert dict(probes) == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    for _, path in probes:
        with urllib.request.urlopen(f"http://{HOST}:{server.port}{path}", timeout=60) as reply:
            assert reply.status == 200
    assert re.search(r"name: rpc, containerPort: 8545\b", text)
    [grace] = re.findall(r"terminationGracePeriodSeconds: (\d+)", text)
    [delay] = re.findall(r'name: UCALL_SHUTDOWN_DELAY_S, value: "(\d+)"', text)
    assert int(grace) > int(delay) + _core.default_limits()["drain_timeout_s"]


def test_the_manifests_select_the_pods_that_clients_resolve() -> None:
    files = {path.stem: path.read_text(encoding="utf-8") for path in KUBERNETES.iterdir()}
    manifests = {"deployment", "service", "disruption-budget"}
    assert files.keys() == {*manifests, "nats-values", "nats-patch"}
    for text in map(files.get, manifests):
        assert text is not None
        assert re.search(r"^  name: models$", text, re.MULTILINE) and "app: models" in text
    assert "clusterIP: None" in files["service"] and "port: 8545" in files["service"]
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert 'Client("dns://models:8545")' in page


def block_of(page_name: str, beginning: str) -> str:
    page = (ROOT / "docs" / page_name).read_text(encoding="utf-8")
    [found] = re.findall(
        rf"^```\w*\n({re.escape(beginning)}.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    return str(found)


def test_a_pod_registers_with_nats_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = (KUBERNETES / "nats-patch.yml").read_text(encoding="utf-8")
    assert re.search(r"name: UCALL_ADVERTISE\n.*\n +fieldRef:\n +fieldPath: status.podIP\n", patch)
    for name, value in re.findall(r'name: (UCALL_\w+), value: "?([^"}]+)', patch):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UCALL_ADVERTISE", "10.1.2.3")
    found = Settings.read(["app:server"]).registration()
    assert found == Broker(url="nats://nats:4222", group="models", advertise="10.1.2.3")


def test_the_group_of_the_systemd_drop_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drop_in = block_of("deploy.md", "[Unit]\nWants")
    for line in re.findall(r"^Environment=(.*)$", drop_in, re.MULTILINE):
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value)
    found = Settings.read(["app:server"])
    assert (found.host, found.group) == ("0.0.0.0", "models")
    assert found.broker is not None and len(parse_brokers(found.broker)) == 3
    assert found.broker_creds == "/etc/app/server.creds"
    unit, folder = tmp_path / "app.service", tmp_path / "app.service.d"
    unit.write_text(block("ini").replace("/srv/app/.venv/bin/python", "/bin/true"))
    folder.mkdir()
    (folder / "group.conf").write_text(drop_in)
    done = subprocess.run(
        [require("systemd-analyze"), "verify", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "app.service" not in done.stderr and "group.conf" not in done.stderr, done.stderr


def test_nats_server_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    configuration = block_of("nats.md", "server_name:")
    configuration += block_of("nats.md", "authorization {")
    (tmp_path / "nats.conf").write_text(configuration, encoding="utf-8")
    command = [require("nats-server"), "-t", "-c", str(tmp_path / "nats.conf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_health_check_of_compose_is_that_of_the_command() -> None:
    text = (ROOT / "deploy" / "docker-compose.yml").read_text(encoding="utf-8")
    [check] = re.findall(r"test: (\[.*\])", text)
    assert json.loads(check) == ["CMD", *instruction("HEALTHCHECK"), "--ready"]


def test_the_container_serves_the_example_of_the_page() -> None:
    assert (ROOT / "deploy" / "app.py").read_text(encoding="utf-8") == block("python").removeprefix(
        "# app.py\n"
    )


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/deploy.md", "docs/scale.md", "docs/nats.md"])
def test_links_resolve(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
