"""``python -m fairness``: compares callers beside attackers with callers alone."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from fairness.attackers import ATTACKS
from fairness.callers import attacked, measure, served

_SHARE_MIN = 0.99
_TIMES_MAX = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="fairness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--engine", action="append", choices=("posix", "uring"))
    options = parser.parse_args()
    is_fair = True
    for engine in options.engine or ["posix", "uring"]:
        for place in ATTACKS:
            with served(place, engine) as port:
                quiet = measure(port, None, options.seconds)
                with attacked(place, port):
                    outcome = measure(port, None, options.seconds)
            times = outcome.p99_s / quiet.p99_s
            print(
                f"{place} {engine}: {outcome.share:.2%} of {len(outcome.seconds)} calls answered, "
                f"p99 {quiet.p99_s * 1e3:.1f} ms alone, {outcome.p99_s * 1e3:.1f} ms attacked "
                f"({times:.1f} times)",
                flush=True,
            )
            for failure, count in Counter(outcome.failures).most_common(3):
                print(f"  {count} times: {failure[:150]}")
            is_fair &= outcome.share >= _SHARE_MIN and times <= _TIMES_MAX
    return 0 if is_fair else 1


if __name__ == "__main__":
    sys.exit(main())
