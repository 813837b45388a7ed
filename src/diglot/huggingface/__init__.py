"""Models in the formats of Hugging Face's library transformers, which nothing here imports."""
