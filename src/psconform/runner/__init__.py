"""Layout + Target + Workload -> a stored run, and the verdicts on it."""
