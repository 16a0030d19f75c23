"""What README.md and docs/ show: an environment and a network of one's own."""
