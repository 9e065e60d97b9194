"""One program as text and as syntax trees: parsed, and never run."""
