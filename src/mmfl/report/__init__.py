"""Pictures of runs. Everything here works from records, or from a federation; nothing trains."""
