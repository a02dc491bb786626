"""What people look at: the stage table for terminals and Markdown, and the report page."""

from __future__ import annotations
