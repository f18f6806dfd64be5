"""A real Prometheus scrapes a server under load, and its rates are those of the load.

`make test-prometheus` runs it for a minute (PROMETHEUS_SECONDS); with the tests it takes seconds.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from programs import require
from serving import Serve
from test_metrics import DURATION, WORKERS, CountedLoad, every_kind_of_metric, scrape
from test_workers import supervised

from harness import HOST, eventually, free_port

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("PROMETHEUS_SECONDS", "6"))
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
ALERTS = ROOT / "deploy" / "alerts.yml"
KEDA = ROOT / "deploy" / "keda.yml"


class Prometheus:
    """A Prometheus that scrapes one server, often."""

    def __init__(self, port: int) -> None:
        self._port = port

    def query(self, expression: str, at: float | None = None) -> Any:
        """The result of an instant query."""
        parameters = {"query": expression, **({} if at is None else {"time": str(at)})}
        url = f"http://{HOST}:{self._port}/api/v1/query?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as reply:
            return json.load(reply)["data"]["result"]

    def is_ready(self) -> bool:
        try:
            return bool(self.query("up == 1"))
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[Prometheus]:
    program, port = require("prometheus"), free_port()
    job = {"job_name": "ucall", "static_configs": [{"targets": [f"{HOST}:{target}"]}]}
    configuration = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [job],
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    process = subprocess.Popen(
        [
            program,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={HOST}:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "prometheus.log").open("w"),
    )
    try:
        running = Prometheus(port)
        assert eventually(running.is_ready), (folder / "prometheus.log").read_text()
        yield running
    finally:
        process.kill()
        process.wait()


class Timeline:
    """How many calls a load had made at each moment."""

    def __init__(self, load: CountedLoad) -> None:
        self._load = load
        self._times: list[float] = []
        self._counts: list[int] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._record)

    def __enter__(self) -> Timeline:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _record(self) -> None:
        while not self._done.wait(0.005):
            self._times.append(time.time())
            self._counts.append(self._load.total("sum"))

    def at(self, moment: float) -> float:
        """The number of calls at a moment, between two records."""
        after = bisect.bisect(self._times, moment)
        (t0, t1), (c0, c1) = self._times[after - 1 : after + 1], self._counts[after - 1 : after + 1]
        return c0 + (c1 - c0) * (moment - t0) / (t1 - t0)


def test_rates_of_prometheus_are_those_of_the_load(tmp_path: Path) -> None:
    require("prometheus")
    series = f'{DURATION}_count{{rpc_method="sum"}}'
    with (
        supervised(tmp_path, "--workers", "3", source=WORKERS) as it,
        prometheus(tmp_path, it.port) as monitor,
    ):
        pids = it.wait_for(3)
        with CountedLoad(it.port, clients=6) as load, Timeline(load) as timeline:
            start = time.time()
            assert eventually(lambda: load.total("sum") > 1000)
            os.kill(pids[0], signal.SIGKILL)
            # Queries see the past; the load goes on after the window that they ask for.
            assert eventually(lambda: time.time() > start + SECONDS + 1, SECONDS + 60)
            end = time.time()
            window = f"[{int(SECONDS * 1000)}ms]"
            [raw] = monitor.query(f"{series}{window}", end)
            [found] = monitor.query(f"rate({series}{window})", end)
            assert eventually(lambda: time.time() > end + 0.1)
        times = [float(moment) for moment, _ in raw["values"]]
        values = [float(text) for _, text in raw["values"]]
        assert all(before <= after for before, after in itertools.pairwise(values))
        own = (timeline.at(times[-1]) - timeline.at(times[0])) / (times[-1] - times[0])
        rate = float(found["value"][1])
        assert values[-1] - values[0] > 1000, "too few calls for a comparison"
        assert abs(rate / own - 1) < 0.01, (rate, own)
        it.stop()


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """The queries of a dashboard, with values for Grafana's variables."""
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [expression.replace("$__rate_interval", "5m") for expression in found]


def test_the_dashboard_and_the_alerts_use_metrics_that_exist(serve_once: Serve) -> None:
    _, text = scrape(every_kind_of_metric(serve_once))
    exist = set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE))
    queries = expressions(json.loads(DASHBOARD.read_text()))
    used = {
        name
        for source in [*queries, ALERTS.read_text()]
        for name in re.findall(r"\b(?:rpc_server|ucall|process)_\w+", source)
    }
    assert len(queries) > 10 and used - exist == set()


def test_promtool_accepts_the_alerts_and_the_queries(tmp_path: Path) -> None:
    promtool = require("promtool")
    queries = expressions(json.loads(DASHBOARD.read_text()))
    rules = [{"record": f"query:{index}", "expr": query} for index, query in enumerate(queries)]
    (tmp_path / "queries.yml").write_text(
        json.dumps({"groups": [{"name": "queries", "rules": rules}]})
    )
    for path in (ALERTS, tmp_path / "queries.yml"):
        done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True)
        assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_pods_are_scaled_by_the_queue_wait_of_their_calls(tmp_path: Path) -> None:
    """The query of deploy/keda.yml: what 19 of 20 calls wait at most, and 0 without calls."""
    promtool = require("promtool")
    query = KEDA.read_text().partition("query: |\n")[2]
    # Half of the calls of five minutes wait for 164 to 328 ms; then there are none.
    counts = {"0.16384": "0+60x20 1200x40", "0.32768": "0+120x20 2400x40"}
    counts["+Inf"] = counts["0.32768"]
    series = 'ucall_queue_wait_seconds_bucket{job="models",rpc_method="f",le="%s"}'
    expected = {"5m": 0.16384 * 1.9, "12m": 0}
    tests = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {"series": series % bound, "values": it} for bound, it in counts.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": f"abs(({query}) - {wait}) < bool 1e-9",
                        "eval_time": moment,
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                    for moment, wait in expected.items()
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(tests))
    command = [promtool, "test", "rules", tmp_path / "tests.yml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
