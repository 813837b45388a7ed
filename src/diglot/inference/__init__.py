"""Inference with a trained model: translation, scoring of given translations, and an HTML page of translations."""
