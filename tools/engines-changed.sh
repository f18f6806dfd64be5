#!/usr/bin/env bash
# Lists the files changed since a commit by which the engines may differ; fails if there are none.
#
#     tools/engines-changed.sh COMMIT && make test PYTEST_FLAGS="-q --engines-changed"
#
# These are the engines, and what drives them or owns connections. See tests/selection.py.
set -euo pipefail
cd "$(dirname "$0")/.."

FILES=(
    crates/ucall-buffer
    crates/ucall-engine
    crates/ucall-proto/src/connection
    crates/ucall-proto/src/tls
    crates/ucall-python/src/asyncio
    crates/ucall-queue/src/driver
    crates/ucall-server/src/connections.rs
    crates/ucall-server/src/events
    crates/ucall-server/src/listeners.rs
    crates/ucall-server/src/memory_waiters.rs
    crates/ucall-server/src/send_queue.rs
    crates/ucall-server/src/tls.rs
    crates/ucall-server/src/worker.rs
    tests/any-engine.txt
    tests/selection.py
)

# Without the commit, such as in a shallow clone, all files may have changed.
if ! git rev-parse --quiet --verify "$1^{commit}" > /dev/null; then
    echo "all: $1 is no commit here"
    exit
fi
changed=$(git diff --name-only "$1" -- "${FILES[@]}")
[ -n "$changed" ] && echo "$changed"
