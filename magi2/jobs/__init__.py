"""What Airflow and the command line share: one stage of one shard, from permission to its entry in the catalog."""
