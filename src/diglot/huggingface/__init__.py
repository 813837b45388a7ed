"""Models in the formats of Hugging Face's library transformers, which nothing here imports, and of its Hub.

- configs: config.json as the config of a Transformer, and back.
- families: the weights of each family by name, both ways.
- tokenizers: the tokenizer files.
- hub_models: models by name.
"""
