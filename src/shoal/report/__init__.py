"""Pages made from a run's records alone: never from a model."""
