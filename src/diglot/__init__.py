"""Train encoder-decoder Transformers for translation and other sequence-to-sequence work."""
