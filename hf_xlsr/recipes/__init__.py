"""The recipes: one YAML file per setting of a paper, with the small twins that run on a laptop."""
