"""A trained model at work: translating, scoring given translations, and the page that shows both."""
