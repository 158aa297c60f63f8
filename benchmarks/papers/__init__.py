"""The papers' comparisons on real text at a small size: what is trained, how it is evaluated, and the report."""
