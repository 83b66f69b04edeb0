"""Models that are counted or solved rather than trained by gradient."""
