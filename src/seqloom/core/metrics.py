"""What is known of metrics by their names."""

OF_HUNDRED = ("bleu", "bleu_lowercase", "chrf", "copy_bleu")  # they go from 0 to 100
HIGHER_IS_BETTER = ("bleu", "bleu_lowercase", "chrf", "exact_match", "success")
