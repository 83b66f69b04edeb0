"""What is known of metrics by their names."""

OF_HUNDRED = ("bleu", "bleu_lowercase", "chrf", "copy_bleu")  # they go from 0 to 100
# Of labels, tags, scores and answers, what matters first.
OF_ANSWERS = (
    *("span_f1", "token_accuracy", "accuracy", "macro_f1", "matthews"),
    *("pearson", "spearman", "answer_f1", "answer_exact"),
)
HIGHER_IS_BETTER = (
    *("bleu", "bleu_lowercase", "chrf", "exact_match", "success", "masked_accuracy", "next_accuracy"),
    *("replaced_f1", "replaced_accuracy", "replaced_precision", "replaced_recall"),
    *("hidden_accuracy", "target_accuracy", "exact_spans", "exact_texts"),
    *OF_ANSWERS,
    *("neighbours", "wordsim353", "simlex999", "analogies", "analogies_semantic", "analogies_syntactic"),
    *("micro_f1", "weighted_f1", "tag_macro_f1", "sentence_accuracy", "span_precision", "span_recall", "span_macro_f1"),
)
