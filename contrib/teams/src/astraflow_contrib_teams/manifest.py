"""What this distribution provides."""

from __future__ import annotations

from astraflow_core import Component, hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_workflows() -> list[Component]:
    """The teams."""
    return [
        Component(
            name="verified_solver",
            target="astraflow_contrib_teams.verified_solver:VerifiedSolver",
            config="astraflow_contrib_teams.config:VerifiedSolverConfig",
            summary="a solver tries again until a verifier accepts",
            capabilities=frozenset({"multi_policy"}),
        ),
        Component(
            name="selected_code",
            target="astraflow_contrib_teams.selected_code:SelectedCode",
            config="astraflow_contrib_teams.config:SelectedCodeConfig",
            summary="a solver writes programs, a selector submits one",
            capabilities=frozenset({"multi_policy"}),
        ),
        Component(
            name="tested_code",
            target="astraflow_contrib_teams.tested_code:TestedCode",
            config="astraflow_contrib_teams.config:TestedCodeConfig",
            summary="a solver writes a program again when it fails the tests of a tester",
            capabilities=frozenset({"multi_policy"}),
        ),
        Component(
            name="plan_and_solve",
            target="astraflow_contrib_teams.plan_and_solve:PlanAndSolve",
            config="astraflow_contrib_teams.config:PlanAndSolveConfig",
            summary="a planner writes a plan, a solver follows it",
            capabilities=frozenset({"multi_policy"}),
        ),
        Component(
            name="recursive",
            target="astraflow_contrib_teams.recursive:Recursive",
            config="astraflow_contrib_teams.config:RecursiveConfig",
            summary="an agent divides its task among sub-agents, to a depth",
            capabilities=frozenset({"multi_policy"}),
        ),
        Component(
            name="self_play",
            target="astraflow_contrib_teams.self_play:SelfPlay",
            config="astraflow_contrib_teams.config:SelfPlayConfig",
            summary="a policy against an older version of itself, before a judge",
            capabilities=frozenset({"multi_policy"}),
        ),
    ]


@hookimpl
def astraflow_rewards() -> list[Component]:
    """The reward of programs."""
    return [
        Component(
            name="hidden_tests",
            target="astraflow_contrib_teams.hidden_tests:HiddenTests",
            config="astraflow_contrib_teams.config:HiddenTestsConfig",
            summary="the program of the last completion passes the prompt's tests, in a sandbox",
        )
    ]
