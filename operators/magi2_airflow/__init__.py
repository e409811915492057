"""Airflow's view of the renderer: thin operators around the library in `magi2`, and links from tasks to what they made.

Importing this package imports neither torch nor anything that does.
"""
