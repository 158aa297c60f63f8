"""Protocols that turn an encoder into numbers, their reports and plots. Names are imported on first use."""

from __future__ import annotations

from hf_xlsr.utils.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "plots": ["plot_comparison", "plot_comparisons", "plot_curves", "plot_languages", "plot_spaces", "plot_tsne"],
        "command": ["EncoderOptions", "evaluate_files"],
        "metrics": ["load_metric"],
        "before_after": ["Change", "changes_between", "changes_table", "measure_rows"],
        "bitexts": ["BuccData", "hide_pairs", "read_bucc"],
        "protocols.bucc": ["BUCC_SETTINGS", "bucc", "bucc_settings", "mining"],
        "protocols.language_bias": ["language_bias"],
        "protocols.search": ["search", "search_documents"],
        "protocols.pair_similarity": ["pair_classification", "sts"],
        "protocols.senteval": ["senteval"],
        "protocols.tatoeba": [
            "tatoeba",
            "tatoeba_laser",
            "tatoeba_mteb",
            "tatoeba_xtreme",
            "xsr",
            "xsr_both_directions",
        ],
        "protocols.transfer": ["nli", "zero_shot"],
        "protocols.xsim": ["Distractor", "distractors", "xsim", "xsim_pp"],
        "protocol": ["PROTOCOLS", "DataOptions", "Options", "option", "option_specs"],
        "protocol_kinds": ["register_protocol"],
        "report": ["results_table"],
        "suites.suite": ["Suite", "SuiteEncoder", "SuiteTask", "evaluate_suite", "load_suite"],
        "results": ["Result", "Results", "load_results", "mean_over_languages", "save_results"],
    },
)
