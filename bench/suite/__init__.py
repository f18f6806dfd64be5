"""What `bench/run.py` is made of: who is measured, under which loads, and what is kept of it."""
