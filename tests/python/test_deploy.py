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

import forking
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


def test_the_systemd_unit_confines_the_server(tmp_path: Path) -> None:
    path = tmp_path / "app.service"
    path.write_text(block("ini").replace("/srv/app/.venv/bin/python", "/bin/true"))
    # Of 100, where its exposure is 53, and 76 with all capabilities.
    command = [require("systemd-analyze"), "security", "--offline=true", "--threshold=55", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_units_of_socket_activation_are_valid(tmp_path: Path) -> None:
    socket = block_of("deploy.md", "[Socket]")
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(socket)
    # `python -m ucall` takes one socket of TCP, which it accepts from itself.
    assert unit["Socket"]["ListenStream"].endswith(":8545") and "Accept" not in unit["Socket"]
    (tmp_path / "app.socket").write_text(socket)
    service = block("ini").replace("/srv/app/.venv/bin/python", "/bin/true")
    (tmp_path / "app.service").write_text(service)
    command = [require("systemd-analyze"), "verify", str(tmp_path / "app.socket")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if "app.so" in line or "app.se" in line]
    assert not complaints, done.stderr


def instruction(name: str, file: str = "Dockerfile") -> list[str]:
    """The last `CMD […]` of a file in deploy/, or that of its health check."""
    text = (ROOT / "deploy" / file).read_text(encoding="utf-8")
    pattern = rf"^{name}(?: --\S+| \\\n| +CMD)* (\[.*\])$"
    words: list[str] = json.loads(re.findall(pattern, text, re.MULTILINE)[-1])
    return words


def after_its_base(file: str) -> list[str]:
    """The instructions that both files share, from `WORKDIR` on."""
    text = (ROOT / "deploy" / file).read_text(encoding="utf-8")
    return text.partition("\nWORKDIR ")[2].splitlines()


def test_the_two_containers_differ_in_their_base_alone() -> None:
    assert after_its_base("Dockerfile") == after_its_base("device.Dockerfile") != []


def test_the_container_gets_what_its_instructions_take() -> None:
    passed = (ROOT / "deploy" / ".dockerignore").read_text(encoding="utf-8").splitlines()
    taken = "\n".join(after_its_base("Dockerfile"))
    assert passed[0] == "*"
    for pattern in ("*.py", "*.whl", "requirements.txt"):
        assert f"!{pattern}" in passed and pattern in taken


@pytest.mark.parametrize("file", ["Dockerfile", "device.Dockerfile"])
def test_the_container_serves_and_its_health_check_calls(file: str, tmp_path: Path) -> None:
    port, app = str(free_port()), (ROOT / "deploy" / "app.py").read_text(encoding="utf-8")
    program, *arguments = instruction("CMD", file)
    command, *method = instruction("HEALTHCHECK", file)
    assert (program, command) == ("python", "ucall")
    # The health check calls the port that the Dockerfile names, which is the default.
    check = [sys.executable, "-m", "ucall.cli", *method, "--port", port]

    def status() -> int:
        return forking.run(check).returncode

    assert status() != 0
    serve = [sys.executable, *arguments, "--host", "0.0.0.0", "--port", port]
    (tmp_path / "app.py").write_text(app, encoding="utf-8")
    with subprocess.Popen(serve, cwd=tmp_path, stderr=subprocess.PIPE) as server:
        try:
            assert eventually(lambda: status() == 0)
        finally:
            server.terminate()
            server.communicate(timeout=60)
    assert server.returncode == 0


KUBERNETES = (ROOT / "deploy" / "kubernetes.yml").read_text(encoding="utf-8")


def test_the_probes_of_kubernetes_are_answered(serve: Serve) -> None:
    server = serve()
    probes = re.findall(r"(\w+)Probe:\n +httpGet: \{path: (\S+), port: rpc\}", KUBERNETES)
    assert dict(probes) == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    for _, path in probes:
        with urllib.request.urlopen(f"http://{HOST}:{server.port}{path}", timeout=60) as reply:
            assert reply.status == 200
    assert "{name: rpc, containerPort: 8545}" in KUBERNETES


def test_the_variables_of_kubernetes_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = dict(re.findall(r'name: (UCALL_\w+), value: "?([^"}]+)', KUBERNETES))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = Settings.read(["app:server"])
    assert (found.host, found.warnings) == ("0.0.0.0", [])
    assert found.options == {"metrics": True, "shutdown_delay_s": 5.0}
    [grace] = re.findall(r"terminationGracePeriodSeconds: (\d+)", KUBERNETES)
    drain_s = _core.default_limits()["drain_timeout_s"]
    assert int(grace) > found.options["shutdown_delay_s"] + drain_s


def test_the_manifests_select_the_pods_that_clients_resolve() -> None:
    parts = KUBERNETES.split("\n---\n")
    kinds = [re.findall(r"^kind: (\w+)$", part, re.MULTILINE) for part in parts]
    assert kinds == [
        ["Deployment"],
        ["Service"],
        ["HorizontalPodAutoscaler"],
        ["PodDisruptionBudget"],
    ]
    for part in parts:
        assert re.search(r"^  name: models$", part, re.MULTILINE)
        assert "app: models" in part or "kind: Deployment, name: models" in part
    assert "clusterIP: None" in parts[1] and "port: 8545" in parts[1]
    assert 'Client("dns://models:8545")' in PAGE


def test_the_autoscaler_reads_the_metric_that_the_adapter_names() -> None:
    [named] = re.findall(r"name: \{as: (\w+)\}", PAGE)
    assert f"metric: {{name: {named}}}" in KUBERNETES
    keda = (ROOT / "deploy" / "keda.yml").read_text(encoding="utf-8")
    shown = re.search(r"^        query: .*?(?=^```)", PAGE, re.MULTILINE | re.DOTALL)
    assert shown and shown[0].strip() in keda


def test_a_device_is_a_line_of_the_limits() -> None:
    """Without its comment sign it is a sibling of the memory."""
    found = re.search(r"^( +)memory: 2Gi\n +#[^\n]*\n( +)# nvidia.com/gpu: 1$", KUBERNETES, re.M)
    assert found and found[1] == found[2]


def block_of(page_name: str, beginning: str) -> str:
    page = (ROOT / "docs" / page_name).read_text(encoding="utf-8")
    [found] = re.findall(
        rf"^```\w*\n({re.escape(beginning)}.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    return str(found)


def test_a_pod_registers_with_nats_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = (ROOT / "deploy" / "nats" / "patch.yml").read_text(encoding="utf-8")
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
    text = (ROOT / "deploy" / "compose.yml").read_text(encoding="utf-8")
    [check] = re.findall(r"test: (\[.*\])", text)
    assert json.loads(check) == ["CMD", *instruction("HEALTHCHECK"), "--ready"]


def test_the_container_serves_the_example_of_the_page() -> None:
    assert (ROOT / "deploy" / "app.py").read_text(encoding="utf-8") == block("python").removeprefix(
        "# app.py\n"
    )


@pytest.mark.parametrize(
    "page",
    [
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "README.md",
        "ROADMAP.md",
        "SECURITY.md",
        "docs/deploy.md",
        "docs/nats.md",
        "docs/scale.md",
        "docs/serve-a-model.md",
    ],
)
def test_links_resolve(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
