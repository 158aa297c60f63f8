"""Protocols that turn an encoder into numbers, their reports and plots. Names are imported on first use."""

from __future__ import annotations

from hf_xlsr.utils.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "plots": [
            "plot_comparison",
            "plot_comparisons",
            "plot_curves",
            "plot_heatmap",
            "plot_retrieval",
            "plot_spaces",
            "plot_tsne",
        ],
        "plots.languages": ["plot_languages"],
        "bucc_data": ["BuccData", "hide_pairs", "read_bucc"],
        "command": ["EncoderOptions", "evaluate_files"],
        "inputs": ["DataOptions"],
        "protocols.bucc": ["BUCC_SETTINGS", "bucc", "bucc_settings"],
        "protocols.language_bias": ["language_bias"],
        "protocols.mining": ["mining"],
        "protocols.nli": ["nli"],
        "protocols.pair_classification": ["pair_classification"],
        "protocols.search": ["search", "search_documents"],
        "protocols.sts": ["sts"],
        "protocols.tatoeba": ["tatoeba"],
        "protocols.tatoeba_laser": ["tatoeba_laser"],
        "protocols.tatoeba_mteb": ["tatoeba_mteb"],
        "protocols.tatoeba_xtreme": ["tatoeba_xtreme"],
        "protocols.xsim": ["xsim"],
        "protocols.xsim_pp": ["Distractor", "distractors", "xsim_pp"],
        "protocols.xsr": ["xsr", "xsr_both_directions"],
        "protocols.zero_shot": ["zero_shot"],
        "registry": ["PROTOCOLS", "option_specs"],
        "report": ["results_table"],
        "suites": ["Suite", "SuiteEncoder", "SuiteTask", "evaluate_suite", "load_suite"],
        "results": ["Result", "Results", "load_results", "mean_over_languages", "save_results"],
    },
)
