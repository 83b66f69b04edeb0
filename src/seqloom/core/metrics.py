"""Names of metrics: their order of importance, their direction, their format, and the baselines of models."""

from collections.abc import Iterator, Mapping

BASELINES = {  # the metric that a baseline is compared with, its title, and the behaviour of the baseline
    "majority": ("accuracy", "accuracy", "always predicting the most frequent label"),
    "majority_tag": ("token_accuracy", "token accuracy", "always predicting the most frequent tag"),
    "majority_frame": ("frame_accuracy", "frame accuracy", "always predicting the most frequent label"),
    "chance": ("accuracy", "accuracy", "choosing an option at random"),
    "constant_f1": ("micro_f1", "micro F1", "always predicting the same labels"),
    **{
        f"baseline_{name}": (name, title, "its baseline")
        for name, title in (
            *(("bleu", "BLEU"), ("chrf", "chrF"), ("exact_match", "exact match")),
            *(("rouge_1", "ROUGE-1"), ("rouge_2", "ROUGE-2"), ("rouge_l", "ROUGE-L")),
            *(("labelled_attachment", "LAS"), ("unlabelled_attachment", "UAS")),
        )
    },
}
TEXT_METRICS = ("rouge_1", "rouge_2", "rouge_l", "labelled_attachment", "unlabelled_attachment")
CAPTION_METRICS = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider_d")
PERCENT_METRICS = (
    "bleu",
    "bleu_lowercase",
    "chrf",
    *TEXT_METRICS,
    *(f"baseline_{name}" for name in ("bleu", "chrf", *TEXT_METRICS)),
    *CAPTION_METRICS,
)  # metrics that are multiplied by 100
# Metrics of labels, tags, scores and answers, with the most important metric first.
ANSWER_METRICS = (
    *("span_f1", "token_accuracy", "accuracy", "average_precision", "micro_f1", "macro_f1", "matthews"),
    *("pearson", "spearman", "answer_f1", "answer_exact"),
)
HIGHER_IS_BETTER = (
    *("bleu", "bleu_lowercase", "chrf", "exact_match", "success", "masked_accuracy", "next_accuracy"),
    *("replaced_f1", "replaced_accuracy", "replaced_precision", "replaced_recall"),
    *("hidden_accuracy", "target_accuracy", "exact_spans", "exact_texts"),
    *TEXT_METRICS,
    *("valid_trees", "valid_python"),
    *ANSWER_METRICS,
    *("neighbours", "wordsim353", "simlex999", "analogies", "analogies_semantic", "analogies_syntactic"),
    *("samples_f1", "subset_accuracy", "micro_average_precision", "weighted_f1", "tag_macro_f1", "sentence_accuracy"),
    *("span_precision", "span_recall", "span_macro_f1"),
    *CAPTION_METRICS,
    *("frame_accuracy", "clip_accuracy", "frame_macro_f1"),
)


def format_metric(name: str, value: float) -> str:
    """Format a metric with two decimals if it is a percentage, otherwise with four."""
    if name in PERCENT_METRICS:
        return f"{value:.2f}"
    return f"{value:{'.4f' if abs(value) < 1e6 else '.3e'}}"


def baseline_notes(metrics: Mapping[str, object]) -> Iterator[str]:
    """Yield a note for each baseline that the model does not exceed."""
    for baseline, (name, title, behaviour) in BASELINES.items():
        value, limit = metrics.get(name), metrics.get(baseline)
        if isinstance(value, float) and isinstance(limit, float) and value <= limit:
            shown = f"{title} {format_metric(name, value)}, baseline {format_metric(baseline, limit)}"
            yield f"the model is no better than {behaviour}: {shown}; train longer, or check the data and train.lr"
