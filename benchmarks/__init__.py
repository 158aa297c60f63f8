"""Speed, memory and quality comparisons; nothing here is installed."""
