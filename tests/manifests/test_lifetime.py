from __future__ import annotations

from shared_pathways_service.manifests.lifetime import deadline_patch, deadline_s, delete_body


def test_the_deadline_is_kept_ten_minutes_ahead() -> None:
    assert deadline_s(0) == 600
    assert deadline_s(120.2) == 721
    assert deadline_s(-3) == 600


def test_the_deadline_is_never_moved_beyond_the_lifetime() -> None:
    assert deadline_s(0, 30.5) == 31
    assert deadline_s(3000, 3600) == 3600
    assert deadline_s(3700, 3600) == 3600
    assert deadline_s(0, 0.1) == 1


def test_the_patch_moves_nothing_else() -> None:
    assert deadline_patch(720, "uid-1") == {
        "metadata": {"uid": "uid-1"},
        "spec": {"activeDeadlineSeconds": 720},
    }


def test_a_deletion_is_of_this_object_and_takes_its_pods_along() -> None:
    body = delete_body("uid-1")
    assert body["preconditions"] == {"uid": "uid-1"}
    assert body["propagationPolicy"] == "Background"
