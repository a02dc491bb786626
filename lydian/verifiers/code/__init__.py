"""Programs judged by running them against tests in a sandbox."""
