"""Tables, charts and verdicts from results. Measures nothing."""
