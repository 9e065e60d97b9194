"""The wrapped model, as one replica on each rank."""
