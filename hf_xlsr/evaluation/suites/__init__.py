"""Suites: several encoders under several protocols. Shipped ones are the YAML files here."""
