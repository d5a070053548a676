"""The simulator finds every ordering rule that is taken away.

Each mutation is run with seeds until a fault comes up. Most are found by what comes of them
(wrong answers, rows that are never answered, slots never freed), with the checks of single
stores switched off. The few that show only as work done twice or in vain need those checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.worker.worker import Worker
from tests.sim import mutations as m
from tests.sim import mutations_admission as q
from tests.sim import mutations_arena as a
from tests.sim import mutations_batcher as b
from tests.sim import mutations_generators as g
from tests.sim import mutations_lane_migration as v
from tests.sim import mutations_metrics as c
from tests.sim import mutations_refusals as r
from tests.sim import mutations_stages as s
from tests.sim import mutations_worker_swap as d
from tests.sim.memory import Fault
from tests.sim.profiles import PROFILES, Profile
from tests.sim.world import World, simulate

SEEDS = 300


@dataclass(frozen=True)
class Case:
    """A mutation, the kind of run that shows it, and whether every store must be judged.

    found_by: a seed that showed it once, tried before the others, where these take long to.
    """

    patch: Callable[[pytest.MonkeyPatch], None]
    kind: str
    enforce: bool = False
    name: str = ""
    seeds: int = SEEDS
    found_by: int = 0

    def __str__(self) -> str:
        return self.name or self.patch.__name__


CASES = [
    Case(m.tail_before_entries, "calm"),
    Case(m.no_fence_at_all, "calm"),
    Case(m.no_fence_before_tail, "calm"),
    Case(m.no_fence_before_finished, "batcher", found_by=2),
    Case(m.batcher_passes_submissions_before_it_admits, "batcher", found_by=2),
    Case(m.worker_passes_a_record_before_it_is_finished, "batcher", enforce=True, found_by=20),
    Case(m.entry_before_payload, "calm"),
    Case(m.entry_before_header, "calm", found_by=9),
    Case(m.entry_before_submitted, "calm"),
    Case(m.cancel_counted_before_its_words, "busy", enforce=True, found_by=121),
    Case(m.cancel_before_its_row_is_published, "calm", enforce=True, found_by=11),
    Case(m.client_trusts_completion_entries, "batcher", found_by=43),
    Case(m.client_looks_for_no_done_slots, "batcher"),
    Case(m.finished_before_outputs, "worker"),
    Case(m.record_entry_before_outputs, "calm"),
    Case(m.record_entry_before_finished, "calm", enforce=True),
    Case(b.completion_entry_before_done, "calm"),
    Case(b.status_after_done, "calm"),
    Case(b.any_sequence_is_admitted, "batcher", found_by=9),
    Case(b.any_state_is_admitted, "batcher", found_by=48),
    Case(q.any_sequence_is_admitted_alone, "batcher", found_by=124),
    Case(q.any_state_is_admitted_alone, "batcher", found_by=20),
    Case(q.any_sequence_is_admitted_in_a_run, "batcher", found_by=1238),
    Case(q.any_state_is_admitted_in_a_run, "batcher"),
    Case(b.stale_entry_hides_the_good_one, "batcher", found_by=5),
    Case(b.cancels_are_asked_after_admit, "calm", enforce=True, found_by=2),
    Case(b.cancels_are_not_asked_again, "worker", enforce=True),
    Case(b.record_token_after_publish, "calm"),
    Case(b.record_token_before_rows, "calm", enforce=True),
    Case(b.running_after_publish, "calm", enforce=True),
    Case(b.record_freed_before_completions, "batcher", found_by=7),
    Case(b.error_for_all_of_a_failed_batch, "worker", found_by=4),
    Case(b.companions_that_are_gone_do_not_count, "companions", seeds=2000, found_by=24),
    Case(b.suspects_have_no_last_attempt, "worker", found_by=2),
    Case(b.suspects_stay_when_they_are_late, "worker", enforce=True, found_by=13),
    Case(b.size_buckets_meet, "calm"),
    Case(b.refused_rows_are_forgotten, "calm", found_by=4),
    Case(b.worker_gets_lanes_it_has_not_mapped, "all", found_by=2),
    Case(b.lane_closed_while_its_rows_run, "client"),
    Case(b.generation_is_not_raised, "batcher"),
    Case(b.completion_ring_has_one_entry_a_slot, "crowded", seeds=2000, found_by=74),
    Case(b.takeover_forgets_queued_rows, "batcher"),
    Case(b.takeover_runs_published_records_again, "batcher", found_by=9),
    Case(b.takeover_takes_rows_in_any_state, "batcher", enforce=True),
    Case(b.worker_is_given_up_before_it_is_reaped, "worker", found_by=2),
    Case(b.each_name_has_turns_of_its_own, "names"),
    Case(b.last_batch_that_comes_back_is_first, "worker"),
    Case(b.rows_of_a_batch_come_back_by_slot, "worker", found_by=2),
    Case(b.death_counted_before_queued, "poison", found_by=30),
    Case(d.deactivation_is_ignored, "reload", enforce=True),
    Case(d.takeover_forgets_inactive_workers, "reload", enforce=True),
    Case(d.idle_with_rows_in_flight, "reload", found_by=11),
    Case(d.suspects_on_inactive_workers_do_not_count, "reload", found_by=2),
    Case(v.lane_closed_before_its_late_rows_are_served, "moves"),
    Case(v.client_claims_behind_moved, "moves", enforce=True, found_by=4),
    Case(v.one_client_is_not_sent_its_lane, "moves"),
    Case(v.client_leaves_with_rows_under_way, "moves"),
    Case(v.client_waits_for_a_batcher_that_has_left, "moves"),
    Case(v.clients_are_not_told_of_the_gate, "moves"),
    Case(v.takeover_opens_moved_gates, "moves", enforce=True, found_by=6),
    Case(v.evicted_lane_is_unmapped_while_its_rows_run, "moves", found_by=2),
    Case(v.old_workers_end_at_the_commit, "moves", found_by=10),
    Case(v.old_gates_move_before_the_new_ones_are_open, "moves", found_by=20),
    Case(c.takeover_counts_again, "batcher", found_by=2),
    Case(c.counted_after_publication, "batcher", found_by=8),
    Case(c.rows_of_the_gone_are_forgotten, "client", found_by=18),
    Case(r.takeover_queues_again_what_a_record_put_back, "refused", found_by=57),
    Case(r.refused_rows_share_one_text, "refused"),
    Case(r.refusals_count_as_failures, "refused", found_by=48),
    Case(r.failed_rows_are_not_confirmed, "refused", found_by=57),
    Case(s.queued_before_its_stage_is_stored, "stages", enforce=True),
    Case(s.stage_is_not_stored, "stages", found_by=11),
    Case(s.takeover_infers_every_row, "stages"),
    Case(s.attempts_count_for_all_stages, "stages", found_by=5),
    Case(s.failed_rows_are_inferred, "stages", found_by=70),
    Case(s.features_are_done, "stages"),
    Case(s.cancels_between_stages_are_forgotten, "stages", enforce=True, found_by=2),
    Case(s.rows_keep_the_bucket_of_their_inputs, "stages", found_by=2),
    Case(b.record_freed_before_completions, "stages", found_by=7),
    Case(s.rows_of_the_gone_go_on, "stages"),
    Case(m.no_fence_before_finished, "stages", name="no_fence_between_stages", found_by=1075),
    Case(s.takeover_postprocesses_what_waits_for_infer, "three stages"),
    Case(s.takeover_infers_what_waits_for_postprocess, "three stages", enforce=True, found_by=5),
    Case(s.every_later_stage_is_infer, "postprocess only", enforce=True),
    Case(s.predictions_are_done, "three stages"),
    Case(s.rows_skip_infer, "three stages"),
    Case(s.rows_keep_the_bucket_of_their_features, "three stages"),
    *(
        Case(patch, "postprocess only", enforce, f"{patch.__name__}_after_infer", found_by=seed)
        for patch, enforce, seed in (
            (s.queued_before_its_stage_is_stored, True, 0),
            (s.stage_is_not_stored, True, 0),
            (s.attempts_count_for_all_stages, False, 2),
            (s.failed_rows_are_inferred, False, 0),
            (s.features_are_done, False, 0),
            (s.cancels_between_stages_are_forgotten, True, 12),
            (s.rows_of_the_gone_go_on, False, 10),
            (b.record_freed_before_completions, False, 13),
            (m.no_fence_before_finished, False, 11),
        )
    ),
    Case(a.run_is_free_when_its_row_is_cancelled, "arena", found_by=82),
    Case(a.runs_are_free_when_the_first_row_is_done, "arena", found_by=82),
    Case(a.run_is_given_to_two_rows, "arena"),
    Case(a.runs_of_abandoned_rows_are_not_freed, "arena"),
    Case(a.place_is_written_after_the_entry, "arena"),
    Case(a.rows_are_written_where_the_last_ones_stood, "arena"),
    Case(a.slots_keep_the_runs_of_their_last_use, "arena"),
    Case(g.lengths_are_not_reset, "generator"),
    Case(g.length_before_its_tokens, "generator"),
    Case(g.no_fence_before_length, "generator"),
    Case(g.only_pending_records_are_published, "generator", found_by=83),
    Case(g.every_record_is_published, "generator", found_by=12),
    Case(g.reservations_do_not_count, "generator", enforce=True),
    Case(g.takeover_forgets_reservations, "sequences that fail", enforce=True, found_by=5),
    Case(g.others_join_suspects, "sequences that fail", found_by=3),
    Case(g.suspects_join_others, "generator", enforce=True),
    Case(g.takeover_forgets_probation, "generator", enforce=True, found_by=35),
    Case(g.each_sequence_fails_alone, "sequences that fail"),
    Case(g.unlaunched_sequences_are_suspects, "generator"),
    Case(g.sequences_come_back_by_slot, "generator"),
    Case(g.records_are_freed_before_rows_are_queued, "generator", found_by=54),
    Case(g.sequences_given_back_are_done, "generator"),
    Case(g.sequences_of_the_gone_come_back, "generator", found_by=9),
    Case(m.no_bell(AdmittedLane, "complete", "ring_client"), "calm", name="no_bell_for_clients"),
    Case(m.no_bell(WorkerProxy, "publish", "ring"), "calm", name="no_bell_for_workers"),
    Case(m.no_bell(Worker, "_publish", "_ring_batcher"), "calm", name="no_bell_for_the_batcher"),
]


def first_fault(case: Case) -> Fault:
    profile = replace(PROFILES[case.kind], enforce=case.enforce)
    for seed in (case.found_by, *range(case.seeds)):
        try:
            simulate(seed, case.kind, profile)
        except Fault as fault:
            return fault
    raise pytest.fail.Exception(f"not noticed in {case.seeds} seeds")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_mutation_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.patch(monkeypatch)
    fault = first_fault(case)
    cause: BaseException | None = fault
    while cause is not None:  # that it is not the mutated code itself that is broken
        assert not isinstance(cause, TypeError | AttributeError | NameError), str(fault)
        cause = cause.__cause__


def test_a_takeover_that_rings_no_worker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a kill after every store: the one between a record's publication and its bell."""
    b.takeover_rings_no_worker(monkeypatch)
    profile = Profile(clients=1, workers=1, slots=(8,), preempt=(0,))
    with pytest.raises(Fault, match="sq has entries pending"):
        for store in range(1, 200):
            World(0, profile, {"batcher 1": store}).run_in_rounds(8)
