"""Problems, explanations, metrics and alerts."""
