"""Long runs: workers under full load that are restarted again and again."""
