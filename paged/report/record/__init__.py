"""What is written down while a run goes on, and the report and snapshot made of it."""
