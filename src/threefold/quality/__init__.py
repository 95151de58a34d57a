"""How alike two models' next-token distributions are on a text of one's own."""
