"""The parts of `bench/report.py`: tables, charts and verdicts from results. Measures nothing."""
