from __future__ import annotations

from shared_pathways_service.manifests.lifetime import (
    deadline_ahead_s,
    deadline_patch,
    deadline_s,
    delete_body,
    extension_interval_s,
    keep_for_within,
)


def test_the_deadline_is_kept_ten_minutes_ahead() -> None:
    assert deadline_s(0) == 600
    assert deadline_s(120.2) == 721
    assert deadline_s(-3) == 600


def test_the_deadline_is_never_moved_beyond_the_lifetime() -> None:
    assert deadline_s(0, 30.5) == 31
    assert deadline_s(3000, 3600) == 3600
    assert deadline_s(3700, 3600) == 3600
    assert deadline_s(0, 0.1) == 1


def test_a_proxy_is_kept_for_as_long_as_requested_from_any_moment_between_two_extensions() -> None:
    for keep_for_s in (60.0, 600.0, 7200.0):
        ahead_s = deadline_ahead_s(keep_for_s, 600.0)
        assert ahead_s - extension_interval_s(ahead_s) >= keep_for_s
    assert deadline_ahead_s(None, 300.0) == 300.0


def test_the_operators_limit_is_also_one_of_the_default() -> None:
    assert keep_for_within(None, default_s=600.0, limit_s=None) is None
    assert keep_for_within(None, default_s=600.0, limit_s=600.0) is None
    assert keep_for_within(None, default_s=600.0, limit_s=300.0) == 300.0
    assert keep_for_within(90.0, default_s=600.0, limit_s=300.0) == 90.0


def test_a_deadline_is_extended_several_times_before_it_passes() -> None:
    assert (extension_interval_s(600.0), extension_interval_s(5.0)) == (120.0, 1.0)
    assert extension_interval_s(7320.0) == 120.0


def test_the_patch_moves_nothing_else() -> None:
    assert deadline_patch(720, "uid-1") == {
        "metadata": {"uid": "uid-1"},
        "spec": {"activeDeadlineSeconds": 720},
    }


def test_a_deletion_is_of_this_object_and_takes_its_pods_along() -> None:
    body = delete_body("uid-1")
    assert body["preconditions"] == {"uid": "uid-1"}
    assert body["propagationPolicy"] == "Background"
