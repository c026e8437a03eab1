"""Reports as one HTML file that opens offline: verdict, pictures, and a table of all rows."""
