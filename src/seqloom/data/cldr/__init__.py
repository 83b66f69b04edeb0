"""What the corpus `cldr` is made of: phrases that Unicode CLDR can say in many languages, and which part says what."""
