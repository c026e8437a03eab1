"""Reports as one HTML file that opens offline: verdict, pictures, and a table of all rows."""

from __future__ import annotations

from kafka_index.pages.page import Page
from kafka_index.pages.page_writer import PageWriter

__all__ = ["Page", "PageWriter"]
