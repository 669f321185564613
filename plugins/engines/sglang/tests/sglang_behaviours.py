"""What SGLang 0.5.23 does, as far as the engine depends on it, and where the sources in its wheel show it.

Each behaviour is one of the stand-in, shown by the test of its name in ``test_stand_in.py``. With the variable
``SGLANG_SOURCES`` naming a folder into which the wheel was unpacked, that module also looks every citation up:

    pip download --no-deps sglang==0.5.23 && unzip sglang-0.5.23-*.whl -d SOURCES
    SGLANG_SOURCES=SOURCES python3 scripts/dev.py test -n 0 plugins/engines/sglang/tests/test_stand_in.py
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cite:
    """Lines ``first`` to ``last`` of ``file``, below ``sglang/``; each of ``words`` is a name that stands there."""

    file: str
    first: int
    last: int
    words: tuple[str, ...]


def cite(file: str, first: int, last: int, *words: str) -> Cite:
    return Cite(file, first, last, words)


TOKENIZER = "srt/managers/tokenizer_manager.py"
CONTROL = "srt/managers/tokenizer_control_mixin.py"
SCHEDULER = "srt/managers/scheduler.py"
WEIGHTS = "srt/managers/scheduler_components/weight_updater.py"
STREAMER = "srt/managers/scheduler_components/output_streamer.py"
FLUSH = "srt/managers/scheduler_components/flush_wrapper.py"
BATCH = "srt/managers/schedule_batch.py"
HTTP = "srt/entrypoints/http_server.py"
IO = "srt/managers/io_struct.py"

BEHAVIOURS: dict[str, tuple[str, tuple[Cite, ...]]] = {
    # --- pauses
    "a_pause_without_a_mode_aborts": (
        "the default of mode is abort, which sends aborts until no request is left",
        (cite(IO, 1946, 1946, "mode", "abort"), cite(TOKENIZER, 2272, 2280, "abort_all", "is_locked")),
    ),
    "a_pause_is_answered_before_the_scheduler_has_it": (
        "the other modes are sent to the scheduler, whose answer nobody waits for; /server_info is answered by it",
        (
            cite(TOKENIZER, 2267, 2271, "_async_dispatch_to_scheduler"),
            cite(HTTP, 875, 878, "get_internal_state"),
            cite(CONTROL, 967, 972, "get_internal_state_communicator"),
        ),
    ),
    "with_overlap_a_pause_in_place_stamps_a_token_wrongly": (
        "the result of the last batch stays in the queue; a swap counts the tokens that were processed",
        (
            cite(SCHEDULER, 2078, 2081, "_engine_paused"),
            cite(SCHEDULER, 5819, 5831, "in_place"),
            cite(SCHEDULER, 5636, 5652, "record_weight_version_events"),
            cite("srt/utils/weight_versions.py", 41, 51, "output_ids"),
        ),
    ),
    "without_overlap_a_pause_in_place_leaves_nothing": (
        "a result is processed in the pass that computed it, and a pause is read between two",
        (cite(SCHEDULER, 2032, 2049, "ingest_requests", "process_batch_result"),),
    ),
    "a_retracting_pause_processes_what_was_left": (
        "the queued result first; then what runs goes back into the queue, to be computed again",
        (cite(SCHEDULER, 5833, 5841, "result_queue", "popleft"), cite(SCHEDULER, 5856, 5866, "retract_reqs")),
    ),
    "a_pause_that_aborts_waits_for_frozen_requests_for_ever": (
        "with the lock that the call to continue needs too",
        (
            cite(TOKENIZER, 2267, 2281, "is_pause_cond", "sleep"),
            cite(TOKENIZER, 2282, 2286, "is_pause_cond"),
        ),
    ),
    # --- aborts
    "a_frozen_request_ends_only_when_it_continues": (
        "an abort marks it; the mark counts after the next token",
        (cite(SCHEDULER, 5796, 5812, "to_finish"), cite(BATCH, 2007, 2014, "to_finish", "finished_reason")),
    ),
    "a_retracted_request_ends_at_once": (
        "since it waits in the queue, from which an abort takes it",
        (cite(SCHEDULER, 5685, 5704, "waiting_queue", "send_abort_output"), cite(SCHEDULER, 5910, 5910, "_add_request_to_queue")),
    ),
    "an_abort_that_comes_too_early_is_lost": (
        "a request that waits for the end of a pause is known to the server, not to the scheduler",
        (cite(TOKENIZER, 938, 952, "is_pause_cond", "_send_one_request"), cite(TOKENIZER, 2246, 2256, "abort_sent")),
    ),
    "a_second_abort_is_dropped": (
        "whatever became of the first; and so is one of an unknown request",
        (cite(TOKENIZER, 2246, 2254, "abort_sent", "tokenizer_worker_num"),),
    ),
    "a_caller_who_goes_away_ends_its_request": (
        "one that the scheduler has not got is forgotten, else it is aborted",
        (cite(TOKENIZER, 957, 967, "_release_req_states_on_failure"), cite(TOKENIZER, 3850, 3872, "dispatched")),
    ),
    # --- answers
    "a_request_that_is_refused_in_a_stream_is_an_event": (
        "of an answer with status 200, and a status of its own without a stream",
        (
            cite(HTTP, 948, 977, "ValueError", "error"),
            cite(HTTP, 983, 990, "_create_error_response"),
            cite(TOKENIZER, 1353, 1378, "context_len", "ValueError"),
            cite(TOKENIZER, 3833, 3836, "ValueError"),
        ),
    ),
    "a_prompt_is_six_tokens_shorter_than_the_context": (
        "at least; /server_info has the length that it has to be below",
        (
            cite("srt/managers/tp_worker.py", 568, 572, "context_len - 1", "max_req_len - 5"),
            cite(SCHEDULER, 1943, 1948, "max_req_input_len"),
            cite("srt/utils/common.py", 3584, 3593, "scheduler_info"),
        ),
    ),
    "a_request_that_fails_ends_as_aborted_with_a_status": (
        "which a request that was aborted on purpose has not",
        (cite(BATCH, 332, 345, "status_code"), cite(TOKENIZER, 1893, 1926, "status_code", "is_stream")),
    ),
    "versions_of_tokens_come_with_the_last_event": (
        "those before have the version that the server's own side knows at that time",
        (
            cite(STREAMER, 541, 554, "weight_versions", "finished"),
            cite(TOKENIZER, 2506, 2511, "weight_version"),
            cite(TOKENIZER, 2318, 2319, "_update_weight_version_if_provided"),
        ),
    ),
    "events_that_no_one_took_become_one": (
        "the last, which repeats them",
        (cite(TOKENIZER, 1973, 1993, "out_list"),),
    ),
    "logprobs_are_tempered_and_not_truncated": (
        "as [log-prob, id, text], the model's after temperature",
        (
            cite(TOKENIZER, 3104, 3108, "logprob", "token_id"),
            cite("srt/layers/sampler.py", 274, 316, "temperatures", "_sample_from_probs", "log"),
        ),
    ),
    "ignore_eos_ignores_every_stop_token": (
        "those of the request too",
        (cite(BATCH, 1856, 1866, "ignore_eos", "stop_token_ids"),),
    ),
    "scores_begin_with_none": (
        "the first token is given nothing",
        (cite("srt/managers/scheduler_components/logprob_result_processor.py", 26, 38, "input_token_logprobs_val"),),
    ),
    "the_last_id_of_the_vocabulary_is_written_as_0_in_scores": (
        "and its log-prob is its own",
        (cite("srt/managers/scheduler_components/logprob_result_processor.py", 50, 56, "vocab_size - 1", "else 0"),),
    ),
    "an_unknown_sampling_parameter_is_refused": (
        "an unknown field beside it is not, by the real one",
        (
            cite("api/v1/api_types.py", 1259, 1320, "SamplingParams", "_unknown_field"),
            cite(HTTP, 936, 939, "generate_contract_error"),
        ),
    ),
    # --- updates
    "an_update_without_a_pause_waits_for_what_runs": (
        "and holds back what comes: the writer's lock",
        (cite(TOKENIZER, 2303, 2309, "writer_lock"), cite(CONTROL, 516, 524, "writer_lock")),
    ),
    "tensors_are_taken_in_a_session_only": (
        "files at any time; a session stays open after a refused update, and there is one at most",
        (
            cite(WEIGHTS, 187, 198, "_session"),
            cite(WEIGHTS, 232, 240, "_session"),
            cite(WEIGHTS, 309, 336, "begin_weight_update", "end_weight_update", "_session"),
            cite(WEIGHTS, 138, 153, "update_weights_from_disk"),
            cite(HTTP, 1458, 1486, "BAD_REQUEST"),
        ),
    ),
    "an_update_never_ends_a_pause": (
        "nothing reads keep_pause",
        (cite(IO, 1984, 1984, "keep_pause"),),
    ),
    "a_refused_flush_comes_after_weights_and_version": (
        "the update is answered with an error all the same",
        (cite(WEIGHTS, 120, 136, "flush_cache"), cite(WEIGHTS, 255, 260, "record_weight_version_after_update")),
    ),
    "frozen_requests_keep_the_cache_from_being_flushed": (
        "retracted ones do not, as long as the scheduler is paused",
        (cite(SCHEDULER, 5518, 5520, "is_fully_idle", "_engine_paused"), cite(SCHEDULER, 5337, 5356, "running_batch", "last_batch")),
    ),
    "a_flush_with_a_timeout_waits_for_those_that_wait_too": (
        "so it never succeeds over retracted requests",
        (cite(FLUSH, 22, 41, "timeout_s", "_is_fully_idle"),),
    ),
    # --- the rest
    "health_samples_unless_told_otherwise": (
        "so a paused server is not well",
        (cite(HTTP, 744, 779, "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "HEALTH_CHECK_TIMEOUT"),),
    ),
    "the_server_says_how_it_was_started": (
        "by the names of its arguments",
        (cite(HTTP, 882, 892, "build_server_info"), cite("srt/utils/common.py", 3584, 3593, "resolved_dict"),
            cite("srt/arg_groups/fields/schedule.py", 193, 199, "disable_overlap_schedule"),
            cite("srt/arg_groups/fields/memory.py", 64, 70, "disable_radix_cache"),
            cite("srt/arg_groups/fields/serving.py", 50, 60, "tokenizer_worker_num", "skip_tokenizer_init"),
            cite("srt/arg_groups/fields/parallel.py", 59, 65, "pp_size")),
    ),
}  # fmt: skip
"""Name → what it is, and where that is shown."""
