"""What the tools measured, as one page that opens anywhere: figures in, HTML out."""
