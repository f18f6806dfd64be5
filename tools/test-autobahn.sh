#!/usr/bin/env bash
# Runs Autobahn's fuzzing client against an application that echoes, on each engine: its cases 1 to
# 7, 9 and 10; 12 and 13 are about permessage-deflate, which mounted applications do not get.
# Fails if a case fails.
#
# Needs Python 2.7 (PYTHON2), for which pip still finds all packages.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly python2=${PYTHON2:-python2.7} out=$PWD/.bench/autobahn
command -v "$python2" >/dev/null || { echo "autobahn: set PYTHON2 to a Python 2.7" >&2; exit 1; }

if [ ! -e "$out/packages/autobahntestsuite" ]; then
    mkdir -p "$out"
    "$python2" -m pip install --quiet --disable-pip-version-check --target "$out/packages" \
        autobahntestsuite==0.8.2 twisted==20.3.0 klein==20.6.0 'werkzeug<2' 'jinja2<3' \
        'markupsafe<2' cryptography==3.3.2 pyopenssl==21.0.0 service_identity==21.1.0 'attrs<22' \
        'zope.interface<6' 'incremental<22' automat==20.2.0 hyperlink==21.0.0 'idna<3' \
        'setuptools<45' ujson==2.0.3 wsaccel==0.6.2 txaio==2.1.0 typing tubes==0.2.0
    # Only an installation elsewhere makes this namespace a package.
    touch "$out/packages/zope/__init__.py"
fi

servers=() echo_programs=()
trap 'kill "${echo_programs[@]}"' EXIT
for engine in posix uring; do
    exec {output}< <(exec .venv/bin/python tests/conformance/websocket_echo.py "$engine")
    echo_programs+=("$!")
    read -r port <&"$output"
    servers+=("{\"agent\": \"$engine\", \"url\": \"ws://127.0.0.1:$port/echoes\"}")
done
cat >"$out/spec.json" <<SPEC
{"outdir": "$out/reports", "exclude-agent-cases": {}, "exclude-cases": [],
 "servers": [${servers[0]}, ${servers[1]}],
 "cases": ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*"]}
SPEC
PYTHONPATH=$out/packages "$python2" -c 'from autobahntestsuite.wstest import run; run()' \
    --mode fuzzingclient --spec "$out/spec.json" >"$out/log"
python3 - "$out/reports/index.json" <<'REPORT'
import collections
import json
import sys

failed = []
with open(sys.argv[1]) as file:
    reports = json.load(file)
for engine, cases in reports.items():
    counts = dict(collections.Counter(case["behavior"] for case in cases.values()))
    print(f"{engine}: {len(cases)} cases: {counts}")
    accepted = {"OK", "NON-STRICT", "INFORMATIONAL"}
    for name, case in cases.items():
        if {case["behavior"], case["behaviorClose"]} - accepted:
            failed.append(f"{name} ({engine})")
sys.exit(f"autobahn: failed {', '.join(failed)}" if failed or len(reports) < 2 else 0)
REPORT
