"""Which test guards which real-world case of areas c (memory, VRAM), d (supervisor), e (swap), g (SQLite) and
h (provisioning).

The names are looked up, so that a case cannot lose its test unseen.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

CASES: dict[str, tuple[str, ...]] = {
    "C01 page cache counted as used": (
        "unit/test_ram_reader.py::test_c01_a_container_that_shows_free_as_available_gets_its_cache_counted",
        "unit/test_ram_reader.py::test_memavailable_is_taken_not_free",
    ),
    "C03 cgroup current includes file cache": (
        "unit/test_ram_reader.py::test_c03_a_cgroup_limit_bounds_and_its_file_cache_is_no_use",
        "unit/test_ram_reader.py::test_c03_more_cache_than_use_in_one_sample_is_no_negative_number",
    ),
    "C05 driver and library disagree after an update": (
        "integration/test_gpu_guard.py::test_without_a_usable_card_nothing_is_started_until_it_is_back",
        "unit/test_gpu_reader.py::test_a_driver_update_is_seen_while_the_old_library_still_works",
        "unit/test_policy.py::test_what_cannot_be_had_back_is_given_up_at_critical_only",
        "unit/test_renewal.py::test_what_could_not_be_had_back_is_never_renewed",
    ),
    "C07 no memory per process": (
        "unit/test_gpu_reader.py::test_c07_without_numbers_per_process_there_is_no_claim",
        "unit/test_policy.py::test_without_per_process_numbers_a_full_card_is_nobodys_fault",
        "integration/test_gpu_guard.py::test_a_card_that_tells_nothing_but_its_memory_is_enough",
        "integration/test_gpu_guard.py::test_a_card_whose_memory_cannot_be_asked_for_is_no_full_card",
    ),
    "C09 reserved memory": (
        "unit/test_gpu_reader.py::test_c09_what_the_driver_reserves_does_not_shift_what_is_free",
    ),
    "C12 a laptop's card kept awake": (
        "unit/test_gpu_reader.py::test_c12_without_a_gpu_worker_no_handle_stays_open",
        "unit/test_gpu_reader.py::test_c12_a_sleeping_card_is_not_woken",
    ),
    "C13 after suspend CUDA is gone": (
        "integration/test_gpu_guard.py::test_c13_after_a_suspend_the_gpu_worker_is_started_anew_once",
        "unit/test_policy.py::test_c13_what_held_before_a_suspend_no_longer_counts",
    ),
    "C14 NVML's index is not CUDA's": (
        "unit/test_gpu_cards.py::test_c14_cuda_visible_devices_by_cudas_rules",
        "unit/test_gpu_reader.py::test_c14_cuda_visible_devices_is_heeded",
        "unit/test_gpu_reader.py::test_c14_the_card_with_the_most_free_memory_is_taken_and_kept",
        "integration/test_gpu_guard.py::test_the_card_is_shown_and_the_worker_gets_it_by_uuid",
    ),
    "C15 someone else holds the VRAM": (
        "integration/test_gpu_guard.py::test_foreign_vram_is_named_and_our_worker_is_left_alone",
        "unit/test_policy.py::test_c15_pressure_near_the_line_between_ours_and_others_does_not_flap",
        "unit/test_policy.py::test_a_card_that_others_fill_is_foreign",
    ),
    "C18 poisoned CUDA context": (
        "unit/test_runner.py::test_c18_a_poisoned_cuda_context_ends_the_worker_at_once_and_the_job_is_not_lost",
        "unit/test_faults.py::test_sticky_errors_are_told_apart",
    ),
    "D01 start limit": (
        "system/test_systemd.py::test_d01_a_start_that_cannot_work_ends_in_failed_with_the_cure",
        "integration/test_supervisor.py::test_a_cause_that_only_repeats_is_not_retried",
    ),
    "D03 watchdog during a long load": (
        "system/test_systemd.py::test_d03_a_supervisor_that_hangs_is_restarted_by_the_watchdog_and_the_job_goes_on",
        "unit/test_daemon_edges.py::test_the_watchdog_is_fed_at_half_its_time_and_only_by_whole_rounds",
    ),
    "D05 orphans after SIGKILL": (
        "integration/test_survival.py::test_a_killed_supervisor_leaves_no_process_and_the_job_goes_on",
        "integration/test_supervisor.py::test_leftovers_of_an_earlier_run_are_ended_at_the_start",
    ),
    "D08 port in use": (
        "integration/test_bad_surroundings.py::test_a_taken_port_is_an_error_that_names_the_holder",
        "integration/test_bad_surroundings.py::test_a_port_that_is_free_again_is_taken_at_once",
    ),
    "D09 SIGTERM while generating": (
        "integration/test_survival.py::test_a_stopped_service_resumes_the_job_at_the_next_start",
        "system/test_systemd.py::test_d09_stop_while_speaking_ends_soon_and_the_job_goes_on_at_the_next_start",
    ),
    "D11 hardening hides the card": (
        "unit/test_gpu_reader.py::test_what_nvml_calls_unknown_is_told_apart_by_the_device_node",
        "unit/test_gpu_health.py::test_every_state_has_a_name_and_a_sentence_in_both_languages",
    ),
    "D13 stale pid and lock": (
        "unit/test_daemon_edges.py::test_one_holder_of_the_lock_whose_children_do_not_hold_it",
        "integration/test_survival.py::test_two_instances_never_share_a_state_folder",
    ),
    "D16 a generation that never ends": (
        "unit/test_runner.py::test_a_late_segment_ends_the_job_with_deadline",
        "unit/test_runner.py::test_an_engine_deaf_to_the_stop_flag_is_called_hung",
        "integration/test_supervisor.py::test_a_worker_that_hangs_is_ended_and_comes_back",
    ),
    "E01 a swap file with holes": (
        "system/test_swap.py::test_e01_a_file_with_holes_is_written_in_full_and_taken",
        "system/test_swap.py::test_swap_grows_and_goes_again_on",
    ),
    "E04 ZFS": ("system/test_swap_refused.py::test_e04_on_zfs_it_is_refused_with_the_reason",),
    "E05 swapoff with too little RAM": (
        "system/test_swap_refused.py::test_e05_shrink_is_refused_when_ram_cannot_take_what_is_swapped_out",
        "system/test_vm.py::test_swap_by_the_installed_units_e05_included",
        "unit/test_swap_plan.py::test_e05_a_smaller_size_needs_ram_that_takes_the_pages_back",
    ),
    "E07 containers": (
        "system/test_swap_refused.py::test_e07_where_swapon_is_denied_nothing_is_left",
        "system/test_systemd.py::test_e07_in_a_container_there_is_no_swap_helper_and_the_service_starts",
    ),
    "E09 swap of others": (
        "system/test_swap.py::test_e09_swap_of_others_is_counted_and_never_touched",
        "system/test_swap.py::test_e09_a_swap_file_that_lies_in_our_folder_under_another_name_stays",
    ),
    "E12 disk full while creating": (
        "system/test_swap_refused.py::test_e12_a_disk_without_the_room_keeps_the_old_swap_and_no_part_of_the_new",
        "system/test_swap_refused.py::test_a_file_system_that_runs_full_meanwhile_is_left_as_it_was",
    ),
    "G01 database is locked": (
        "integration/test_bad_input.py::test_a_locked_database_is_waited_for_then_named",
        "unit/test_queue_processes.py::test_eight_writers_lose_and_double_nothing",
        "unit/test_daemon_edges.py::test_a_locked_database_delays_and_loses_nothing_and_the_caller_never_waits",
    ),
    "G03 the log grows without limit": ("unit/test_maintenance.py::test_a_checkpoint_empties_the_log",),
    "G05 disk full": (
        "system/test_disk.py::test_a_full_disk_refuses_new_jobs_finishes_running_ones_and_recovers",
        "unit/test_store.py::test_a_full_disk_is_storage_full_and_the_database_stays_sound",
    ),
    "G07 history never shrinks": (
        "unit/test_maintenance.py::test_what_stays_fits_and_no_more_goes_than_needed",
        "unit/test_maintenance.py::test_orphans_go_and_strangers_stay",
        "unit/test_maintenance.py::test_rows_of_jobs_long_over_go_and_their_recordings_stay",
    ),
    "G09 daylight saving, misfire, overlap": (
        "unit/test_schedule_clock.py::test_g09_a_daily_task_runs_once_a_day_through_both_changes_of_the_clock",
        "unit/test_schedule_clock.py::test_g09_what_was_missed_is_made_up_for_once",
        "unit/test_schedule_clock.py::test_g09_jobs_coalesce_and_never_overlap",
    ),
    "H01 nouveau still loaded": (
        "system/test_install.py::test_h01_nouveau_is_shut_out_of_the_initramfs_too_and_a_restart_is_asked_for",
        "system/test_install.py::test_h01_a_blacklist_without_its_initramfs_is_made_good",
    ),
    "H03 headers missing or of another kernel": (
        "system/test_install.py::test_h03_a_module_that_was_not_built_for_the_running_kernel_is_named",
        "unit/test_roles_hardware.py::test_h03_a_proxmox_kernel_gets_its_own_headers",
    ),
    "H06 repository or package name gone": (
        "unit/test_roles_hardware.py::test_h06_an_unknown_release_fails_early_with_those_that_are_known",
        "unit/test_roles_hardware.py::test_a_card_newer_than_the_archives_driver_is_refused_with_the_way",
    ),
    "H07 package lock held": (
        "system/test_install.py::test_h07_a_held_package_lock_is_waited_for",
        "unit/test_roles.py::test_h07_every_call_that_takes_the_package_lock_waits_for_it",
    ),
    "H08 old card, new driver branch or CUDA 13": (
        "unit/test_hardware_matrix.py::test_h08_the_generation_decides_branch_and_kind_of_module",
        "unit/test_hardware_matrix.py::test_h08_an_old_card_behind_the_open_module_is_seen",
        "unit/test_roles_hardware.py::test_h08_card_and_release_decide_the_packages",
        "unit/test_roles_hardware.py::test_h08_an_old_card_gets_the_last_torch_that_has_kernels_for_it",
    ),
    "H11 a restart at each run": (
        "system/test_install.py::test_h11_a_second_run_changes_nothing_and_starts_nothing_anew",
        "system/test_install.py::test_h11_until_then_a_second_run_does_nothing_again",
    ),
    "H13 check mode": (
        "system/test_install.py::test_h13_a_check_on_a_bare_server_ends_well_and_changes_nothing",
    ),
}


IDS = (
    "C01 C03 C05 C07 C09 C12 C13 C14 C15 C18 D01 D03 D05 D08 D09 D11 D13 D16 E01 E04 E05 E07 E09 E12"
    " G01 G03 G05 G07 G09 H01 H03 H06 H07 H08 H11 H13"
)


def test_no_case_is_forgotten() -> None:
    assert sorted(case.split()[0] for case in CASES) == IDS.split()


@cache
def names_in(name: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((TESTS / name).read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_the_test_that_guards_it(case: str) -> None:
    for found in CASES[case]:
        file, _, name = found.partition("::")
        assert name in names_in(file), found
