"""One module a step, each with `run(site)`, which yields what it finds."""
