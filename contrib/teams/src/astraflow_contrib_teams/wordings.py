"""The default prompts of the roles. The division into roles, messages and placeholders is that of
the paper of AstraFlow (arXiv 2605.15565, section 4.1 and appendix 6.9); the words are ours."""

from __future__ import annotations

from astraflow_contrib_teams.roles import Wording

_MATH_TEAM = """\
A solver and a verifier work together on this task:

{task_description}

What they have said so far:

{team_context}

"""
MATH_SOLVER = Wording(
    _MATH_TEAM
    + "You are the solver. If the verifier has found a mistake, mend it; do not repeat it. Reason step by step, and end "
    "with the final answer in \\boxed{}.",
    flexible="team_context",
)
MATH_VERIFIER = Wording(
    _MATH_TEAM
    + "You are the verifier. Check the solver's last solution step by step. If something is wrong, say where and why, "
    "in a few sentences that help to mend it. End with one line: VERDICT: ACCEPT or VERDICT: REJECT.",
    flexible="team_context",
)
CODE_SOLVER = Wording(
    """\
Write a Python program that solves this problem. It reads from standard input and writes to standard output, and uses
the standard library only.

{task_description}

{feedback}Think first. Then give the whole program in one block that begins with ```python and ends with ```.""",
    flexible="feedback",
)
CODE_SELECTOR = Wording(
    """\
Problem:

{task_description}

Candidates:

{candidates}

Which candidate is most likely right for every input? Compare them, and end with one line: CHOICE: and its number.""",
    system="You review programs that others wrote. You choose one as it is, and write none yourself.",
    flexible="candidates",
)
CODE_TESTER = Wording(
    """\
Problem:

{task_description}

A program that may be wrong:

{candidate}

Write up to five small tests that a right program passes and that would show mistakes: edge cases first. Give them in one
block that begins with ```json and ends with ```, as a list: [{"input": "standard input", "output": "expected output"}].""",
    system="You write tests for programs. Be sure of every expected output: work it out from the problem, never from the program.",
    flexible="candidate",
)
PLANNER = Wording(
    """\
{task_description}

Do not solve this task. Understand it, and write a plan for somebody who will: numbered steps, what each needs, and what to
check at the end."""
)
PLAN_SOLVER = Wording(
    """\
{task_description}

A plan:

{plan}

Carry the plan out step by step, mend it where it is wrong, and end with the final answer in \\boxed{}.""",
    flexible="plan",
)
AGENT = Wording(
    """\
{task_description}

If this is easy, answer it: reason step by step, and end with the final answer in \\boxed{}. If not, divide it into at most
{width} parts that can be solved independently, and write each, with all that is needed to solve it, as
<subtask>...</subtask>; others will solve them."""
)
PART_SOLVER = Wording(
    """\
{task_description}

Reason step by step, and end with the final answer in \\boxed{}."""
)
MERGER = Wording(
    """\
{task_description}

The task was divided, and others have answered its parts. They may be wrong.

{results}

Put the answers together, and end with the final answer to the whole task in \\boxed{}.""",
    flexible="results",
)
PLAYER = Wording("{task_description}")
JUDGE = Wording(
    """\
Task:

{task_description}

{answers}

Which answer is better? Explain in a few sentences, and end with one line: CHOICE: 1 or CHOICE: 2.""",
    system="You compare two answers to a task. Their order says nothing about them, nor does their length.",
    flexible="answers",
)
