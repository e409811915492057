"""The stages of a clip, each a library call that reads artifacts and publishes one; they know nothing of Airflow."""
