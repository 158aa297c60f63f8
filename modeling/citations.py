"""BibTeX entries of the papers, and their names in Markdown, for model cards."""

from __future__ import annotations

LIGHTWEIGHT_PAPER = "*Lightweight Cross-Lingual Sentence Representation Learning* (Mao et al., ACL 2021)"
LIGHTWEIGHT = """@inproceedings{mao2021lightweight,
  title     = {Lightweight Cross-Lingual Sentence Representation Learning},
  author    = {Mao, Zhuoyuan and Gupta, Prakhar and Wang, Pei and Chu, Chenhui and Jaggi, Martin and Kurohashi, Sadao},
  booktitle = {Proceedings of ACL-IJCNLP},
  year      = {2021}
}"""

DUAL_MOMENTUM_PAPER = (
    "*Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast* (Wang et al., EMNLP 2021)"
)
DUAL_MOMENTUM = """@inproceedings{wang2021aligning,
  title     = {Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast},
  author    = {Wang, Liang and Zhao, Wei and Liu, Jingming},
  booktitle = {Proceedings of EMNLP},
  year      = {2021}
}"""

HICTL_PAPER = "*On Learning Universal Representations Across Languages* (Wei et al., ICLR 2021)"
HICTL = """@inproceedings{wei2021learning,
  title     = {On Learning Universal Representations Across Languages},
  author    = {Wei, Xiangpeng and Weng, Rongxiang and Hu, Yue and Xing, Luxi and Yu, Heng and Luo, Weihua},
  booktitle = {International Conference on Learning Representations},
  year      = {2021}
}"""

CMLM_PAPER = (
    "*Universal Sentence Representation Learning with Conditional Masked Language Model* (Yang et al., EMNLP 2021)"
)
CMLM = """@inproceedings{yang2021universal,
  title     = {Universal Sentence Representation Learning with Conditional Masked Language Model},
  author    = {Yang, Ziyi and Yang, Yinfei and Cer, Daniel and Law, Jax and Darve, Eric},
  booktitle = {Proceedings of EMNLP},
  year      = {2021}
}"""

DISTILLATION_PAPER = (
    "*Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation* (Reimers and Gurevych, EMNLP "
    "2020), with in-batch contrast"
)
DISTILLATION = """@inproceedings{reimers2020making,
  title     = {Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation},
  author    = {Reimers, Nils and Gurevych, Iryna},
  booktitle = {Proceedings of EMNLP},
  year      = {2020}
}"""
