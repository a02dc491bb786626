"""Verifiable instructions: what a reply must look like, each constraint a small function with examples."""
