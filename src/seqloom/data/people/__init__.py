"""Sentences about people and places, made from templates and faker's lists of names."""
