"""What a run will need and take on given chips, computed before anything runs."""
