"""Whether one attacker of each kind keeps ordinary callers from their replies.

    cd tests && python -m fairness --seconds 10 --engine posix

31 callers call a server, and a relay before one, first alone and then beside the attackers. At
least 99% of their calls must be answered, and the 99th percentile of the time of a call be at most
three times that without attackers. `make test-fairness` runs it; tests/python/test_fairness.py
runs it briefly and only counts.
"""
