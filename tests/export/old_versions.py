"""For `test_old_names.py`, in an environment with older versions: the largest difference of embeddings by folder."""

from __future__ import annotations

import json
import sys

import numpy as np
from sentence_transformers import SentenceTransformer

with open(sys.argv[1], encoding="utf-8") as file:
    texts, cases = json.load(file)

differences = {}
for folder, vectors in cases.items():
    model = SentenceTransformer(folder, device="cpu")
    differences[folder] = float(np.abs(model.encode(texts) - np.array(vectors)).max())
print(json.dumps(differences))
