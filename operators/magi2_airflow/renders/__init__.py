"""The page "Renders" in Airflow's UI: its JSON API, its media, its bundle and the same in plain HTML.

`contract` says what is exchanged, `guard` who may, `app` puts the routes together; `magi2_airflow.plugin` mounts them.
"""
