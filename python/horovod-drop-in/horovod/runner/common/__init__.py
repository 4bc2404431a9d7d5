"""What programs reach for beside `run`."""
