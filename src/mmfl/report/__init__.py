"""Pictures of runs. Everything here works from records alone; nothing trains."""
