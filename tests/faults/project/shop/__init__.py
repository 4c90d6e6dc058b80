"""The project's only app."""
