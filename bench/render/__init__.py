"""What `bench/report.py` is made of: results in, tables, charts and verdicts out. No measuring."""
