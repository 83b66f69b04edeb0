"""The version of this package, told once."""

VERSION = "0.1.0"
