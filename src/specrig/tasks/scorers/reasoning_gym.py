"""Right answers to procedural problems, by reasoning-gym's own checkers.

Problems come from the source `package:reasoning_gym`; a reference names one of them.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256

from specrig.tasks.packages import reasoning_data
from specrig.tasks.scorers.base import Mean, Output

_TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)


class ReasoningGym(Mean):
    """Mean score of the answers, 0 to 100."""

    name = "reasoning_gym"
    summary = (
        "right answers to procedural problems, 0 to 100, by reasoning-gym's own checkers (Stojanovski et al. 2025, "
        "arXiv 2505.24760)"
    )
    library = "reasoning_gym"

    def score(self, output: Output) -> float:
        """100 for a right answer: what stands between <answer> tags, else the whole text. Some checkers give a part for
        an answer among other words.

        Raises ValueError for a reference that is none of reasoning-gym's, or of another version of it.
        """
        source = json.loads(output.reference)
        data = reasoning_data(source["dataset"])
        problem = data[source["index"]]
        if sha256(problem["question"].encode()).hexdigest() != source["sha256"]:
            raise ValueError(
                f"reasoning-gym makes another problem {source['index']} of {source['dataset']} than when the prompts were "
                "written; install that version, or delete the task's prompts and measure again"
            )
        tagged = _TAGGED.findall(output.text)
        return 100.0 * float(data.score_answer(answer=(tagged[-1] if tagged else output.text).strip(), entry=problem))
