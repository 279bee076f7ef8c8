"""Speed claims, measured: paired where two things are compared, medians and intervals, never a single time.

`make bench` runs all; `make bench ARGS="startup overhead"` some. Each module has `run() -> Iterator[str]`: the lines of its
report.
"""
