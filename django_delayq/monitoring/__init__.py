"""What stands, judged once: problems, explanations, metrics and alerts."""
