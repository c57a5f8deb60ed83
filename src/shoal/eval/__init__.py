"""What a model has learned, measured in the same way every time."""
