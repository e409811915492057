"""`magi2 accept`: whether this node can do the work, how fast, and what differs; `benchmarks` measures with it too."""
